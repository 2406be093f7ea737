"""From a replayed history to a timeline: changes, lifetimes, and an end that agrees with torch's own counter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.history import sums_at
from gpumem_magic.analysis.model import Timeline
from gpumem_magic.trace.constant import constant, joined, taken
from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History, Lifetimes
    from gpumem_magic.trace.model import Events

__all__ = ["EMPTY_TIMELINE", "addresses", "build_timeline", "drop_preexisting", "reconcile"]


def _frozen(**columns: NDArray[np.generic] | tuple[int, ...]) -> Timeline:
    for column in columns.values():
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return Timeline(**columns)  # type: ignore[arg-type]


def _curve(
    base: int, changes: int, start: NDArray[np.int32], end: NDArray[np.int32], size: NDArray[np.int64]
) -> NDArray[np.int64]:
    steps = sums_at(start[start >= 0] + 1, size[start >= 0], changes + 1)
    steps -= sums_at(end[end >= 0] + 1, size[end >= 0], changes + 1)
    steps[0] += base
    return np.cumsum(steps)


def build_timeline(events: Events, history: History) -> Timeline:
    """Turn a history's lifetimes into a timeline whose curve is their sum.

    `group` is zero everywhere. A clock that runs backwards stands still instead. Changes that share the peak's
    microsecond but follow it are moved to the next one, so that "the state at the peak's time" has one meaning.

    Parameters
    ----------
    events
        The device's events.
    history
        Their replay.
    """
    lives = history.lifetimes
    chosen = lives.counted
    alloc_event = lives.alloc_event[chosen]
    free_event = lives.free_event[chosen]
    used = np.zeros(len(events) + 1, bool)
    used[alloc_event] = used[free_event] = True
    used[-1] = False  # what was there before, and what stays, have no event: index -1
    number = np.cumsum(used, dtype=np.int32) - np.int32(1)
    number[-1] = -1
    start, end = number[alloc_event], number[free_event]
    event = np.flatnonzero(used).astype(np.int32)
    size, requested = lives.size[chosen], lives.requested[chosen]
    allocated = _curve(int(size[start == -1].sum()), len(event), start, end, size)
    time_us = rising(events.time_us[event])
    peak = int(np.argmax(allocated)) - 1
    if 0 <= peak < len(time_us) - 1 and time_us[peak + 1] == time_us[peak]:
        time_us[peak + 1 :] = np.maximum(time_us[peak + 1 :], time_us[peak] + 1)
    streams, stream = _numbered(taken(lives.stream, chosen))
    # An unknown request is counted with what is known to have been taken, and no more was asked for than was taken
    # (a contradictory recording says otherwise), so that sums still close.
    if np.any(requested < 0) or np.any(requested > size):
        requested = np.where(requested >= 0, np.minimum(requested, size), size)
    return _frozen(
        time_us=time_us,
        event=event,
        allocated=allocated,
        start=start,
        end=end,
        size=size,
        requested=requested,
        group=constant(0, len(start), np.int32),
        stack=taken(lives.stack, chosen),
        stream=stream,
        blocks=constant(1, len(start), np.int32),
        streams=streams,
    )


def addresses(lives: Lifetimes, timeline: Timeline) -> NDArray[np.uint64]:
    """Return where each lifetime of a timeline begins; 0 where that is not known.

    Parameters
    ----------
    lives
        What the timeline was made from.
    timeline
        It may have one more in front, which closes a gap to torch's counter, or lack those from before.
    """
    address: NDArray[np.uint64] = lives.address[lives.counted]
    missing = timeline.lifetimes - len(address)
    if missing <= 0:
        return address[-missing:]
    return np.concatenate([np.zeros(missing, np.uint64), address])


def _numbered(stream: NDArray[np.int64]) -> tuple[tuple[int, ...], NDArray[np.uint8]]:
    """Return the distinct streams, at most 256 of them, and each lifetime's number among them."""
    if len(stream) and stream.min() == stream.max():
        return (int(stream[0]),), constant(0, len(stream), np.uint8)
    streams, number = np.unique(stream, return_inverse=True)
    return tuple(streams[:256].tolist()), np.minimum(number.reshape(-1), 255).astype(np.uint8)


EMPTY_TIMELINE = _frozen(
    time_us=np.zeros(0, np.int64),
    event=np.zeros(0, np.int32),
    allocated=np.zeros(1, np.int64),
    start=np.zeros(0, np.int32),
    end=np.zeros(0, np.int32),
    size=np.zeros(0, np.int64),
    requested=np.zeros(0, np.int64),
    group=np.zeros(0, np.int32),
    stack=np.zeros(0, np.int32),
    stream=np.zeros(0, np.uint8),
    blocks=np.zeros(0, np.int32),
)


def _with_lifetimes(timeline: Timeline, **columns: NDArray[np.generic]) -> Timeline:
    names = ("start", "end", "size", "requested", "group", "stack", "stream", "blocks")
    merged = {name: columns.get(name, getattr(timeline, name)) for name in names}
    start, end, size = merged["start"], merged["end"], merged["size"]
    allocated = _curve(int(size[start == -1].sum()), timeline.changes, start, end, size)
    return _frozen(
        time_us=timeline.time_us, event=timeline.event, allocated=allocated, streams=timeline.streams, **merged
    )


def drop_preexisting(timeline: Timeline) -> tuple[Timeline, int]:
    """Leave out what was there before, and return how many bytes of it were freed.

    For a source that sees only some of it (the CPU's profiler reports frees of older tensors, if at all, without ever
    having seen their allocation), a band of it would show a part as the whole.
    """
    old = timeline.start == -1
    freed = int(timeline.size[old & (timeline.end >= 0)].sum())
    names = ("start", "end", "size", "requested", "group", "stack", "stream", "blocks")
    return _with_lifetimes(timeline, **{name: getattr(timeline, name)[~old] for name in names}), freed


def reconcile(timeline: Timeline, end_bytes: int, group: int) -> tuple[Timeline, int]:
    """Make the curve end at what torch's counter read.

    Bytes that the counter knows and the events do not become one lifetime of `group` that is there all the time. Bytes
    that the counter does not know are taken off what is alive at the end: off what was there before first, as the least
    known, then off the largest.

    Returns
    -------
    tuple
        The timeline, and counter − events in bytes (0: they agree).
    """
    difference = end_bytes - int(timeline.allocated[-1])
    if difference == 0:
        return timeline, 0
    if difference > 0:
        first = {
            "start": -1,
            "end": -1,
            "size": difference,
            "requested": difference,
            "group": group,
            "stack": 0,
            "stream": 0,
            "blocks": 0,
        }
        columns = {}
        for name, value in first.items():
            column = getattr(timeline, name)
            columns[name] = joined(np.array([value], column.dtype), column)
        return _with_lifetimes(timeline, **columns), difference
    size, requested = timeline.size.copy(), timeline.requested.copy()
    living = np.flatnonzero(timeline.end == -1)
    order = living[np.lexsort((-size[living], timeline.start[living] >= 0))]
    left = -difference
    for index in order.tolist():
        taken = min(left, int(size[index]))
        size[index] -= taken
        requested[index] = min(int(requested[index]), int(size[index]))
        left -= taken
        if not left:
            break
    return _with_lifetimes(timeline, size=size, requested=requested), difference
