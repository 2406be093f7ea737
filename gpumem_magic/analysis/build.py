"""From a recording or a trace to its meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.allocator.replay import history
from gpumem_magic.analysis.context import Purpose
from gpumem_magic.analysis.counters import analyse_counters
from gpumem_magic.analysis.devices import DeviceContext, Placement, analyse_device
from gpumem_magic.analysis.groups import PlaceNamer, alike
from gpumem_magic.analysis.leaks.find import Scene, find_growth
from gpumem_magic.analysis.lines import attribute
from gpumem_magic.analysis.model import Analysis, Marker
from gpumem_magic.analysis.pinned import with_pinned_lane
from gpumem_magic.analysis.sentence import has_no_code, nothing_sentence, sentence
from gpumem_magic.recording.model import Note, Outcome, SourceKind
from gpumem_magic.trace.model import StackTable
from gpumem_magic.trace.times import has_times, in_order, is_ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.model import DeviceAnalysis, Origin
    from gpumem_magic.analysis.oom import OomVerdict
    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.recording.model import Cell, DeviceReading, Recording
    from gpumem_magic.trace.model import DeviceTrace, Events, Trace

__all__ = ["analyse", "analyse_trace"]

OVERFLOW = (
    "the event ring overflowed and the beginning of the cell is missing; final numbers are torch's own. "
    "Raise --max-entries to keep more"
)
_FILE_OVERFLOW = (
    "torch's event ring overflowed: what happened before the first event is missing, and an earlier peak with it; "
    "record with a larger max_entries"
)


def _ordered_notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Drop repetitions; warnings first."""
    unique = list(dict.fromkeys(notes))
    return tuple(sorted(unique, key=lambda note: note.level != "warning"))


def _title(cell: Cell) -> str:
    if cell.label:
        return cell.label
    return "cell" if cell.execution_count is None else f"In [{cell.execution_count}]"


def _origin(cell: Cell) -> Origin:
    if cell.execution_count is None:
        return "block"
    return "statement" if cell.source.lstrip().startswith("%gpumem ") else "cell"


def _by_peak(devices: Iterable[DeviceAnalysis]) -> tuple[DeviceAnalysis, ...]:
    return with_pinned_lane(sorted(alike(list(devices)), key=lambda d: -(d.headline.allocated_peak or 0)))


def _active(device: DeviceTrace) -> bool:
    return bool(len(device.events) or device.segments)


def _replayed(trace: Trace, *, from_torch: bool) -> list[tuple[DeviceTrace, History]]:
    return [
        (device, history(device, trace.settings, from_torch=from_torch)) for device in filter(_active, trace.devices)
    ]


def _comparable(device: DeviceTrace, replayed: Sequence[tuple[DeviceTrace, History]]) -> list[tuple[Events, History]]:
    """Return the devices whose events stand on the same clock: without times each has an order of its own."""
    own = is_ordered(device.events.time_us)
    return [(other.events, past) for other, past in replayed if other is device or not own]


def _placement(recording: Recording, device: DeviceTrace, notes: list[Note]) -> Placement | None:
    if recording.marks is None:
        return None
    lines = attribute(recording.marks, device.events.time_us)
    notes.extend(lines.notes)
    return Placement(lines.place, recording.marks.places, lines.reasons, recording.marks.last_lines, lines.firsts)


def _reading(readings: Iterable[DeviceReading], key: str) -> DeviceReading | None:
    return next((reading for reading in readings if reading.device == key), None)


def _analyse_events(
    recording: Recording, trace: Trace, notes: list[Note], holders: HolderScan | None
) -> list[DeviceAnalysis]:
    namer = PlaceNamer(recording.cell)
    devices = []
    replayed = _replayed(trace, from_torch=True)
    for device, past in replayed:
        before, after = _reading(recording.before, device.key), _reading(recording.after, device.key)
        context = DeviceContext(
            namer=namer,
            stacks=trace.stacks,
            start_us=recording.started_us,
            end_us=recording.ended_us,
            placement=_placement(recording, device, notes),
            before=before,
            after=after,
            samples=recording.samples,
            regions=trace.regions,
            truncated=recording.truncated,
            all_devices=_comparable(device, replayed),
            settings=trace.settings,
            notes=notes,
            purpose=Purpose(recording.roles, recording.calls, recording.marks),
            emptied_us=trace.emptied_us,
        )
        analysed = analyse_device(device, past, context)
        devices.append(_with_growth(recording, device, analysed, context, holders))
    return devices


