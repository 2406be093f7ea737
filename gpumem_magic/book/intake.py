"""A recording and its analysis, as an entry of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.analysis.sentence import place_text
from gpumem_magic.book.model import Entry, EntryDevice

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.recording.model import Recording

__all__ = ["first_line", "read_entry", "text_key"]

_LINE_LENGTH = 60


def first_line(source: str) -> str:
    """Return the first line that says what a cell does: no magic, no comment, not blank; shortened."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    code = next((line for line in lines if line[0] not in "%#"), lines[0] if lines else "")
    return code if len(code) <= _LINE_LENGTH else code[: _LINE_LENGTH - 1].rstrip() + "…"


def text_key(source: str) -> str:
    """Return what the runs of a cell without an id have in common: its text, whether it is under our magic or not."""
    return "\n".join(line.rstrip() for line in source.splitlines() if not line.startswith("%%gpumem")).strip()


def _device(device: DeviceAnalysis) -> EntryDevice:
    headline = device.headline
    group = None if device.peak_group is None else device.groups[device.peak_group]
    place = place_text(group) if group is not None and group.kind in {"line", "frame"} else ""
    # torch's profiler does not report frees of CPU tensors that it did not see being made: unknown, not nothing.
    freed = None if device.kind == "cpu" else headline.freed
    return EntryDevice(device.key, headline.allocated_peak, headline.stayed, freed, place)


def _moved(device: DeviceAnalysis) -> bool:
    if device.sampled is not None:
        return device.sampled.whose == "allocator"
    return bool(device.timeline.changes or device.oom_request is not None)


def read_entry(recording: Recording, analysis: Analysis, cell_id: str | None) -> Entry | None:
    """Return the entry of a recording, or None where no memory was allocated or freed.

    Parameters
    ----------
    recording
        A finished recording.
    analysis
        What it means.
    cell_id
        The cell's id in the notebook.
    """
    devices = tuple(_device(device) for device in analysis.devices if _moved(device)) if analysis.drawable else ()
    if not devices:
        return None
    return Entry(
        title=analysis.title,
        execution_count=recording.cell.execution_count,
        cell_id=cell_id,
        first_line=first_line(recording.cell.source),
        outcome=recording.outcome,
        sentence=analysis.sentence,
        started_us=recording.started_us,
        seconds=(recording.ended_us - recording.started_us) / 1e6,
        devices=devices,
        leak=max(analysis.leaks, key=lambda leak: leak.bytes).sentence if analysis.leaks else None,
        cell_key=cell_id or text_key(recording.cell.source),
    )
