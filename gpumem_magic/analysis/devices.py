"""One device: its timeline, owners, headline, markers and curves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.groups import (
    NO_STACK,
    NO_STACKS_AT_ALL,
    ROUNDING,
    GroupBook,
    colored,
    rows,
    stacks_recorded,
)
from gpumem_magic.analysis.markers import event_markers, last_oom
from gpumem_magic.analysis.model import DeviceAnalysis, Group, Headline, Lane, Marker, Row
from gpumem_magic.analysis.stackless import infer_frames
from gpumem_magic.analysis.timeline import build_timeline, drop_preexisting, reconcile
from gpumem_magic.recording.model import Note
from gpumem_magic.trace.frames import user_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.groups import Place, PlaceNamer
    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.recording.model import DeviceReading, Sample
    from gpumem_magic.trace.model import DeviceTrace, Events, Region, StackTable

__all__ = ["DeviceContext", "Placement", "analyse_device", "sample_lanes"]

# A line of the cell that owns this share of the peak is split by the lines that it called in other cells.
_SPLIT_SHARE = 0.6
# The view's format counts to 65,535, and no reader beyond a few hundred.
_MOST_GROUPS = 4096

OVERFLOW = "the event ring overflowed, so the beginning of the cell is missing"
CPU_BEFORE = "torch's profiler counts from the cell's start; older CPU tensors are unknown to it"


@dataclass(frozen=True)
class Placement:
    """Which line ran at each allocation.

    Attributes
    ----------
    place
        Per event of the device: index into `places`, or ``-1 - k`` for ``reasons[k]``; int32.
    places
        Line stacks, innermost first.
    reasons
        Why a line is unknown.
    last_lines
        See `Marks.last_lines`.
    """

    place: NDArray[np.int32]
    places: Sequence[Place]
    reasons: Sequence[str]
    last_lines: Sequence[Sequence[int]] = ()

    def last_line(self, place: int, entry: tuple[str, int, str]) -> int:
        """Return the last line that an entry of a place stands for."""
        if not self.last_lines:
            return entry[1]
        return self.last_lines[place][self.places[place].index(entry)]


@dataclass
class DeviceContext:
    """What a device's analysis needs beside its events. `notes` collects what the reader must know."""

    namer: PlaceNamer
    stacks: StackTable
    start_us: int
    end_us: int
    placement: Placement | None = None
    before: DeviceReading | None = None
    after: DeviceReading | None = None
    samples: Sequence[Sample] = ()
    regions: Sequence[Region] = ()
    truncated: bool = False
    is_cell: bool = True
    all_devices: Sequence[tuple[Events, History]] = ()
    notes: list[Note] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Add a warning once."""
        note = Note("warning", text)
        if note not in self.notes:
            self.notes.append(note)


def _owner_columns(
    device: DeviceTrace, timeline: Timeline, context: DeviceContext, inferred: NDArray[np.int32] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, per distinct (before?, place, stack, inferred frame), a row of numbers, and each lifetime's row."""
    old = timeline.start == -1
    columns = np.full((timeline.lifetimes, 4), -1, np.int64)
    columns[:, 0], columns[:, 2] = old, timeline.stack
    if len(device.events):
        event = timeline.event[timeline.start[~old]]
        if context.placement is not None:
            columns[~old, 1] = context.placement.place[event]
        if inferred is not None:
            columns[~old, 3] = inferred[event]
    # One number a row: sorting numbers is ten times as fast as sorting rows.
    low = columns.min(axis=0, initial=0)
    width = columns.max(axis=0, initial=0) - low + 1
    code = np.zeros(timeline.lifetimes, np.int64)
    for column in range(4):
        code = code * width[column] + columns[:, column] - low[column]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return columns[first], inverse.reshape(-1)


def _name_owner(
    key: tuple[int, int, int, int], context: DeviceContext, book: GroupBook, *, any_stacks: bool, deep: bool
) -> int:
    """Find the group of one (before?, place, stack, inferred frame)."""
    old, place, stack, inferred = key
    namer = context.namer
    frames = context.stacks.resolve(stack)
    if old and (context.is_cell or not frames):
        if context.truncated:
            reason = OVERFLOW if context.is_cell else "allocated before the recorded part begins"
            return book.number(*namer.unknown(reason, "before the recorded part"))
        return book.number(*namer.before(frames))
    if context.placement is not None and place >= 0:
        line = namer.pick(context.placement.places[place], deep=deep)
        if line is not None:
            return book.number(*namer.line(*line, last=context.placement.last_line(place, line)))
    # Frames of notebook code come first: "innermost" as for line marks.
    notebook = tuple((f.filename, f.line, f.name) for f in frames if namer.in_notebook(f.filename))
    if notebook:
        line = namer.pick(notebook, deep=deep)
        if line is not None:
            return book.number(*namer.line(*line))
    frame = user_frame(frames) if inferred < 0 else context.stacks.frames[inferred]
    if frame is not None:
        return book.number(*namer.line(*frame))
    if context.placement is not None and place < 0:
        reasons = context.placement.reasons
        if -1 - place < len(reasons):
            return book.number(*namer.unknown(reasons[-1 - place]))
    if context.is_cell:
        return book.number(*namer.unknown("lines were not recorded"))
    reason, label = (NO_STACK, "no Python stack") if any_stacks else (NO_STACKS_AT_ALL, "no stacks")
    return book.number(*namer.unknown(reason, label))


