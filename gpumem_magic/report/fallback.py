"""HTML that needs no script: an image and tables, with inline styles only.

JupyterLab keeps this in untrusted notebooks, nbconvert and code hosts show it, and it is the standalone report's part
for readers without scripts. Every text from a cell, a path or a device is escaped.
"""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, visible
from gpumem_magic.report.purposes import by_category, by_module
from gpumem_magic.report.wording import format_share, label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Row
    from gpumem_magic.recording.model import Note

__all__ = ["escape", "fallback_html", "image_tag", "tables_html"]

_CELL = "padding:1px 10px 1px 0;text-align:left;vertical-align:top"
_NUMBER = "padding:1px 10px 1px 0;text-align:right;white-space:nowrap;vertical-align:top"
_CODE = "font-family:monospace;unicode-bidi:isolate"


def escape(text: str) -> str:
    """Escape a text for HTML content and quoted attributes."""
    # Control characters are not allowed in HTML, and an override turns around what follows it.
    return html.escape(visible(text, keep="\t\n"), quote=True)


def image_tag(png: bytes, sentence: str, width: int) -> str:
    """Return an ``img`` with its data inside and the sentence as its text."""
    data = base64.b64encode(png).decode("ascii")
    style = "max-width:100%;height:auto;background:#fff"
    return f'<img alt="{escape(sentence)}" width="{width}" style="{style}" src="data:image/png;base64,{data}">'


def _row(device: DeviceAnalysis, row: Row, total: int) -> str:
    group = device.groups[row.group]
    share = escape(format_share(row.bytes, total))
    place = escape(label_of(device, group))
    if group.file is not None and group.kind == "frame":
        place = f'<span title="{escape(group.file)}">{place}</span>'
    detail = ""
    if group.source is not None:
        detail = f'<code dir="ltr" style="{_CODE}">{escape(group.source)}</code>'
    elif group.reason is not None:
        detail = escape(group.reason)
    blocks = f"{row.blocks:,}" if row.blocks else ""
    return (
        f'<tr><td style="{_NUMBER}">{format_bytes(row.bytes)}</td><td style="{_NUMBER}">{share}</td>'
        f'<td style="{_NUMBER}">{blocks}</td><td style="{_CELL}">{place}</td><td style="{_CELL}">{detail}</td></tr>'
    )


def _table(device: DeviceAnalysis, title: str, rows: Sequence[Row], total: int | None, top: int) -> str:
    if not rows or total is None:
        return ""
    lines = [_row(device, row, total) for row in rows[:top]]
    rest = rows[top:]
    if rest:
        size = sum(row.bytes for row in rest)
        lines.append(
            f'<tr><td style="{_NUMBER}">{format_bytes(size)}</td><td></td><td></td>'
            f'<td style="{_CELL}">{len(rest)} more</td><td></td></tr>'
        )
    head = "".join(
        f'<th scope="col" style="{_NUMBER if name in {"bytes", "share", "blocks"} else _CELL}">{name}</th>'
        for name in ("bytes", "share", "blocks", "owner", "source")
    )
    return (
        f'<table style="border-collapse:collapse;margin:6px 0"><caption style="text-align:left;font-weight:bold">'
        f"{escape(title)}: {format_bytes(total)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def tables_html(analysis: Analysis, top: int) -> str:
    """Write who was alive at the peak and at the end, for every device, at most `top` rows each."""
    parts = []
    for device in analysis.devices:
        headline = device.headline
        parts.append(_table(device, f"{device.key}, at the peak", device.peak, headline.allocated_peak, top))
        parts += [
            f'<p style="margin:2px 0">{escape(name)}: {escape(text)}</p>'
            for name, text in (("By category", by_category(device)), ("By module", by_module(device)))
            if text is not None
        ]
        parts.append(_table(device, f"{device.key}, at the end", device.end, headline.allocated_after, top))
    return "".join(parts)


def notes_html(notes: Sequence[Note]) -> str:
    """Write notes as a list, or nothing."""
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note.text)}</li>" for note in notes)
    return f'<ul style="margin:4px 0;padding-left:18px">{items}</ul>'


def fallback_html(analysis: Analysis, png: bytes, width: int, top: int = 5) -> str:
    """Write the part of an output that stays when no script runs.

    Parameters
    ----------
    analysis
        What to show.
    png
        The picture; it holds the sentence and the numbers.
    width
        Its width in CSS pixels.
    top
        Rows of each table.
    """
    tables = tables_html(analysis, top)
    summary = '<summary style="cursor:pointer">Who was alive at the peak and at the end</summary>'
    details = f"<details>{summary}{tables}{notes_html((*analysis.growth_notes, *analysis.notes))}</details>"
    # What to do is never folded away: it is what a reader without a kernel came for.
    return f"<div>{image_tag(png, analysis.sentence, width)}{notes_html(analysis.verdict_notes)}{details}</div>"
