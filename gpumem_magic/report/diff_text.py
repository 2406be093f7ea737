"""A comparison as text and as HTML without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes
from gpumem_magic.report.fallback import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.diff import Diff, DiffRow

__all__ = ["diff_html", "diff_text"]

_HEADS = ("at A's peak", "at B's peak", "change", "at A's end", "at B's end", "change", "owner")


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "unknown"
    return f"{format_bytes(before)} → {format_bytes(after)} ({format_bytes(after - before, signed=True)})"


def _totals(diff: Diff) -> list[str]:
    lines = []
    for key in diff.devices:
        a, b = diff.a.devices.get(key), diff.b.devices.get(key)
        peak = _change(a.peak if a else 0, b.peak if b else 0)
        end = _change(a.end if a else 0, b.end if b else 0)
        found = diff.reserved(key)
        reserved = "" if found is None else f", reserved {_change(*found)}"
        lines.append(f"{key}: peak {peak}, end {end}{reserved}")
    lines += [f"{key}: sampled in {title} only, not compared" for key, title in diff.sampled_once.items()]
    return lines


def _cells(row: DiffRow, *, several: bool) -> list[str]:
    name = f"{row.device} {row.group.label}" if several else row.group.label
    if row.group.source is not None:
        name += f"  {row.group.source.strip()}"
    return [
        format_bytes(row.bytes_a),
        format_bytes(row.bytes_b),
        format_bytes(row.growth, signed=True),
        format_bytes(row.end_bytes_a),
        format_bytes(row.end_bytes_b),
        format_bytes(row.end_growth, signed=True),
        name,
    ]


def _split(diff: Diff, top: int) -> tuple[list[DiffRow], list[DiffRow], list[DiffRow]]:
    """Return the rows to show, those that changed less, and those that did not change."""
    changed = [row for row in diff.rows if row.growth or row.end_growth]
    same = [row for row in diff.rows if not (row.growth or row.end_growth)]
    return (changed[:top], changed[top:], same) if top else (changed, [], same)


def _rest(rest: Sequence[DiffRow], same: Sequence[DiffRow]) -> list[str]:
    lines = []
    if rest:
        total = format_bytes(sum(row.growth for row in rest), signed=True)
        lines.append(f"{len(rest)} more changed, {total} at the peak together")
    if same:
        lines.append(f"{len(same)} unchanged, {format_bytes(sum(row.bytes_b for row in same))} at the peak together")
    return lines


def _several(diff: Diff) -> bool:
    return len({row.device for row in diff.rows}) > 1


def diff_text(diff: Diff, top: int) -> str:
    """Write the sentence, both totals and the rows that changed most.

    Parameters
    ----------
    diff
        What changed.
    top
        Rows to write; 0: all.
    """
    shown, rest, same = _split(diff, top)
    lines = [f"gpumem: {diff.sentence}", f"  A: {diff.a.title}", f"  B: {diff.b.title}"]
    lines += [f"  {line}" for line in _totals(diff)]
    if shown:
        table = [list(_HEADS), *(_cells(row, several=_several(diff)) for row in shown)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
            lines.append("  " + "  ".join([*cells, row[-1]]))
    else:
        lines.append("  no line differs")
    lines += [f"  {line}" for line in _rest(rest, same)]
    return "\n".join(lines)


def diff_html(diff: Diff, top: int) -> str:
    """Write the same as `diff_text` with inline styles only; every text is escaped."""
    number = "padding:1px 10px 1px 0;text-align:right;white-space:nowrap"
    shown, rest, same = _split(diff, top)
    parts = [f"<p><b>{escape(diff.sentence)}</b></p>"]
    parts += [f"<p>{escape(line)}</p>" for line in (f"A: {diff.a.title}", f"B: {diff.b.title}", *_totals(diff))]
    if shown:
        head = "".join(f'<th scope="col" style="{number}">{escape(name)}</th>' for name in _HEADS[:-1])
        body = "".join(
            "<tr>"
            + "".join(f'<td style="{number}">{escape(cell)}</td>' for cell in cells[:-1])
            + f'<td dir="auto" style="text-align:left">{escape(cells[-1])}</td></tr>'
            for cells in (_cells(row, several=_several(diff)) for row in shown)
        )
        parts.append(
            f'<table style="border-collapse:collapse;margin:6px 0"><thead><tr>{head}'
            f'<th scope="col" style="text-align:left">{_HEADS[-1]}</th></tr></thead><tbody>{body}</tbody></table>'
        )
    else:
        parts.append("<p>No difference.</p>")
    parts += [f"<p>{escape(line)}</p>" for line in _rest(rest, same)]
    return "".join(parts)
