"""What was there before the first event, from the final state and the events in between."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.rounding import SMALL_LIMIT
from gpumem_magic.trace.model import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.at_once import Order
    from gpumem_magic.trace.model import DeviceTrace, Events

__all__ = [
    "LiveBlock",
    "Start",
    "find_start",
    "has_start",
    "segment_changes",
    "segment_events",
    "segments_before",
    "soft_size",
]


class LiveBlock(NamedTuple):
    """A block that was in use before the first event.

    `size` is None while only the request is known (its end is gone by the end of the recording). `is_pending` says
    that its free had been requested already.
    """

    address: int
    size: int | None
    requested: int
    stream: int
    stack: int
    is_pending: bool


@dataclass
class Start:
    """State before the first event.

    Attributes
    ----------
    segments
        (start, size) of segments from cudaMalloc.
    ranges
        (start, size) of mapped pages of expandable segments, disjoint, in address order.
    blocks
        Blocks in use, in address order.
    """

    segments: list[tuple[int, int]] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[LiveBlock] = field(default_factory=list)


def has_start(device: DeviceTrace) -> bool:
    """Tell whether anything was reserved before the first event."""
    return _reserved_before(device) != 0 or not device.has_snapshot


def _reserved_before(device: DeviceTrace) -> int:
    _, change = segment_changes(device.events)
    return sum(segment.size for segment in device.segments) - int(change.sum())


def segment_events(events: Events) -> NDArray[np.intp]:
    """Return which events change segments."""
    return np.flatnonzero((events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP))


def segment_changes(events: Events) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return which events change the reserved bytes, and by how many each."""
    which = segment_events(events)
    action = events.action[which]
    grows = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    return which, np.where(grows, events.size[which], -events.size[which])


def find_start(device: DeviceTrace, order: Order | None = None) -> Start:
    """Play the recording backwards from the snapshot's segments; `order` are its block events by address, if known."""
    start = Start(*segments_before(device, 0))
    _find_blocks(device, start, order)
    return start


def segments_before(
    device: DeviceTrace, event: int, which: NDArray[np.intp] | None = None
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Play segment events backwards from the final state.

    Parameters
    ----------
    device
        The recording.
    event
        An event.
    which
        Indices of all segment events, where they are known already.

    Returns
    -------
    tuple
        `Start.segments` and `Start.ranges` as they were before event number `event`.
    """
    events = device.events
    native = {segment.address: segment.size for segment in device.segments if not segment.is_expandable}
    mapped = _Ranges()
    for segment in device.segments:
        if segment.is_expandable:
            mapped.add(segment.address, segment.address + segment.size)
    if which is None:
        which = segment_events(events)
    which = which[which >= event]
    for action, address, size in zip(
        events.action[which][::-1].tolist(),
        events.addr[which][::-1].tolist(),
        events.size[which][::-1].tolist(),
        strict=True,
    ):
        if action == Action.SEGMENT_ALLOC:
            native.pop(address, None)
        elif action == Action.SEGMENT_FREE:
            native[address] = size
        elif action == Action.SEGMENT_MAP:
            mapped.remove(address, address + size)
        else:
            mapped.add(address, address + size)
    return sorted(native.items()), [(low, high - low) for low, high in mapped.pairs()]


def _find_blocks(device: DeviceTrace, start: Start, order: Order | None) -> None:
    events = device.events
    if order is not None:
        addresses, first_events = order.first_of_each()
    else:
        which = np.flatnonzero(events.action <= Action.FREE_COMPLETED).astype(np.int32)
        addresses, first = np.unique(events.addr[which], return_index=True)
        first_events = which[first]
    # An address whose first event is a free held a block from before.
    freed = events.action[first_events] != Action.ALLOC
    # `skip_actions` can leave the requests out; then several completions and no request are all there is. A single
    # completion is the second half of a free that the recording begins in.
    completions = np.count_nonzero(events.action == Action.FREE_COMPLETED)
    has_requests = completions < 3 or bool(np.any(events.action == Action.FREE_REQUESTED))
    blocks = [
        LiveBlock(
            address=int(events.addr[index]),
            size=None,
            requested=int(events.size[index]),
            stream=int(events.stream[index]),
            stack=0,
            is_pending=has_requests and int(events.action[index]) == Action.FREE_COMPLETED,
        )
        for index in first_events[freed].tolist()
    ]
    seen = set(addresses.tolist())
    for segment in device.segments:
        blocks.extend(
            LiveBlock(
                address=block.address,
                size=block.size,
                requested=block.requested,
                stream=segment.stream,
                stack=block.stack,
                is_pending=block.state == BlockState.ACTIVE_PENDING_FREE,
            )
            for block in segment.blocks
            if block.state != BlockState.INACTIVE and block.address not in seen
        )
    start.blocks = sorted(blocks)


class _Ranges:
    """Disjoint half-open ranges."""

    def __init__(self) -> None:
        self._edges: list[int] = []  # low, high, low, high, … ascending

    def add(self, low: int, high: int) -> None:
        left = bisect_left(self._edges, low)
        right = bisect_right(self._edges, high)
        self._edges[left:right] = [low] * (left % 2 == 0) + [high] * (right % 2 == 0)

    def remove(self, low: int, high: int) -> None:
        left = bisect_left(self._edges, low)
        right = bisect_right(self._edges, high)
        self._edges[left:right] = [low] * (left % 2 == 1) + [high] * (right % 2 == 1)

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._edges[::2], self._edges[1::2], strict=True))


def soft_size(block: LiveBlock, rounded: int, gap: int, *, is_expandable: bool) -> int:
    """Return the size of a block of which only the request is known.

    In the large pool a remainder of at most 1 MiB is never split off, so a gap that small belongs to the block. With a
    larger gap the rounded size is taken; a later allocation inside the gap corrects it.
    """
    if block.size is not None:
        return block.size
    if rounded > SMALL_LIMIT and not is_expandable and gap <= SMALL_LIMIT:
        return rounded + gap
    return rounded
