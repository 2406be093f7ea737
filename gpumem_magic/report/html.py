"""The standalone report: one HTML file, everything inside, no network request, readable without scripts."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem_magic.report.container import header_of
from gpumem_magic.report.document import Extras, view_document
from gpumem_magic.report.fallback import escape, image_tag, notes_html, tables_html
from gpumem_magic.report.whatif.words import table_html
from gpumem_magic.report.wording import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.analysis.model import Analysis
    from gpumem_magic.report.whatif.model import Answer

__all__ = ["MARKER", "document_limit", "html_page", "report_html"]

# The first bytes of every report of ours; what begins otherwise is never replaced.
MARKER = b"<!DOCTYPE html>\n<!-- gpumem-magic report -->\n"

_SCRIPT = Path(__file__).resolve().parent.parent / "static" / "report.js"
# A file may take 12 bytes an event and 400 kB; the view's script, the picture and the tables live in the latter.
_BYTES_PER_EVENT = 12
_FIXED_BYTES = 400_000
_LEAST_DOCUMENT = 64_000

_DARK = "--bg:#111418;--fg:#e8eaed;--muted:#a2abb6;--line:#2a2f36"
_STYLE = f"""
:root{{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--muted:#5b6470;--line:#e6e8eb}}
@media (prefers-color-scheme:dark){{:root:not([data-gpumem-theme=light]){{{_DARK}}}}}
:root[data-gpumem-theme=light]{{color-scheme:light}}
:root[data-gpumem-theme=dark]{{color-scheme:dark;{_DARK}}}
html,body{{margin:0;background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,"Segoe UI","Noto Sans",sans-serif}}
#gpumem-fallback,footer{{padding:12px 20px}}h1{{font-size:18px;margin:0 0 4px}}p{{margin:4px 0}}
footer{{color:var(--muted);font-size:12px;border-top:1px solid var(--line)}}
footer li{{overflow-wrap:anywhere}}code{{unicode-bidi:isolate}}
""".strip()

# Runs before the first paint, so that a chosen theme never flashes.
_THEME = (
    "try{const t=localStorage.getItem('gpumem-theme');"
    "if(t==='light'||t==='dark')document.documentElement.dataset.gpumemTheme=t}catch{}"
)


def _hash(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") + "'"


def _view_script() -> str | None:
    try:
        script = _SCRIPT.read_text("utf-8")
    except OSError:
        return None
    # Inside a string or a comment this still ends the element.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _disclosure(document: bytes) -> str:
    """List the source lines and paths that the file holds, so that one knows before sharing it."""
    header = header_of(document)
    strings, frames = header["strings"], header["frames"]
    groups = [group for device in header["devices"] for group in device["groups"]]
    sources = sorted({group["source"] for group in groups if group["source"]})
    paths = sorted({strings[frame[0]] for frame in frames} | {g["file"] for g in groups if g["file"]})
    items = "".join(f'<li><code dir="ltr">{escape(text)}</code></li>' for text in [*sources, *paths] if text)
    text = escape(str(header["discloses"]))
    return f"<details><summary>{text}</summary><ul>{items}</ul></details>" if items else f"<p>{text}</p>"


def _fallback(analysis: Analysis, png: bytes | None, width: int) -> str:
    parts = [f"<h1>{escape(analysis.sentence)}</h1>"]
    parts += [
        f"<p>{escape(device.key)}: {escape(' · '.join(numbers(analysis, device)))}</p>" for device in analysis.devices
    ]
    if png is not None:
        parts.append(image_tag(png, analysis.sentence, width))
    parts.append(notes_html((*analysis.verdict_notes, *analysis.growth_notes, *analysis.notes)))
    parts.append(tables_html(analysis, 40))
    return "".join(parts)


def report_html(
    analysis: Analysis, png: bytes | None, width: int, answers: Mapping[str, Answer] | None = None
) -> bytes:
    """Write the standalone report.

    Parameters
    ----------
    analysis
        What to show.
    png
        The static picture, or None when there is nothing to draw.
    width
        The picture's width in CSS pixels.
    answers
        What other settings would have done, by the device's key.

    Returns
    -------
    bytes
        UTF-8 HTML that begins with `MARKER`. Without the built view (a source tree that was never built) it is the
        static report alone, and says so.
    """
    limit = document_limit(sum(device.events for device in analysis.devices), len(png or b"") * 4 // 3)
    found = answers or {}
    document = view_document(analysis, limit, Extras.for_file(analysis, found, limit))
    tables = "".join(table_html(answer) for answer in found.values())
    return html_page(analysis.title, document, _fallback(analysis, png, width) + tables)


def document_limit(events: int, static: int) -> int:
    """Return how many bytes a view document may take, so that the file keeps to its size.

    Parameters
    ----------
    events
        What the file is about.
    static
        Bytes of the static part beyond its tables.
    """
    rest = _FIXED_BYTES - len(_view_script() or "") - static - 60_000
    return max((_BYTES_PER_EVENT * events + rest) * 3 // 4, _LEAST_DOCUMENT)


def html_page(title: str, document: bytes, fallback: str) -> bytes:
    """Write the file around a view document.

    Parameters
    ----------
    title
        The window's.
    document
        What the view draws.
    fallback
        HTML for readers without scripts.
    """
    script = _view_script()
    scripts = [_THEME] if script is None else [_THEME, script]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<meta name="generator" content="gpumem-magic">\n'
        f"<title>{escape(title)} · gpumem</title>\n<style>{_STYLE}</style>\n"
        f"<script>{_THEME}</script>\n</head>\n"
    )
    if script is None:
        view = (
            "<p>Only the static report: the interactive view was not built where this file was written "
            "(gpumem_magic/static/report.js is missing; reinstall gpumem-magic).</p>\n"
        )
    else:
        data = base64.b64encode(document).decode("ascii")
        view = (
            '<div id="gpumem-report"></div>\n'
            f'<script type="application/octet-stream;base64" id="gpumem-document">{data}</script>\n'
        )
    tail = "" if script is None else f"<script>{script}</script>\n"
    body = (
        f'<body>\n{view}<main id="gpumem-fallback">{fallback}</main>\n'
        f"<footer>{_disclosure(document)}</footer>\n{tail}</body>\n</html>\n"
    )
    return MARKER + (head + body).encode("utf-8")
