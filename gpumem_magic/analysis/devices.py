"""One device: its timeline, owners, headline, markers and curves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.allocator.start import segment_changes
from gpumem_magic.analysis.categories import categorise
from gpumem_magic.analysis.context import OVERFLOW, DeviceContext, Placement, Purpose
from gpumem_magic.analysis.groups import GroupBook, rows
from gpumem_magic.analysis.markers import event_markers, last_oom
from gpumem_magic.analysis.model import DeviceAnalysis, Group, Headline, Lane, Marker, Row
from gpumem_magic.analysis.owners import assign_groups, compact, event_group
from gpumem_magic.analysis.segments import memory_record
from gpumem_magic.analysis.timeline import build_timeline, drop_preexisting, reconcile
from gpumem_magic.trace.model import Action
from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.categories import Categories
    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.analysis.oom.state import OomState
    from gpumem_magic.analysis.segments import MemoryRecord
    from gpumem_magic.recording.model import DeviceReading, Sample
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["CPU_BEFORE", "CPU_OVERFLOW", "OVERFLOW", "DeviceContext", "Placement", "analyse_device", "sample_lanes"]

PINNED_RESERVED = "torch records no events of the cache of pinned host memory"
CPU_BEFORE = "torch's profiler counts from the cell's start; older CPU tensors are unknown to it"
CPU_OVERFLOW = "recording stopped before the cell ended"


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
    if not device.has_snapshot or device.kind == "host" or (not history.reserved.any() and not len(device.segments)):
        return ()
    reserved = history.reserved
    which, _ = segment_changes(device.events)
    changed = which[reserved[which + 1] != reserved[which]]
    times = rising(device.events.time_us)[changed] if len(changed) else np.zeros(0, np.int64)
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
        if not device.has_snapshot:
            missing |= dict.fromkeys(("stayed", "freed", "allocated_after"), CPU_OVERFLOW)
        counter = _counter_peak(context)
        if counter is not None and counter > peak:
            peak, peak_us = counter, None
            missing["peak_us"] = "the peak lies in the part that the event ring lost"
    reserved = [int(value) for value in (history.reserved[0], history.reserved.max(), history.reserved[-1])]
    limit = context.after.limit if context.after is not None else None
    # Pinned host memory has a cache, too, but its recording has no events of it.
    has = device.has_snapshot and device.kind != "host"
    if not has:
        reason = PINNED_RESERVED if device.kind == "host" else "no caching allocator here"
        missing |= dict.fromkeys(("reserved_before", "reserved_peak", "reserved_after"), reason)
    if limit is None:
        missing["headroom"] = "the device's size is not in the recording"
    used = context.after
    if used is not None:
        missing |= {k: v for k, v in used.missing.items() if k in {"device_used", "process_used"}}
    headline = Headline(
        allocated_before=before,
        allocated_peak=peak,
        peak_us=peak_us,
        allocated_after=int(timeline.allocated[-1]) if "allocated_after" not in missing else None,
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


def _overflow(device: DeviceTrace, context: DeviceContext) -> Marker:
    """Mark the end of the part that is missing: a ring keeps the newest events, the CPU's source the first ones."""
    if device.has_snapshot or not len(device.events):
        return Marker(context.start_us, "overflow", "events before this point were lost")
    return Marker(int(device.events.time_us[-1]), "overflow", "events after this point were not recorded")