def _with_growth(
    recording: Recording,
    trace: DeviceTrace,
    device: DeviceAnalysis,
    context: DeviceContext,
    holders: HolderScan | None,
) -> DeviceAnalysis:
    """Add what grew, and who holds what stayed."""
    try:
        scene = Scene(recording.cell, recording.marks, lambda *place: context.namer.line(*place)[1], recording.calls)
        growth = find_growth(trace, device, context.placement, scene, truncated=recording.truncated)
        if holders is None:
            return replace(device, growth=growth)
        from gpumem_magic.analysis.held import held_by
        from gpumem_magic.analysis.leaks.keepers import name_keepers

        return replace(device, growth=name_keepers(growth, holders, scene), held=held_by(trace, device, holders))
    except Exception as error:  # noqa: BLE001 - the numbers stand without it
        context.warn(f"looking for growth failed ({type(error).__name__}); the numbers are not affected")
        return device


def _why_memory_ran_out(
    devices: Sequence[DeviceAnalysis],
    trace: Trace | None,
    recording: Recording | None = None,
    holders: HolderScan | None = None,
) -> OomVerdict | None:
    has_failed = recording is not None and (recording.failure is not None or recording.outcome is Outcome.OUT_OF_MEMORY)
    if not has_failed and all(device.oom_state is None for device in devices):
        return None
    # A fifth of what a report would otherwise import.
    from gpumem_magic.analysis.oom import diagnose
    from gpumem_magic.analysis.oom.retrial import retry_in

    settings, retry = (None, None) if trace is None else (trace.settings, retry_in(trace))
    return diagnose(devices, recording, settings=settings, holders=holders, retry=retry)


def _by_order(recording: Recording, trace: Trace) -> Recording:
    """Return a recording without what only a time could join to events that have none."""
    counts = [len(device.events) for device in trace.devices if not has_times(device.events.time_us)]
    if not counts:
        return recording
    return replace(recording, started_us=0, ended_us=max(counts), samples=(), marks=None, roles=None, calls=None)


def _mark_exception(device: DeviceAnalysis, recording: Recording) -> DeviceAnalysis:
    if recording.outcome not in {Outcome.ERROR, Outcome.INTERRUPTED}:
        return device
    ended_us = recording.ended_us if device.is_timed else device.end_us
    marker = Marker(ended_us, "exception", recording.error or recording.outcome.value)
    return replace(device, markers=(*device.markers, marker))


