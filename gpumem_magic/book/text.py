"""The ledger as people read it, and the one line under each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_count, format_duration
from gpumem_magic.recording.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumem_magic.book.ledger import Ledger
    from gpumem_magic.book.model import AliveDevice, AliveRow, Entry, EntryDevice

__all__ = ["ledger_text", "summary_line"]

_UNKNOWN = "unknown"
_TABLE_UNKNOWN = "n/a"


def summary_line(entry: Entry) -> str:
    """Write what a cell did in one line: peak, stayed, freed."""
    if entry.outcome is Outcome.OUT_OF_MEMORY:
        return f"gpumem: {entry.sentence}"
    several = len(entry.devices) > 1
    parts = [_device_summary(device, named=several) for device in entry.devices]
    text = f"gpumem: {'; '.join(parts) or entry.sentence}"
    return text if entry.leak is None else f"{text}; leak: {entry.leak}"


def _device_summary(device: EntryDevice, *, named: bool) -> str:
    place = f" at {device.place}" if device.place else ""
    text = f"peak {_bytes(device.peak)}{place}, stayed {_bytes(device.stayed)}"
    if device.freed is not None:
        text += f", freed {_bytes(device.freed)}"
    return f"{device.key} {text}" if named else text


def _bytes(count: int | None) -> str:
    return _UNKNOWN if count is None else format_bytes(count)


def ledger_text(
    ledger: Ledger,
    alive: Sequence[AliveDevice],
    *,
    newest_first: bool = False,
    top: int = 10,
    last_used: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Write the whole ledger.

    Parameters
    ----------
    ledger
        The book.
    alive
        What is alive now.
    newest_first
        Show the runs by time, the newest first, in place of a ranking by peak.
    top
        Rows of each table.
    last_used
        Variable → the cell that named it last.
    notes
        Lines for the end.
    """
    if not ledger.entries and not any(device.total for device in alive):
        return "\n".join(["gpumem: the ledger is empty: no measured cell allocated anything yet", *_noted(notes)])
    lines = []
    for device in alive:
        lines += _alive_lines(device, top, last_used or {})
    lines += _run_lines(ledger, newest_first=newest_first, top=top)
    missing = []
    if ledger.entries_left_out:
        missing.append(f"{format_count(ledger.entries_left_out)} older runs were left out")
    if ledger.blocks_left_out:
        missing.append(f"{format_count(ledger.blocks_left_out)} small blocks are not followed: they count as not seen")
    return "\n".join([*lines, *_noted([*missing, *notes])])


def _noted(notes: Sequence[str]) -> list[str]:
    return [f"  ! {note}" for note in notes]


def _alive_lines(device: AliveDevice, top: int, last_used: Mapping[str, str]) -> list[str]:
    if not device.rows and not device.unsure:
        return [f"Alive on {device.key}: nothing"]
    shown = sum(row.bytes for row in device.rows)
    total = shown if device.total is None else device.total
    lines = [f"Alive on {device.key}, by the cell that made it: {format_bytes(total)}"]
    for row in device.rows[:top]:
        share = f"{row.bytes / total:4.0%}" if total else ""
        lines.append(f"  {format_bytes(row.bytes):>9} {share}  {_row_text(row, last_used)}")
    rest = device.rows[top:]
    if rest:
        lines.append(f"  {format_bytes(sum(row.bytes for row in rest)):>9}       {len(rest)} more cells")
    if device.unsure:
        what = "held by no Python object now: most likely freed" if device.searched else "not looked for: may be alive"
        lines.append(
            f"  {format_bytes(device.unsure):>9}       {what} (torch does not report when "
            f"{device.key.upper()} tensors of earlier cells are freed)"
        )
    return lines


def _row_text(row: AliveRow, last_used: Mapping[str, str]) -> str:
    if row.entry is None:
        return "made before the ledger began, or in cells that were not measured"
    what = _names_text(row.names, last_used) or f"`{row.entry.first_line}`"
    return f"{row.entry.title:<8} {what}, {format_count(row.blocks)} {'block' if row.blocks == 1 else 'blocks'}"


def _names_text(names: Sequence[str], last_used: Mapping[str, str]) -> str:
    """List names with the cell that used each last, which several in a row share."""
    used = [last_used.get(name.split(".", 1)[0].split("[", 1)[0]) for name in names]
    return ", ".join(
        f"{name} (last used in {cell})" if cell and cell != following else name
        for name, cell, following in zip(names, used, [*used[1:], None], strict=True)
    )


def _figures(entry: Entry) -> tuple[int | None, int | None, int | None]:
    return entry.peak, entry.stayed, entry.freed


def _run_lines(ledger: Ledger, *, newest_first: bool, top: int) -> list[str]:
    entries = list(reversed(ledger.entries))
    if not entries:
        return []
    title = "Runs, the newest first"
    if not newest_first:
        title = "Runs, the highest peak first"
        entries.sort(key=lambda entry: -(entry.peak or 0))
    lines = [title, f"  {'peak':>9} {'stayed':>9} {'freed':>9} {'time':>8}  cell"]
    runs: dict[str, int] = {}
    for entry in entries:
        runs[entry.cell_key] = max(runs.get(entry.cell_key, 0), entry.run)
    for entry in entries[:top]:
        remarks = [f"run {entry.run} of {runs[entry.cell_key]}"] if runs[entry.cell_key] > 1 else []
        remarks += [] if entry.outcome is Outcome.OK else [entry.outcome.value]
        ended = f"  ({', '.join(remarks)})" if remarks else ""
        figures = (_TABLE_UNKNOWN if count is None else format_bytes(count) for count in _figures(entry))
        lines.append(
            f"  {' '.join(f'{figure:>9}' for figure in figures)} "
            f"{format_duration(entry.seconds):>8}  {entry.title:<8} `{entry.first_line}`{ended}"
        )
    if len(entries) > top:
        lines.append(f"  … {format_count(len(entries) - top)} more: --top {len(entries)} shows all")
    return lines