def _tell_inferred(key: str, timeline: Timeline, inferred: NDArray[np.int32], context: DeviceContext) -> None:
    new = timeline.start >= 0
    given = np.zeros(timeline.lifetimes, bool)
    given[new] = inferred[timeline.event[timeline.start[new]]] >= 0
    if not given.any():
        return
    at_peak = int(timeline.size[given & timeline.alive(timeline.peak_change)].sum())
    note = (
        f"{key}: {int(given.sum()):,} allocations without a stack (autograd's thread; {format_bytes(at_peak)} at the "
        "peak) are shown at the line that the program was in before and after them"
    )
    context.notes.append(Note("info", note))


def _assign_groups(
    device: DeviceTrace, history: History, timeline: Timeline, context: DeviceContext, book: GroupBook
) -> NDArray[np.int32]:
    """Give every lifetime its group; a line of the cell that owns most of the peak is split by what it called."""
    any_stacks = stacks_recorded(timeline.stack, context.stacks)
    inferred = None
    if any_stacks and context.placement is None:
        inferred = infer_frames(device.events, context.all_devices or [(device.events, history)], context.stacks)
        _tell_inferred(device.key, timeline, inferred, context)
    keys, inverse = _owner_columns(device, timeline, context, inferred)
    triples: list[tuple[int, int, int, int]] = [tuple(key) for key in keys.tolist()]
    numbers = np.array(
        [_name_owner(key, context, book, any_stacks=any_stacks, deep=False) for key in triples], np.int32
    )
    if not len(numbers):
        return np.zeros(0, np.int32)
    group = numbers[inverse]
    alive = timeline.alive(timeline.peak_change)
    weight = np.bincount(group[alive], timeline.size[alive], len(book.groups))
    top = int(weight.argmax()) if len(weight) else 0
    if not context.is_cell or weight.sum() == 0 or weight[top] < _SPLIT_SHARE * weight.sum():
        return group
    if book.groups[top].kind != "line":
        return group
    for index, key in enumerate(triples):
        if numbers[index] == top:
            numbers[index] = _name_owner(key, context, book, any_stacks=any_stacks, deep=True)
    return numbers[inverse]


def _compact(
    group: NDArray[np.int32], groups: Sequence[Group], weight: NDArray[np.float64]
) -> tuple[NDArray[np.int32], tuple[Group, ...]]:
    """Drop groups that nothing belongs to, order the others, and give colours.

    Order: before, then code by cell, file and line, then unknown; the order of the bands and of the legend.
    """
    used = np.unique(group).tolist()
    few: list[int] = []
    if len(used) > _MOST_GROUPS:
        used.sort(key=lambda i: -weight[i])
        used, few = used[: _MOST_GROUPS - 1], used[_MOST_GROUPS - 1 :]
    rank = {"before": 0, "line": 1, "frame": 1, "unknown": 2, "rounding": 3}
    used.sort(key=lambda i: (rank[groups[i].kind], groups[i].cell or "", groups[i].file or "", groups[i].line or 0, i))
    new = np.zeros(len(groups), np.int32)
    new[used] = np.arange(len(used))
    ordered = [groups[i] for i in used]
    if few:
        new[few] = len(ordered)
        ordered.append(Group("unknown", f"{len(few):,} smaller owners", reason="too many to tell apart"))
    ordered.append(Group("rounding", ROUNDING))
    colors = colored(ordered, [*(float(weight[i]) for i in used), *[0.0] * (len(ordered) - len(used))])
    return new[group], colors


def _lane(name: str, shape: str, time_us: NDArray[np.int64], value: NDArray[np.int64]) -> Lane:
    return Lane(name, shape, time_us, value)  # type: ignore[arg-type]


