"""The report as plain text: sentence, numbers, a compact table. Reads in a terminal, a log and a diff.

Columns are aligned by display width (East Asian characters take two cells). Where the encoding lacks a character, an
ASCII one stands in its place; nothing is lost but form.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from gpumem_magic._format import encodable, format_bytes, has_rtl, visible
from gpumem_magic.report.purposes import by_category, by_module
from gpumem_magic.report.wording import format_share, label_of, numbers, table_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Row

__all__ = ["clip", "display_width", "report_text"]

_BAR_CELLS = 12
_EIGHTHS = "▏▎▍▌▋▊▉"
# Isolates keep a right-to-left line of source from turning the row around: LEFT-TO-RIGHT ISOLATE (code runs that way,
# as in an editor) … POP.
_ISOLATE, _POP = "\u2066", "\u2069"


def display_width(text: str) -> int:
    """Return how many terminal cells a text takes."""
    width = 0
    for character in text:
        if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Me", "Mn"}:
            continue
        width += 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
    return width


def clip(text: str, width: int) -> str:
    """Shorten a text to at most `width` cells, with an ellipsis."""
    if display_width(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        cells = display_width(character)
        if used + cells > width - 1:
            break
        kept.append(character)
        used += cells
    return "".join(kept).rstrip() + "…"


def _pad(text: str, width: int) -> str:
    return text + " " * max(width - display_width(text), 0)


def _bar(share: float) -> str:
    eighths = round(max(min(share, 1.0), 0.0) * _BAR_CELLS * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest - 1] if rest else "")


def _table(device: DeviceAnalysis, shown: Sequence[Row], total: int, width: int) -> list[str]:
    lines: list[str] = []
    labels = [visible(label_of(device, device.groups[row.group])) for row in shown]
    label_width = min(max(map(display_width, labels), default=0), 34)
    details = [
        visible(" ".join((device.groups[row.group].source or device.groups[row.group].reason or "").split()))
        for row in shown
    ]
    # Margin, size, share, label, two gaps, bar: what is left is the source's.
    room = width - 20 - label_width - 3 - _BAR_CELLS
    # Less than this shows the beginning of nothing.
    room = min(room, max(map(display_width, details), default=0)) if room >= 8 else 0
    for row, label, detail in zip(shown, labels, details, strict=True):
        share = row.bytes / total if total else 0.0
        numbers_text = f"  {format_bytes(row.bytes):>9}  {format_share(row.bytes, total):>4}"
        head = f"{numbers_text}  {_pad(clip(label, label_width), label_width)}"
        text = clip(detail, room) if room else ""
        cell = _pad(text, room)
        if has_rtl(text):
            cell = _ISOLATE + text + _POP + " " * max(room - display_width(text), 0)
        lines.append(f"{head}  {cell} {_bar(share)}".rstrip())
    return lines


def _device_lines(analysis: Analysis, device: DeviceAnalysis, *, top: int, width: int, named: bool) -> list[str]:
    name = f"{device.key}: " if named else ""
    lines = [f"  {name}{' · '.join(numbers(analysis, device))}"]
    peak = device.headline.allocated_peak
    if not device.peak or not peak or top <= 0:
        return lines
    purposes = by_category(device)
    if purposes is not None:
        lines.append(f"  {table_title(device)} by category: {purposes}")
        modules = by_module(device)
        lines += [f"  {table_title(device)} by module: {modules}"] if modules is not None else []
    lines.append(f"  {table_title(device)}:")
    shown = device.peak[:top]
    lines += _table(device, shown, peak, width)
    rest = device.peak[top:]
    if rest:
        size = sum(row.bytes for row in rest)
        lines.append(f"  {format_bytes(size):>9}  {format_share(size, peak):>4}  {len(rest)} more")
    return lines


def report_text(analysis: Analysis, *, top: int = 5, width: int = 100, encoding: str = "utf-8") -> str:
    """Write the report as text.

    Parameters
    ----------
    analysis
        What to write.
    top
        Rows of the table.
    width
        Cells that a line may take; the sentence and the notes are not broken.
    encoding
        What the reader's terminal can show.

    Returns
    -------
    str
        Begins with ``gpumem:``; no newline at its end.
    """
    lines = [f"gpumem: {analysis.sentence}"]
    if analysis.oom is not None:
        lines += [f"  {line}" for line in analysis.oom.lines()]
    if analysis.told_leak is not None and analysis.told_leak.remedy:
        lines.append(f"  do: {analysis.told_leak.remedy}")
    if analysis.drawable:
        named = len(analysis.devices) > 1
        for device in analysis.devices:
            lines += _device_lines(analysis, device, top=top, width=width, named=named)
    lines += [f"  {'!' if note.level == 'warning' else 'note:'} {note.text}" for note in analysis.growth_notes]
    lines += [f"  {'!' if note.level == 'warning' else 'note:'} {note.text}" for note in analysis.notes]
    # What comes from a file or a device may not steer the terminal; the isolates are our own.
    return encodable("\n".join(visible(line, keep=_ISOLATE + _POP) for line in lines), encoding)
