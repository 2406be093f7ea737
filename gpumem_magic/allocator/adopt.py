"""Start the model in the middle: from the blocks and segments that were there before the first event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.ranges import within
from gpumem_magic.allocator.rounding import SMALL_LIMIT
from gpumem_magic.allocator.settings_model import MIB
from gpumem_magic.allocator.start import find_start
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.program import Program
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["Region", "find_regions"]

# Two expandable segments of one device lie further apart than this (each reserves 9/8 of the device's memory).
_REACH = 1 << 37


@dataclass(frozen=True)
class Region:
    """A stretch of reserved memory before the first event.

    Attributes
    ----------
    start, size
        Its addresses.
    group
        Number of the block list in the model: twice the (pool, stream) pair, one more for small blocks.
    virtual_base
        For pages of an expandable segment, an address that its pages can be counted from; None for cudaMalloc.
    free
        (start, size) of what is not in use.
    """

    start: int
    size: int
    group: int
    virtual_base: int | None
    free: tuple[tuple[int, int], ...]


def find_regions(device: DeviceTrace, history: History, program: Program) -> list[Region]:
    """Lay out what was reserved before the first event, with the pool and stream of each segment.

    A segment is known by the blocks that were allocated in it, else by what the snapshot says at its address, else by
    its size alone.
    """
    start = find_start(device)
    lives = history.lifetimes
    before = np.flatnonzero(lives.alloc_event < 0)
    before = before[np.argsort(lives.address[before], kind="stable")]
    addresses, sizes = lives.address[before].tolist(), lives.size[before].tolist()
    owners = _Owners(device, history, program)
    regions = []
    spans = [(at, size, False) for at, size in start.segments] + [(at, size, True) for at, size in start.ranges]
    found = [(at, owners.group(at, size)) for at, size in start.ranges]
    known = [(at, group) for at, group in found if group is not None]
    number = 0
    for at, size, is_expandable in sorted(spans):
        free = []
        cursor = at
        while number < len(addresses) and addresses[number] < at:
            number += 1
        while number < len(addresses) and addresses[number] < at + size:
            if addresses[number] > cursor:
                free.append((cursor, addresses[number] - cursor))
            cursor = max(cursor, addresses[number] + sizes[number])
            number += 1
        if cursor < at + size:
            free.append((cursor, at + size - cursor))
        group = owners.group(at, size)
        if group is None and is_expandable:
            group = _nearest(known, at)
        if group is None:
            # Never used by a (pool, stream) of the program: it can only be released.
            group = int(size == 2 * MIB)
        base = owners.virtual_base(at, group) if is_expandable else None
        regions.append(Region(at, size, group, base, tuple(free)))
    return regions


def _nearest(known: list[tuple[int, int]], address: int) -> int | None:
    """Return the group of the closest pages of the same expandable segment."""
    at, group = min(known, key=lambda one: abs(one[0] - address), default=(0, None))
    return group if abs(at - address) < _REACH else None


class _Owners:
    """Which pool and stream a stretch of addresses belongs to."""

    def __init__(self, device: DeviceTrace, history: History, program: Program) -> None:
        self._pairs = {pair: index for index, pair in enumerate(program.groups)}
        self._program = program
        self._segments = device.segments
        self._addresses = history.lifetimes.address
        self._sizes = history.lifetimes.size
        events = device.events
        pages = (events.action == Action.SEGMENT_MAP) | (events.action == Action.SEGMENT_UNMAP)
        self._pages = events.addr[pages]
        self._page_streams = events.stream[pages]

    def group(self, start: int, size: int) -> int | None:
        inside = np.flatnonzero(within(self._addresses, start, size))
        if len(inside):
            # The earliest: the same addresses can have been another segment's later on.
            number = int(inside[0])
            return 2 * int(self._program.group[number]) + bool(self._sizes[number] <= SMALL_LIMIT)
        for segment in self._segments:
            if segment.address <= start < segment.address + segment.size:
                pair = self._pairs.get((segment.pool_id, segment.stream))
                if pair is not None:
                    return 2 * pair + segment.is_small
        return None

    def virtual_base(self, start: int, group: int) -> int:
        stream = self._program.groups[group // 2][1]
        top = np.uint64(start)
        near = (self._page_streams == stream) & (self._pages < top) & (top - self._pages < np.uint64(_REACH))
        return int(self._pages[near].min(initial=top))