def sample_lanes(
    key: str, before: DeviceReading | None, after: DeviceReading | None, samples: Sequence[Sample]
) -> tuple[Lane, ...]:
    """Return the sampled curves of one device: readings around the cell and the live sampler's in between."""
    lanes = []
    names = {"device_used": "host used" if key == "cpu" else "device used", "process_used": "process used"}
    for attribute, name in names.items():
        points = [
            (reading.time_us, getattr(reading, attribute))
            for reading in (before, *(sample for sample in samples if sample.device == key), after)
            if reading is not None and getattr(reading, attribute) is not None
        ]
        if points:
            columns = np.array(sorted(points), np.int64)
            lanes.append(_lane(name, "sample", columns[:, 0], columns[:, 1]))
    return tuple(lanes)


def _reserved_lane(device: DeviceTrace, history: History, context: DeviceContext) -> tuple[Lane, ...]:
    if not device.has_snapshot or (not history.reserved.any() and not len(device.segments)):
        return ()
    reserved = history.reserved
    changed = np.flatnonzero(np.diff(reserved))
    times = np.maximum.accumulate(device.events.time_us)[changed] if len(changed) else np.zeros(0, np.int64)
    time_us = np.concatenate([[context.start_us], np.clip(times, context.start_us, context.end_us), [context.end_us]])
    value = np.concatenate([reserved[:1], reserved[changed + 1], reserved[-1:]])
    return (_lane("reserved", "step", time_us.astype(np.int64), value.astype(np.int64)),)


def _agree_with_counters(timeline: Timeline, context: DeviceContext, book: GroupBook, key: str) -> Timeline:
    """Close the gap between the events and torch's counters, and say so."""
    if context.after is not None and context.after.allocated is not None:
        reason = "torch's counter holds more than the recorded events explain"
        number = book.number(*context.namer.unknown(reason, "not in the recording"))
        timeline, difference = reconcile(timeline, context.after.allocated, number)
        if difference:
            what, then = (
                ("more", "the difference is shown as its own row")
                if difference > 0
                else ("less", "it was taken off what was there longest")
            )
            context.warn(
                f"{key}: at the end torch's counter holds {format_bytes(abs(difference))} {what} than the recorded "
                f"events explain; {then}"
            )
    before = context.before.allocated if context.before is not None else None
    if before is not None and not context.truncated and before != int(timeline.allocated[0]):
        context.warn(
            f"{key}: before the cell torch's counter held {format_bytes(before)}, the recorded events lead back to "
            f"{format_bytes(int(timeline.allocated[0]))}; another thread may have allocated in between"
        )
    return timeline


def _counter_peak(context: DeviceContext) -> int | None:
    """Return the cell's peak when torch's own peak counter rose in it, else None. Nothing was reset for this."""
    before, after = context.before, context.after
    if before is None or after is None or after.max_allocated is None or before.max_allocated is None:
        return None
    return after.max_allocated if after.max_allocated > before.max_allocated else None


def _headline(
    device: DeviceTrace, history: History, timeline: Timeline, context: DeviceContext, freed_old: int
) -> tuple[Headline, dict[str, str]]:
    missing: dict[str, str] = {}
    new, old = timeline.start >= 0, timeline.start == -1
    stayed: int | None = int(timeline.size[new & (timeline.end == -1)].sum())
    freed: int | None = int(timeline.size[old & (timeline.end >= 0)].sum()) + freed_old
    before: int | None = int(timeline.allocated[0])
    peak = int(timeline.allocated.max())
    peak_us: int | None = context.start_us
    if timeline.peak_change >= 0:
        peak_us = int(timeline.time_us[timeline.peak_change])
    if context.before is not None and context.before.allocated is not None:
        before = context.before.allocated
    if not device.has_snapshot:
        before = None
        missing["allocated_before"] = CPU_BEFORE
    if context.truncated and context.is_cell:
        stayed = freed = None
        missing |= {"stayed": OVERFLOW, "freed": OVERFLOW}
        counter = _counter_peak(context)
        if counter is not None and counter > peak:
            peak, peak_us = counter, None
            missing["peak_us"] = "the peak lies in the part that the event ring lost"
    reserved = [int(value) for value in (history.reserved[0], history.reserved.max(), history.reserved[-1])]
    limit = context.after.limit if context.after is not None else None
    if not device.has_snapshot:
        missing |= dict.fromkeys(("reserved_before", "reserved_peak", "reserved_after"), "no caching allocator here")
    has = device.has_snapshot
    if limit is None:
        missing["headroom"] = "the device's size is not in the recording"
    used = context.after
    if used is not None:
        missing |= {k: v for k, v in used.missing.items() if k in {"device_used", "process_used"}}
    headline = Headline(
        allocated_before=before,
        allocated_peak=peak,
        peak_us=peak_us,
        allocated_after=int(timeline.allocated[-1]),
        stayed=stayed,
        freed=freed,
        reserved_before=reserved[0] if has else None,
        reserved_peak=reserved[1] if has else None,
        reserved_after=reserved[2] if has else None,
        device_used=used.device_used if used is not None else None,
        process_used=used.process_used if used is not None else None,
        headroom=limit - reserved[1] if limit is not None and has else None,
    )
    return headline, missing


