"""What the allocator held when a request failed: who was alive, and why the free memory did not fit.

Out of the recorded events alone. The snapshot shows the end of the cell, when the error has unwound what it could; the
replay leads back to the moment itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.rounding import SMALL_LIMIT
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.allocator.start import segments_before
from gpumem_magic.analysis.model import Group
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History, Lifetimes
    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.trace.model import DeviceTrace, Events

__all__ = ["OomState", "Owner", "Pin", "oom_state"]

_SMALL_SEGMENT = 2 << 20
# More pinned segments than this are summed only; the table of a report is read to its fifth row.
_MOST_PINS = 64


class Owner(NamedTuple):
    """Bytes that were alive, by the group that made them."""

    group: Group
    bytes: int
    blocks: int


class Pin(NamedTuple):
    """A segment that the request could have used, and what kept it: `used` bytes in `blocks` blocks."""

    size: int
    largest_free: int
    used: int
    blocks: int
    group: Group | None


@dataclass(frozen=True)
class OomState:
    """One device at the moment of its last out-of-memory event; bytes.

    Attributes
    ----------
    event, time_us
        The event.
    requested
        What the line asked for, rounded to 512 B.
    segment
        What the allocator asked of the driver for it.
    device_free
        What the driver had left.
    allocated, active, reserved
        torch's counters.
    free
        Reserved and not active: the sum of `releasable` and `unreleasable`.
    releasable
        Free in segments in which nothing lives, of the default pool: what ``empty_cache`` would give back.
    unreleasable
        Free beside living blocks, and in private pools.
    usable, largest
        Free bytes where the request could have gone (its stream, its size class, the default pool) and the largest
        piece of them.
    private
        Free bytes in private pools (CUDA graphs, ``MemPool``), which other requests cannot use.
    other_stream
        Free bytes of other streams.
    expandable
        Whether segments could grow by mapping pages.
    pins
        Segments of `usable` with something alive in them, those that would help most first.
    owners
        Who was alive, largest first.
    given_back
        Bytes from before the recording that were alive and were freed after the failure.
    addresses, is_old
        Addresses of what was alive in ascending order, and whether it was there before the recording.
    reached
        Most bytes that were reserved at any time of the recording.
    """

    event: int
    time_us: int
    requested: int
    segment: int
    device_free: int
    allocated: int
    active: int
    reserved: int
    free: int
    releasable: int
    unreleasable: int
    usable: int
    largest: int
    private: int
    other_stream: int
    expandable: bool
    pins: tuple[Pin, ...]
    owners: tuple[Owner, ...]
    given_back: int
    addresses: NDArray[np.uint64] = field(repr=False, compare=False)
    is_old: NDArray[np.bool_] = field(repr=False, compare=False)
    reached: int = 0

    @property
    def pinning(self) -> int:
        """Bytes alive in the segments of `pins`."""
        return sum(pin.used for pin in self.pins)


@dataclass(frozen=True)
class _Spans:
    """Segments at one moment, in address order; columns of shape ``(n,)``."""

    start: NDArray[np.int64]
    size: NDArray[np.int64]
    used: NDArray[np.int64]
    largest: NDArray[np.int64]
    blocks: NDArray[np.int64]
    usable: NDArray[np.bool_]
    private: NDArray[np.bool_]
    same_stream: NDArray[np.bool_]


def oom_state(
    device: DeviceTrace,
    history: History,
    timeline: Timeline,
    groups: Sequence[Group],
    settings: Mapping[str, object],
) -> OomState | None:
    """Describe a device at its last out-of-memory event, or return None when there is none.

    Parameters
    ----------
    device
        Its events.
    history
        Their replay.
    timeline, groups
        Lifetimes with their owners.
    settings
        `Trace.settings`.
    """
    failed = np.flatnonzero(device.events.action == Action.OOM)
    if not len(failed):
        return None
    event = int(failed[-1])
    lives, events = history.lifetimes, device.events
    alive = np.flatnonzero((lives.alloc_event < event) & ((lives.release_event == -1) | (lives.release_event >= event)))
    alive = alive[np.argsort(lives.address[alive], kind="stable")]
    requested = int(events.size[event])
    typed = from_torch(settings)
    spans = _spans(device, lives, alive, event, requested)
    free = spans.size - spans.used
    releasable = int(free[(spans.used == 0) & ~spans.private].sum())
    reserved, active = int(history.reserved[event + 1]), int(history.active[event + 1])
    old = lives.alloc_event[alive] < 0
    later = lives.free_event[alive] > event
    return OomState(
        event=event,
        time_us=int(events.time_us[event]),
        requested=requested,
        segment=segment_size(requested, typed),
        device_free=int(events.addr[event]),
        allocated=int(history.allocated[event + 1]),
        active=active,
        reserved=reserved,
        free=reserved - active,
        releasable=releasable,
        unreleasable=max(reserved - active - releasable, 0),
        usable=int(free[spans.usable].sum()),
        largest=int(spans.largest[spans.usable].max(initial=0)),
        private=int(free[spans.private].sum()),
        other_stream=int(free[~spans.private & ~spans.same_stream].sum()),
        expandable=typed.expandable_segments,
        pins=_pins(spans, lives, alive, requested, (timeline, groups)),
        owners=_owners(timeline, groups, event),
        given_back=int(lives.size[alive][old & later].sum()),
        addresses=lives.address[alive],
        is_old=old,
        reached=int(history.reserved.max()),
    )


def _spans(device: DeviceTrace, lives: Lifetimes, alive: NDArray[np.intp], event: int, requested: int) -> _Spans:
    native, ranges = segments_before(device, event)
    pairs = sorted(native + ranges)
    start = np.array([at for at, _ in pairs], np.int64)
    size = np.array([length for _, length in pairs], np.int64)
    count = len(start)
    used, blocks, largest = (np.zeros(count, np.int64) for _ in range(3))
    address, length = lives.address[alive].astype(np.int64), lives.size[alive]
    home = np.searchsorted(start, address, "right") - 1
    inside = home >= 0
    inside[inside] &= address[inside] < (start + size)[home[inside]]
    address, length, home, who = address[inside], length[inside], home[inside], alive[inside]
    np.add.at(used, home, length)
    np.add.at(blocks, home, 1)
    # The gap before each block begins at the end of its neighbour or at the segment's start, the last one after it.
    before = np.concatenate([[0], (address + length)[:-1]]) if len(address) else address
    first = np.ones(len(home), bool)
    first[1:] = home[1:] != home[:-1]
    np.maximum.at(largest, home, address - np.where(first, start[home] if count else 0, before))
    end = start.copy()
    np.maximum.at(end, home, address + length)
    largest = np.maximum(largest, start + size - end)
    stream, pool, small = _classes(device, pairs, event)
    # What lives there tells more than the final state does: a segment belongs to one stream and one size class.
    stream[home] = lives.stream[who]
    big = np.zeros(count, np.int64)
    np.maximum.at(big, home, length)
    small = np.where(big > SMALL_LIMIT, False, small)  # noqa: FBT003
    same = stream == int(device.events.stream[event])
    usable = ~pool & same & (small == (requested <= SMALL_LIMIT))
    return _Spans(start, size, used, largest, blocks, usable, pool, same)


def _classes(
    device: DeviceTrace, pairs: Sequence[tuple[int, int]], event: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return stream, "is in a private pool" and "is for small blocks" of each segment, as far as it is recorded."""
    known = {segment.address: segment for segment in device.segments}
    made = _makers(device.events, event)
    stream = np.zeros(len(pairs), np.int64)
    private, small = np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
    for index, (at, size) in enumerate(pairs):
        small[index] = size == _SMALL_SEGMENT
        segment, maker = known.get(at), made.get(at)
        if segment is not None:
            stream[index], private[index] = segment.stream, segment.pool_id != (0, 0)
            small[index] = segment.is_small
        if maker is not None:
            stream[index] = int(device.events.stream[maker])
            pool = int(device.events.pool[maker])
            if pool >= 0:
                private[index] = device.pool_ids[pool] != (0, 0)
    return stream, private, small