def analyse(recording: Recording, *, holders: HolderScan | None = None) -> Analysis:
    """Say what a cell's recording means.

    Parameters
    ----------
    recording
        A finished recording.
    holders
        Who held what after the cell, when that was looked at.

    Returns
    -------
    Analysis
        For every device that was used, what happened. Final allocated equals torch's own counter, always; what does
        not follow from the events is named in `Analysis.notes`.
    """
    notes = list(recording.notes)
    trace = recording.trace
    stacks = StackTable()
    devices: list[DeviceAnalysis] = []
    if trace is not None:
        notes.extend(Note("warning", text) for text in trace.warnings)
        stacks = trace.stacks
        devices = _analyse_events(_by_order(recording, trace), in_order(trace), notes, holders)
    elif recording.source is SourceKind.COUNTERS:
        devices = analyse_counters(recording)
    # The recorder says what was lost, and of which end; a recording made elsewhere may not.
    if recording.truncated and devices and not any(note.level == "warning" for note in recording.notes):
        notes.append(Note("warning", OVERFLOW))
    shown = _by_peak(_mark_exception(device, recording) for device in devices)
    drawable = any(_moves(device) for device in shown)
    oom = None
    try:
        oom = _why_memory_ran_out(shown, trace, recording, holders)
    except Exception as error:  # noqa: BLE001 - the numbers stand without the verdict
        text = f"the out-of-memory verdict failed ({type(error).__name__}); the numbers below are not affected"
        notes.append(Note("warning", text))
    if drawable:
        # A device on which nothing moved is worth a tab only beside others, and never the first line.
        shown = tuple(sorted(shown, key=lambda device: not _moves(device)))
        leaks = [leak for device in shown if device.growth is not None for leak in device.growth.leaks]
        first = ""
        if leaks and oom is None:
            from gpumem_magic.analysis.leaks.words import headline

            first = headline(leaks)
        text = sentence([device for device in shown if _moves(device)], recording, oom, first=first)
    else:
        held = [reading.allocated for reading in recording.after if reading.allocated is not None]
        text = nothing_sentence(recording, sum(held) if held else None, oom)
        if has_no_code(recording.cell):
            # What else was learned of a cell that ran nothing is no news.
            notes = [note for note in notes if note.level == "warning"]
            sampled = None
        else:
            from gpumem_magic.analysis.process import analyse_process

            sampled = None if oom is not None else analyse_process(recording, text)
        if sampled is not None:
            text = sampled.sentence
            notes += sampled.notes
            if sampled.devices:
                shown, drawable = sampled.devices, True
    return Analysis(
        title=_title(recording.cell),
        sentence=text,
        origin=_origin(recording.cell),
        outcome=recording.outcome,
        error=recording.error,
        cell=recording.cell,
        source=recording.source,
        started_us=recording.started_us,
        ended_us=recording.ended_us,
        devices=shown,
        stacks=stacks,
        notes=_ordered_notes(notes),
        drawable=drawable,
        oom=oom,
    )


def _moves(device: DeviceAnalysis) -> bool:
    """Return whether anything happened on a device that a picture could show."""
    if device.timeline.changes or device.oom_request is not None:
        return True
    if device.sampled is not None:
        return bool(np.ptp(device.sampled.value)) or _counted(device)
    return any(lane.name == "reserved" and np.ptp(lane.value) for lane in device.lanes)


def _counted(device: DeviceAnalysis) -> bool:
    peak, before = device.headline.allocated_peak, device.headline.allocated_before
    return peak is not None and before is not None and peak > before


def analyse_trace(trace: Trace, title: str = "snapshot") -> Analysis:
    """Say what a trace read from a file means.

    Parameters
    ----------
    trace
        The events and the final state.
    title
        A name for the report, usually the file's.
    """
    notes = [Note("warning", text) for text in trace.warnings]
    trace = in_order(trace)
    devices = []
    # Where torch records it at all; most files do not tell.
    overflowed = trace.settings.get("trace_alloc_overflowed") is True
    if overflowed:
        notes.append(Note("warning", _FILE_OVERFLOW))
    replayed = _replayed(trace, from_torch=False)
    for device, past in replayed:
        times = device.events.time_us
        context = DeviceContext(
            namer=PlaceNamer(None),
            stacks=trace.stacks,
            start_us=int(times.min()) if len(times) and not is_ordered(times) else 0,
            end_us=int(times.max()) if len(times) else 0,
            regions=trace.regions,
            is_cell=False,
            all_devices=_comparable(device, replayed),
            settings=trace.settings,
            notes=notes,
            truncated=overflowed,
        )
        devices.append(analyse_device(device, past, context))
    shown = _by_peak(devices)
    drawable = any(_moves(device) for device in shown)
    oom = _why_memory_ran_out(shown, trace)
    if drawable:
        text = sentence([device for device in shown if _moves(device)], None, oom)
    elif shown:
        held = sum(device.headline.allocated_after or 0 for device in shown)
        state = f"{format_bytes(held)} are allocated in the snapshot's final state"
        none = "No event changes what is allocated" if any(device.events for device in shown) else "No events"
        text = f"{none}: {state}; record with a history to see more."
    else:
        text = "Nothing to show: the snapshot is empty."
    return Analysis(
        title=title,
        sentence=text,
        origin="file",
        outcome=None,
        error=None,
        cell=None,
        source=None,
        started_us=min((device.start_us for device in shown), default=0),
        ended_us=max((device.end_us for device in shown), default=0),
        devices=shown,
        stacks=trace.stacks,
        notes=_ordered_notes(notes),
        drawable=drawable,
        oom=oom,
    )
