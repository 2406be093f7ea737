"""What the caching allocator holds: free blocks, segments, and pages of expandable segments.

Free blocks are one sorted list for each (pool, stream, small or large) of ``size << 64 | address``, so that the first
entry at or above ``size << 64`` is torch's best fit with the lowest address on ties. A free block is also known by its
start and by its end, for merging.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumem_magic.allocator.sizes import page_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumem_magic.allocator.addresses import AddressModel
    from gpumem_magic.allocator.adopt import Region
    from gpumem_magic.allocator.settings_model import AllocatorSettings

__all__ = ["MASK", "SHIFT", "Cache", "SegmentStep"]

SHIFT = 64
MASK = (1 << SHIFT) - 1
# Expandable segments reserve 9/8 of the device's memory in addresses; only "large enough" matters here.
_VIRTUAL = 1 << 42
_VIRTUAL_BASE = 1 << 46


@dataclass(frozen=True)
class SegmentStep:
    """A change of what is reserved: `action` is torch's name for it, `step` the operation that caused it."""

    step: int
    action: str
    address: int
    size: int


class Cache:
    """Free blocks and segments of one device.

    Parameters
    ----------
    settings
        Under which settings.
    groups
        Number of block lists; odd ones hold small blocks.
    addresses
        Where segments from cudaMalloc go.
    virtual_base
        Gives the address of an expandable segment of a group; by default far from everything else.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        groups: int,
        addresses: AddressModel,
        virtual_base: Callable[[int], int] | None = None,
    ) -> None:
        self.settings = settings
        self.reserved = 0
        self.reserved_peak = 0
        self.steps: list[SegmentStep] = []
        self._is_traced = False
        self._addresses = addresses
        self._virtual_base = virtual_base
        self.step = 0
        self._lists: list[list[int]] = [[] for _ in range(groups)]
        self._free_at: dict[int, int] = {}  # start → size
        self._free_end: dict[int, int] = {}  # end → start
        self._segments: dict[int, int] = {}  # from cudaMalloc: start → size
        self._bases: list[int] = []  # of `_segments`, ascending
        self._barriers: dict[int, int] = {}  # edges of `_segments`, over which blocks do not merge
        self._unmapped: dict[int, int] = {}  # start → size
        self._unmapped_of: list[list[int]] = [[] for _ in range(groups)]  # starts, ascending
        self._virtual: list[int] = [0] * groups  # base of each group's expandable segment
        self._pages = [page_size(settings, is_small=bool(group & 1)) for group in range(groups)]
        # Whether there may be segments of both kinds, because the setting was changed on the way.
        self._is_mixed = False
        # Garbage collection asks how many searches ago a block was put into its list.
        self._keeps_age = False
        self._searches = 0
        self._put_at: dict[int, int] = {}

    def adopt(self, regions: Sequence[Region]) -> None:
        """Take over what was reserved before; blocks in use are the caller's."""
        for region in regions:
            self.reserved += region.size
            if region.virtual_base is None:
                self._enclose(region.start, region.size)
            elif self._virtual[region.group]:
                # Behind earlier pages of the same segment: what lies between is not mapped.
                end = self._unmapped_of[region.group].pop()
                left = self._unmapped.pop(end)
                self._add_unmapped(end, region.start - end, region.group)
                behind = region.start + region.size
                self._add_unmapped(behind, left - (behind - end), region.group)
            else:
                self._virtual[region.group] = region.virtual_base
                self._add_unmapped(region.virtual_base, region.start - region.virtual_base, region.group)
                end = region.start + region.size
                self._add_unmapped(end, _VIRTUAL - (end - region.virtual_base), region.group)
            for start, size in region.free:
                self._free_at[start] = size
                self._free_end[start + size] = start
                insort(self._lists[region.group], size << SHIFT | start)
        self.reserved_peak = self.reserved

    def _add_unmapped(self, start: int, size: int, group: int) -> None:
        if size:
            self._unmapped[start] = size
            insort(self._unmapped_of[group], start)

    def _enclose(self, start: int, size: int) -> None:
        """Note a segment from cudaMalloc."""
        self._segments[start] = size
        insort(self._bases, start)
        for edge in (start, start + size):
            self._barriers[edge] = self._barriers.get(edge, 0) + 1

    def _grow(self, action: str, at: int, size: int) -> None:
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        if self._is_traced:
            self.steps.append(SegmentStep(self.step, action, at, size))

    def _shrink(self, action: str, at: int, size: int) -> None:
        self.reserved -= size
        if self._is_traced:
            self.steps.append(SegmentStep(self.step, action, at, size))

    def _take_segment(self, size: int, event: int) -> tuple[int, int]:
        """Get a segment from cudaMalloc: a block outside every list."""
        at = self._addresses.take(size, event)
        self._enclose(at, size)
        self._free_at[at] = size
        self._free_end[at + size] = at
        self._grow("segment_alloc", at, size)
        return at, size

    def _release(self, start: int, size: int, group: int) -> None:
        """Make a block free, merged with its free neighbours."""
        free = self._lists[group]
        end = start + size
        if end in self._free_at and end not in self._barriers:
            length = self._free_at.pop(end)
            del free[bisect_left(free, length << SHIFT | end)]
            end += length
        if start in self._free_end and start not in self._barriers:
            before = self._free_end.pop(start)
            del free[bisect_left(free, (start - before) << SHIFT | before)]
            start = before
        self._free_at[start] = end - start
        self._free_end[end] = start
        insort(free, (end - start) << SHIFT | start)
        if self._keeps_age:
            self._put_at[start] = self._searches

    def _drop_free(self, start: int, size: int, group: int) -> None:
        free = self._lists[group]
        del free[bisect_left(free, size << SHIFT | start)]
        del self._free_at[start], self._free_end[start + size]

    def _release_segment(self, start: int, size: int, group: int) -> None:
        self._drop_free(start, size, group)
        del self._segments[start]
        del self._bases[bisect_left(self._bases, start)]
        for edge in (start, start + size):
            if self._barriers[edge] == 1:
                del self._barriers[edge]
            else:
                self._barriers[edge] -= 1
        self._addresses.give_back(start, size)
        self._shrink("segment_free", start, size)

    def _is_native(self, address: int) -> bool:
        """Tell whether an address lies in a segment from cudaMalloc."""
        index = bisect_right(self._bases, address) - 1
        return index >= 0 and address < self._bases[index] + self._segments[self._bases[index]]

    def _first_native(self, free: list[int], index: int) -> int:
        """Return the first block from `index` on that lies in a segment from cudaMalloc."""
        while index < len(free) and not self._is_native(free[index] & MASK):
            index += 1
        return index

    def _cheapest_to_extend(self, free: list[int], index: int) -> int:
        """Compare blocks by the size that they can grow to, and step on while the next is strictly smaller."""
        unmapped = self._unmapped

        def extent(key: int) -> int:
            have = key >> SHIFT
            return have + unmapped.get((key & MASK) + have, 0)

        while index + 1 < len(free) and extent(free[index + 1]) < extent(free[index]):
            index += 1
        return index

    def _extend(self, size: int, group: int) -> tuple[int, int]:
        """Map pages at the lowest place where `size` bytes fit, behind or before what is free there."""
        start = self._place_to_extend(size, group)
        if start in self._unmapped:
            self._map(start, min(self._unmapped[start], size), group)
        while self._free_at[start] < size:
            end = start + self._free_at[start]
            self._map(end, min(size - self._free_at[start], self._unmapped[end]), group)
        have = self._free_at[start]
        free = self._lists[group]
        del free[bisect_left(free, have << SHIFT | start)]
        return start, have

    def _place_to_extend(self, size: int, group: int) -> int:
        for unmapped in self._unmapped_of[group]:
            start = self._free_end.get(unmapped, unmapped)
            room, cursor = 0, start
            while room < size:
                step = self._free_at.get(cursor) or self._unmapped.get(cursor)
                if step is None:
                    break
                room += step
                cursor += step
            if room >= size:
                return start
        base = self._virtual_base(group) if self._virtual_base else _VIRTUAL_BASE + group * 2 * _VIRTUAL
        # Pages are counted from the segment's beginning. There is one segment a group: its addresses do not run out.
        self._virtual[group] = base
        self._pages[group] = page_size(self.settings, is_small=bool(group & 1))
        self._unmapped[base] = _VIRTUAL
        insort(self._unmapped_of[group], base)
        return base

    def _map(self, start: int, size: int, group: int) -> None:
        page = self._pages[group]
        mapped = (size + page - 1) // page * page
        left = self._unmapped.pop(start) - mapped
        starts = self._unmapped_of[group]
        del starts[bisect_left(starts, start)]
        if left:
            self._unmapped[start + mapped] = left
            insort(starts, start + mapped)
        self._release(start, mapped, group)
        self._grow("segment_map", start, mapped)

    def _whole_pages(self, start: int, size: int, group: int) -> tuple[int, int]:
        """Return where the pages begin and end that lie wholly inside a range; the end may lie before the beginning."""
        page = self._pages[group]
        base = self._virtual[group]
        return base + (start - base + page - 1) // page * page, base + (start + size - base) // page * page

    def _unmap(self, start: int, size: int, group: int) -> None:
        """Give back the pages that lie wholly inside a free block."""
        low, high = self._whole_pages(start, size, group)
        if low >= high:
            return
        self._drop_free(start, size, group)
        for at, length in ((start, low - start), (high, start + size - high)):
            if length:
                self._free_at[at] = length
                self._free_end[at + length] = at
                insort(self._lists[group], length << SHIFT | at)
        starts = self._unmapped_of[group]
        at, length = low, high - low
        index = bisect_left(starts, at)
        if index < len(starts) and starts[index] == high:
            length += self._unmapped.pop(high)
            del starts[index]
        if index and starts[index - 1] + self._unmapped[starts[index - 1]] == at:
            at = starts[index - 1]
            length += self._unmapped[at]
        else:
            starts.insert(index, at)
        self._unmapped[at] = length
        self._shrink("segment_unmap", low, high - low)
        if length == _VIRTUAL:
            # Nothing is left of the segment; its addresses go back.
            del self._unmapped[at]
            starts.remove(at)

    def _homes_of_tied(self, free: list[int], index: int) -> set[int]:
        """Return the segments of all blocks as large as the one at `index`."""
        above = bisect_left(free, ((free[index] >> SHIFT) + 1) << SHIFT)
        return {self._bases[bisect_right(self._bases, key & MASK) - 1] for key in free[index:above]}