def _makers(events: Events, event: int) -> dict[int, int]:
    """Return the newest event before `event` that made the segment at each address."""
    made = np.flatnonzero(np.isin(events.action[:event], (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
    return dict(zip(events.addr[made].tolist(), made.tolist(), strict=True))


def _owners(timeline: Timeline, groups: Sequence[Group], event: int) -> tuple[Owner, ...]:
    change = int(np.searchsorted(timeline.event, event)) - 1
    alive = timeline.alive(change)
    held = np.bincount(timeline.group[alive], timeline.size[alive], len(groups)).astype(np.int64)
    count = np.bincount(timeline.group[alive], timeline.blocks[alive], len(groups)).astype(np.int64)
    order = [int(index) for index in np.argsort(-held, kind="stable") if held[index]]
    return tuple(Owner(groups[index], int(held[index]), int(count[index])) for index in order)


def _pins(
    spans: _Spans,
    lives: Lifetimes,
    alive: NDArray[np.intp],
    requested: int,
    named: tuple[Timeline, Sequence[Group]],
) -> tuple[Pin, ...]:
    """Find what keeps each segment that could have served: those that would do alone first, the least used first."""
    which = np.flatnonzero(spans.usable & (spans.used > 0) & (spans.used < spans.size))
    order = np.lexsort((spans.used[which], spans.size[which] < requested))
    address = lives.address[alive].astype(np.int64)
    pins = []
    for index in which[order][:_MOST_PINS].tolist():
        low, high = spans.start[index], spans.start[index] + spans.size[index]
        here = alive[np.searchsorted(address, low) : np.searchsorted(address, high)]
        top = here[np.argmax(lives.size[here])] if len(here) else None
        group = None if top is None else _group_of(int(lives.alloc_event[top]), *named)
        numbers = (spans.size[index], spans.largest[index], spans.used[index], spans.blocks[index])
        size, largest, used, blocks = (int(number) for number in numbers)
        pins.append(Pin(size, largest, used, blocks, group))
    return tuple(pins)


def _group_of(alloc_event: int, timeline: Timeline, groups: Sequence[Group]) -> Group | None:
    if alloc_event < 0:
        old = timeline.group[timeline.start == -1]
        return groups[int(old[0])] if len(old) and np.all(old == old[0]) else Group("before", "before the cell")
    change = int(np.searchsorted(timeline.event, alloc_event))
    begun = int(np.searchsorted(timeline.start, change))
    if begun >= timeline.lifetimes or timeline.start[begun] != change:
        return None
    return groups[int(timeline.group[begun])]