def _categories(device: DeviceTrace, history: History, timeline: Timeline, context: DeviceContext) -> Categories | None:
    if context.purpose is None and context.is_cell:
        return None  # nobody was asked to look
    purpose = context.purpose or Purpose(None, None, None)
    return categorise(
        device,
        history,
        timeline,
        roles=purpose.roles,
        calls=purpose.calls,
        marks=purpose.marks,
        firsts=None if context.placement is None else context.placement.firsts,
        text_of=lambda entry: context.namer.source(entry[0], entry[1]),
        stacks=context.stacks,
    )


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
    counted = None if context.before is None or context.truncated else context.before.allocated
    if history.doubt is not None and counted == int(history.allocated[0]):
        history = history.confirmed()
    for text in history.warnings:
        context.warn(text if text.startswith(f"{key}: ") else f"{key}: {text}")
    _warn_of_squeeze(device, history, context)
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
    group = assign_groups(device, history, timeline, context, book)
    # `reconcile` named its lifetime's group before the others had numbers.
    group = np.where(residual, timeline.group, group).astype(np.int32)
    at_peak, at_end = timeline.alive(timeline.peak_change), timeline.end == -1
    weight = np.bincount(group[at_peak], timeline.size[at_peak], len(book.groups)).astype(np.float64)
    if len(group):
        # What is not alive at the peak is ranked behind by all that it ever allocated.
        weight += 1e-6 * np.bincount(group, timeline.size, len(book.groups))
    group, groups = compact(group, book.groups, weight)
    timeline = replace(timeline, group=group)
    columns = (group, timeline.size, timeline.requested, timeline.blocks)
    peak_rows = rows(at_peak, *columns, rounding=len(groups) - 1)
    end_rows = rows(at_end, *columns, rounding=len(groups) - 1)
    stayed = rows(at_end & (timeline.start >= 0), *columns, rounding=len(groups) - 1)
    categories = _categories(device, history, timeline, context)
    headline, missing = _headline(device, history, timeline, context, freed_old)
    if "peak_us" in missing and headline.allocated_peak is not None:
        groups, peak_rows = _lost_peak_rows(groups, headline.allocated_peak)
    reading = context.after or context.before
    # A file of ours says what its recorder had read.
    total, limit = (None, None) if device.beside is None else (device.beside.total, device.beside.limit)
    oom = last_oom(device)
    markers = event_markers(device, history, context.stacks)
    if context.truncated:
        markers = (_overflow(device, context), *markers)
    return DeviceAnalysis(
        key=key,
        name=reading.name if reading is not None else None,
        kind=device.kind,  # type: ignore[arg-type]
        total=reading.device_total if reading is not None else total,
        limit=reading.limit if reading is not None else limit,
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
        oom_group=None if oom is None else event_group(device, oom, context),
        categories=categories,
        oom_state=None if oom is None else _oom_state(device, history, timeline, groups, context),
        memory=_with_calls(
            memory_record(device, context.settings, history, timeline, _emptied(device, context)), context
        ),
    )


def _with_calls(memory: MemoryRecord | None, context: DeviceContext) -> MemoryRecord | None:
    """Add where the calls of ``empty_cache`` were, if every one that torch counted was seen."""
    if memory is not None and memory.device.beside is not None:
        return replace(memory, calls=memory.device.beside.calls)
    if memory is None or context.emptied_us is None:
        return memory
    within = [time for time in context.emptied_us if context.start_us <= time <= context.end_us]
    if len(within) != memory.emptied:
        return memory
    if not within:
        return replace(memory, calls=())
    # A call takes longer than the microsecond in which it began: what bears that time came before it.
    events = np.searchsorted(np.maximum.accumulate(memory.device.events.time_us), within, "right")
    return replace(memory, calls=tuple(events.tolist()))


def _warn_of_squeeze(device: DeviceTrace, history: History, context: DeviceContext) -> None:
    """Say so where something else filled the device."""
    if not np.any(device.events.action >= Action.SEGMENT_FREE) or not device.has_snapshot:
        return
    from gpumem_magic.allocator.squeeze import Means, find_squeeze

    after = context.after
    limit, total = (None, None) if after is None else (after.limit, after.device_total)
    means = Means(limit, total, _emptied(device, context))
    found = find_squeeze(device, history, context.stacks, context.settings, means)
    if found is not None:
        context.warn(found.text(device.key))


def _emptied(device: DeviceTrace, context: DeviceContext) -> int | None:
    """Count the calls of ``empty_cache``: what flushed the cache and was not a request in need.

    None when torch's counters do not tell, or count something else than the events: they can be reset.
    """
    if context.before is None or context.after is None or context.truncated:
        return None
    before, after = context.before.counts, context.after.counts
    if before is None or after is None:
        return None
    if after.allocations - before.allocations != np.count_nonzero(device.events.action == Action.ALLOC):
        return None
    calls = (after.flushes - before.flushes) - (after.retries - before.retries)
    return calls if calls >= 0 else None


def _oom_state(
    device: DeviceTrace, history: History, timeline: Timeline, groups: Sequence[Group], context: DeviceContext
) -> OomState | None:
    from gpumem_magic.analysis.oom.state import oom_state

    return oom_state(device, history, timeline, groups, context.settings)


def _peak_group(timeline: Timeline, headline: Headline) -> int | None:
    change = timeline.peak_change
    if change < 0 or headline.peak_us is None:
        return None
    started = int(np.searchsorted(timeline.start, change, "left"))
    if started >= timeline.lifetimes or timeline.start[started] != change:
        return None
    return int(timeline.group[started])