def _lost_peak_rows(groups: tuple[Group, ...], peak: int) -> tuple[tuple[Group, ...], tuple[Row, ...]]:
    """Who was alive at a peak that the ring lost is unknown: one row says so."""
    lost = Group("unknown", "in the lost part of the recording", reason=OVERFLOW)
    return (*groups, lost), (Row(len(groups), peak, 0),)


def analyse_device(device: DeviceTrace, history: History, context: DeviceContext) -> DeviceAnalysis:
    """Say what one device's events mean.

    Parameters
    ----------
    device
        The events and the final state.
    history
        Their replay.
    context
        Readings, lines, axis; its `notes` are added to.
    """
    key = device.key
    for text in history.warnings:
        context.warn(f"{key}: {text}")
    book = GroupBook()
    timeline = build_timeline(device.events, history)
    freed_old = 0
    if not device.has_snapshot:
        timeline, freed_old = drop_preexisting(timeline)
    else:
        timeline = _agree_with_counters(timeline, context, book, key)
    if timeline.changes and timeline.peak_change < 0:
        # The peak is the state before the first change, so the axis begins before that.
        context.start_us = min(context.start_us, int(timeline.time_us[0]) - 1)
    residual = timeline.blocks == 0
    group = _assign_groups(device, history, timeline, context, book)
    # `reconcile` named its lifetime's group before the others had numbers.
    group = np.where(residual, timeline.group, group).astype(np.int32)
    at_peak, at_end = timeline.alive(timeline.peak_change), timeline.end == -1
    weight = np.bincount(group[at_peak], timeline.size[at_peak], len(book.groups)).astype(np.float64)
    if len(group):
        # What is not alive at the peak is ranked behind by all that it ever allocated.
        weight += 1e-6 * np.bincount(group, timeline.size, len(book.groups))
    group, groups = _compact(group, book.groups, weight)
    timeline = replace(timeline, group=group)
    columns = (group, timeline.size, timeline.requested, timeline.blocks)
    peak_rows = rows(at_peak, *columns, rounding=len(groups) - 1)
    end_rows = rows(at_end, *columns, rounding=len(groups) - 1)
    stayed = rows(at_end & (timeline.start >= 0), *columns, rounding=len(groups) - 1)
    headline, missing = _headline(device, history, timeline, context, freed_old)
    if "peak_us" in missing and headline.allocated_peak is not None:
        groups, peak_rows = _lost_peak_rows(groups, headline.allocated_peak)
    reading = context.after or context.before
    oom = last_oom(device)
    markers = event_markers(device, history, context.stacks)
    if context.truncated:
        markers = (Marker(context.start_us, "overflow", "events before this point were lost"), *markers)
    return DeviceAnalysis(
        key=key,
        name=reading.name if reading is not None else None,
        kind=device.kind,  # type: ignore[arg-type]
        total=reading.device_total if reading is not None else None,
        limit=reading.limit if reading is not None else None,
        events=len(device.events),
        start_us=context.start_us,
        # An axis has a length, also when all happened in one microsecond.
        end_us=max(context.end_us, context.start_us + 1, int(timeline.time_us[-1]) if timeline.changes else 0),
        headline=headline,
        groups=groups,
        peak=peak_rows,
        end=end_rows,
        stayed=stayed,
        peak_group=_peak_group(timeline, headline),
        markers=markers,
        regions=tuple(region for region in context.regions if region.device == device.device),
        lanes=(
            *_reserved_lane(device, history, context),
            *sample_lanes(key, context.before, context.after, context.samples),
        ),
        timeline=timeline,
        missing=missing,
        exact=history.exact and not context.truncated,
        oom_request=None if oom is None else int(device.events.size[oom]),
        oom_held=None if oom is None else int(history.allocated[oom + 1]),
        oom_group=None if oom is None else _event_group(device, oom, context),
    )


def _event_group(device: DeviceTrace, event: int, context: DeviceContext) -> Group | None:
    """Return the owner that a single event would have, or None when its line is unknown."""
    book = GroupBook()
    place = -1 if context.placement is None else int(context.placement.place[event])
    key = (0, place, int(device.events.stack[event]), -1)
    group = book.groups[_name_owner(key, context, book, any_stacks=True, deep=False)]
    return None if group.kind == "unknown" else group


def _peak_group(timeline: Timeline, headline: Headline) -> int | None:
    change = timeline.peak_change
    if change < 0 or headline.peak_us is None:
        return None
    started = int(np.searchsorted(timeline.start, change, "left"))
    if started >= timeline.lifetimes or timeline.start[started] != change:
        return None
    return int(timeline.group[started])
