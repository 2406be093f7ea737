"""Which pool an allocation went to, and when a private pool was in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.ranges import within
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.releases import Release
    from gpumem_magic.trace.model import DeviceTrace, Segment

__all__ = ["PoolUse", "freed_pools", "pool_uses", "pools_of"]


class PoolUse(NamedTuple):
    """One capture, or one use of a pool: its first and last allocation."""

    pool: tuple[int, int]
    stream: int
    first: int
    last: int


def pools_of(device: DeviceTrace, history: History) -> list[tuple[int, int]]:
    """Return the pool of every lifetime: recorded from torch 2.12 on, before that told by the final segments."""
    lives = history.lifetimes
    pools: list[tuple[int, int]] = [(0, 0)] * len(lives)
    private = [segment for segment in device.segments if segment.pool_id != (0, 0)]
    for segment in private:
        inside = within(lives.address, segment.address, segment.size)
        # The same addresses can have been another pool's before.
        inside &= lives.alloc_event >= _created(device, segment)
        for number in np.flatnonzero(inside).tolist():
            pools[number] = segment.pool_id
    if device.pool_ids:
        recorded = np.where(lives.alloc_event >= 0, device.events.pool[np.maximum(lives.alloc_event, 0)], -1)
        for number in np.flatnonzero(recorded >= 0).tolist():
            pools[number] = device.pool_ids[recorded[number]]
    return pools


def pool_uses(device: DeviceTrace, history: History, pools: list[tuple[int, int]]) -> list[PoolUse]:
    """Find stretches in which allocations went to a private pool.

    They end where its stream allocates elsewhere, and where the allocator does what it leaves while a pool is in use:
    complete frees that waited for a stream, or release segments.
    """
    private = {pool for pool in pools if pool != (0, 0)}
    if not private:
        return []
    lives, action = history.lifetimes, device.events.action
    of_pool = np.array([sorted(private).index(pool) if pool in private else -1 for pool in pools], dtype=np.int64)
    begun = lives.alloc_event >= 0
    late = (action == Action.FREE_COMPLETED) & ~np.concatenate([[False], action[:-1] == Action.FREE_REQUESTED])
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    breaks = np.flatnonzero(late | released)
    uses = []
    for number, pool in enumerate(sorted(private)):
        for stream in np.unique(lives.stream[begun & (of_pool == number)]).tolist():
            mine = np.sort(lives.alloc_event[begun & (of_pool == number) & (lives.stream == stream)])
            others = lives.alloc_event[begun & (of_pool != number) & (lives.stream == stream)]
            stretch = np.searchsorted(np.sort(np.concatenate([others, breaks])), mine)
            edges = np.flatnonzero(np.diff(stretch)) + 1
            uses += [PoolUse(pool, stream, int(part[0]), int(part[-1])) for part in np.split(mine, edges)]
    return sorted(uses, key=lambda use: use.first)


def freed_pools(device: DeviceTrace, releases: Sequence[Release]) -> list[tuple[int, tuple[int, int]]]:
    """Find private pools that nobody held any more: their segments are released with the cache (recorded from 2.12 on).

    Returns
    -------
    list
        (event, pool): the first event of the burst in which the first segment of a pool is released.
    """
    events = device.events
    released = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    found: dict[tuple[int, int], int] = {}
    for one in releases:
        burst = np.arange(one.first, one.last + 1)
        for number in np.unique(events.pool[burst][released[burst]]).tolist():
            # Under a limit a request may release oversize segments of the pool that it uses.
            if number >= 0 and device.pool_ids[number] != (0, 0) and not (one.is_ladder and not one.is_whole):
                found.setdefault(device.pool_ids[number], one.first)
    return [(event, pool) for pool, event in found.items()]


def _created(device: DeviceTrace, segment: Segment) -> int:
    """Return the event since which a segment of the final state has been there without a break, -1 from before."""
    events = device.events
    if not segment.is_expandable:
        made = (events.action == Action.SEGMENT_ALLOC) & (events.addr == np.uint64(segment.address))
        return int(np.flatnonzero(made).max(initial=-1))
    # An expandable segment grows from its beginning without gaps. Once nothing of it is mapped its addresses go back,
    # and another pool can get them.
    low, high = _arena(device, segment)
    pages = (events.action == Action.SEGMENT_MAP) | (events.action == Action.SEGMENT_UNMAP)
    mine = np.flatnonzero(pages & within(events.addr, low, high - low))
    change = np.where(events.action[mine] == Action.SEGMENT_MAP, events.size[mine], -events.size[mine])
    left = sum(one.size for one in device.segments if one.is_expandable and low <= one.address < high)
    mapped = left - np.cumsum(change[::-1])[::-1]  # before each event
    empty = np.flatnonzero(mapped <= 0)
    return int(mine[empty[-1]]) if len(empty) else -1


def _arena(device: DeviceTrace, segment: Segment) -> tuple[int, int]:
    """Return the range around a segment of which every page was mapped at some time."""
    events = device.events
    mapped = events.action == Action.SEGMENT_MAP
    ranges = [*zip(events.addr[mapped].tolist(), events.size[mapped].tolist(), strict=True)]
    ranges += [(one.address, one.size) for one in device.segments if one.is_expandable]
    low, high = segment.address, segment.address + segment.size
    for start, size in sorted(ranges):
        if start <= high and start + size > high and start + size >= low:
            high = start + size
    for start, size in sorted(ranges, key=sum, reverse=True):
        if start + size >= low and start < low:
            low = start
    return low, high
