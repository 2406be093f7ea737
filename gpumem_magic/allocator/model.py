"""The caching allocator as a state machine: what it would reserve for a program under given settings.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.6 to 2.12; read and held against recordings of
2.11). Free blocks are one sorted list for each (pool, stream, small or large) of ``size << 64 | address``, so that the
first entry at or above ``size << 64`` is torch's best fit with the lowest address on ties.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.program import Op
from gpumem_magic.allocator.rounding import SMALL_LIMIT, round_sizes, split_thresholds
from gpumem_magic.allocator.sizes import page_size, segment_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.allocator.addresses import AddressModel
    from gpumem_magic.allocator.program import Program
    from gpumem_magic.allocator.settings_model import AllocatorSettings

__all__ = ["Failure", "Model", "SegmentStep"]

_SHIFT = 64
_MASK = (1 << _SHIFT) - 1
# Expandable segments reserve 9/8 of the device's memory in addresses; only "large enough" matters here.
_VIRTUAL = 1 << 42
_VIRTUAL_BASE = 1 << 46
_ALLOC, _FREE, _FREE_LATER, _COMPLETE = int(Op.ALLOC), int(Op.FREE), int(Op.FREE_LATER), int(Op.COMPLETE)


@dataclass(frozen=True)
class Failure:
    """A request that could not be satisfied.

    `lifetime` is -1 for one that failed in the recording too; the program is known to go on after it when
    `is_survived`.
    """

    step: int
    lifetime: int
    size: int
    is_survived: bool


@dataclass(frozen=True)
class SegmentStep:
    """A change of what is reserved: `action` is torch's name for it, `step` the operation that caused it."""

    step: int
    action: str
    address: int
    size: int


@dataclass
class Model:
    """One run of the allocator.

    Parameters
    ----------
    program
        What is asked.
    settings
        Under which settings.
    addresses
        Where segments from cudaMalloc go.
    limit
        Most bytes that may be reserved (memory fraction), None for no limit.
    survives
        Says of a lifetime whether the program goes on when its request fails (a library that tries something else).
    virtual_base
        Gives the address of an expandable segment of a group; by default far from everything else.
    traced
        Keep `steps`.
    """

    program: Program
    settings: AllocatorSettings
    addresses: AddressModel
    limit: int | None = None
    survives: Callable[[int], bool] | None = None
    virtual_base: Callable[[int], int] | None = None
    traced: bool = False

    # Results.
    reserved: int = 0
    reserved_peak: int = 0
    retries: int = 0
    failures: list[Failure] = field(default_factory=list)
    has_ties: bool = False
    steps: list[SegmentStep] = field(default_factory=list)
    address: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.program.requested)
        rounded = round_sizes(self.program.requested, self.settings)
        self._need: list[int] = rounded.tolist()
        self._threshold: list[int] = split_thresholds(rounded, self.settings).tolist()
        # Group 2k is pair k's large pool, 2k + 1 its small pool.
        self._group: list[int] = (self.program.group * 2 + (rounded <= SMALL_LIMIT)).tolist()
        self.address = [-1] * count
        self._held = [0] * count
        groups = 2 * len(self.program.groups)
        self._lists: list[list[int]] = [[] for _ in range(groups)]
        self._free_at: dict[int, int] = {}
        self._free_end: dict[int, int] = {}
        self._segments: dict[int, tuple[int, int]] = {}  # address → (size, group)
        self._barriers: dict[int, int] = {}
        self._bases: list[int] = []  # of `_segments`, ascending
        self._unmapped: dict[int, int] = {}  # address → size
        self._bases_of = [0] * groups
        self._unmapped_of: list[list[int]] = [[] for _ in range(groups)]
        self._pending: dict[int, None] = {}
        self._is_capturing = False
        self._step = 0
        default = [index for index, (pool, _) in enumerate(self.program.groups) if pool == (0, 0)]
        default.sort(key=lambda index: self.program.groups[index][1])
        self._releasable = [2 * index for index in default] + [2 * index + 1 for index in default]
        self._collects = self.limit is not None and self.settings.garbage_collection_threshold > 0
        # Garbage collection looks at blocks of the default pool's large half: when was each put there?
        self._searches = 0
        self._age_base: dict[int, int] = {}
        self._aged = frozenset(2 * index for index in default)

    def run(self) -> None:
        """Play the program until its end or until a request fails for good."""
        lists, group, need, threshold = self._lists, self._group, self._need, self._threshold
        free_at, free_end, barriers = self._free_at, self._free_end, self._barriers
        address, held = self.address, self._held
        is_plain = not self._collects and not self.settings.expandable_segments and self.settings.max_split_size is None
        for step, (code, number) in enumerate(self.program.steps()):
            if code == _ALLOC:
                size = need[number]
                free = lists[group[number]]
                index = bisect_left(free, size << _SHIFT)
                if is_plain and index < len(free):
                    key = free[index]
                    if not self.has_ties and index + 1 < len(free) and free[index + 1] >> _SHIFT == key >> _SHIFT:
                        self._judge_tie(free, index)
                    del free[index]
                    at, have = key & _MASK, key >> _SHIFT
                else:
                    self._step = step
                    found = self._find(size, group[number], index)
                    if found is None:
                        goes_on = self.survives is not None and self.survives(number)
                        self.failures.append(Failure(step, number, size, goes_on))
                        if not goes_on:
                            return
                        continue
                    at, have = found
                rest = have - size
                del free_at[at]
                if rest >= threshold[number]:
                    end = at + size
                    free_at[end] = rest
                    free_end[end + rest] = end
                    insort(free, rest << _SHIFT | end)
                    if self._collects:
                        self._age_base[end] = self._searches
                    held[number] = size
                else:
                    del free_end[at + have]
                    held[number] = have
                address[number] = at
            elif code == _FREE:
                at = address[number]
                if at < 0:
                    continue
                # `_release`, inlined: half of all operations.
                free = lists[group[number]]
                end = at + held[number]
                if end in free_at and end not in barriers:
                    size = free_at.pop(end)
                    del free[bisect_left(free, size << _SHIFT | end)]
                    end += size
                if at in free_end and at not in barriers:
                    start = free_end.pop(at)
                    del free[bisect_left(free, (at - start) << _SHIFT | start)]
                    at = start
                size = end - at
                free_at[at] = size
                free_end[end] = at
                insort(free, size << _SHIFT | at)
                if self._collects:
                    self._age_base[at] = self._searches
            else:
                self._step = step
                if not self._other(code, number):
                    return

    def _other(self, code: int, number: int) -> bool:
        """Do a rarer operation. False when the program ends here."""
        if code == _FREE_LATER:
            if self.address[number] >= 0:
                self._pending[number] = None
        elif code == _COMPLETE:
            self._complete(number)
        elif code == Op.EMPTY_CACHE:
            self._complete_all()
            self._release_all()
        elif code == Op.FAIL:
            return self._fail(number)
        else:
            self._is_capturing = code == Op.BEGIN_CAPTURE
        return True

    def _fail(self, number: int) -> bool:
        """Ask again for what failed in the recording; what it would have been used for is not known."""
        size, pair = self.program.failed[number]
        group = 2 * pair + (size <= SMALL_LIMIT)
        found = self._find(size, group, bisect_left(self._lists[group], size << _SHIFT))
        if found is None:
            # The program went on when it caught the error: it then asked for something again.
            goes_on = bool(np.any(self.program.codes[self._step + 1 :] == Op.ALLOC))
            self.failures.append(Failure(self._step, -1, size, goes_on))
            return True
        at, have = found
        insort(self._lists[group], have << _SHIFT | at)
        return True

    def _complete(self, number: int) -> None:
        if self._pending.pop(number, 0) is None:
            self._release(self.address[number], self._held[number], self._group[number])

    def _complete_all(self) -> None:
        for number in list(self._pending):
            self._complete(number)

    def _find(self, size: int, group: int, index: int) -> tuple[int, int] | None:
        """Take a block of at least `size` bytes out of its list, from the cache or from the driver."""
        found = self._search(size, group, index)
        if found is not None:
            return found
        if self._collects:
            self._collect()
        found = self._obtain(size, group)
        if found is None and self.settings.max_split_size is not None and self._release_oversize(size, group):
            found = self._obtain(size, group)
        if found is None and not self._is_capturing:
            self._complete_all()
            self._release_all()
            self.retries += 1
            found = self._obtain(size, group)
        return found

    def _search(self, size: int, group: int, index: int) -> tuple[int, int] | None:
        if self._collects and group in self._aged:
            self._searches += 1
        free = self._lists[group]
        if index >= len(free):
            return None
        key = free[index]
        if self.settings.expandable_segments:
            index = self._cheapest_to_extend(free, index)
            key = free[index]
        at, have = key & _MASK, key >> _SHIFT
        limit = self.settings.max_split_size
        if limit is not None and not group & 1:
            if size < limit <= have:
                return None
            if size >= limit and have >= size + self.settings.max_non_split_rounding:
                return None
        if not self.has_ties and index + 1 < len(free) and free[index + 1] >> _SHIFT == have:
            self._judge_tie(free, index)
        del free[index]
        return at, have

    def _cheapest_to_extend(self, free: list[int], index: int) -> int:
        """Compare blocks by the size that they can grow to, and step on while the next is strictly smaller."""
        unmapped = self._unmapped

        def extent(key: int) -> int:
            have = key >> _SHIFT
            return have + unmapped.get((key & _MASK) + have, 0)

        while index + 1 < len(free) and extent(free[index + 1]) < extent(free[index]):
            index += 1
        return index

    def _judge_tie(self, free: list[int], index: int) -> None:
        """Note when the lowest address decides between blocks that are not alike, so that the driver's order matters.

        Whole segments of one size are alike; blocks inside one expandable segment have an order of their own.
        """
        if self.settings.expandable_segments:
            return
        have = free[index] >> _SHIFT
        tied = [key & _MASK for key in free[index : bisect_left(free, (have + 1) << _SHIFT)]]
        homes = {self._bases[bisect_right(self._bases, at) - 1] for at in tied}
        self.has_ties = len(homes) > 1 and any(self._segments[home][0] != have for home in homes)

    def _obtain(self, size: int, group: int) -> tuple[int, int] | None:
        """Get memory from the driver: a block outside every list, or None when the limit is in the way."""
        segment = segment_size(size, self.settings)
        if self.limit is not None and self.reserved + segment > self.limit:
            return None
        if self.settings.expandable_segments:
            return self._extend(size, group)
        at = self.addresses.take(segment)
        self._segments[at] = (segment, group)
        insort(self._bases, at)
        for edge in (at, at + segment):
            self._barriers[edge] = self._barriers.get(edge, 0) + 1
        self._free_at[at] = segment
        self._free_end[at + segment] = at
        self._grow("segment_alloc", at, segment)
        return at, segment

    def _grow(self, action: str, at: int, size: int) -> None:
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        if self.traced:
            self.steps.append(SegmentStep(self._step, action, at, size))

    def _shrink(self, action: str, at: int, size: int) -> None:
        self.reserved -= size
        if self.traced:
            self.steps.append(SegmentStep(self._step, action, at, size))

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
        del free[bisect_left(free, have << _SHIFT | start)]
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
        base = self.virtual_base(group) if self.virtual_base else _VIRTUAL_BASE + group * 2 * _VIRTUAL
        # Pages are counted from the segment's beginning. There is one segment a group: its addresses do not run out.
        self._bases_of[group] = base
        self._unmapped[base] = _VIRTUAL
        insort(self._unmapped_of[group], base)
        return base

    def _map(self, start: int, size: int, group: int) -> None:
        page = page_size(self.settings, is_small=bool(group & 1))
        mapped = (size + page - 1) // page * page
        left = self._unmapped.pop(start) - mapped
        starts = self._unmapped_of[group]
        del starts[bisect_left(starts, start)]
        if left:
            self._unmapped[start + mapped] = left
            insort(starts, start + mapped)
        self._release(start, mapped, group)
        self._grow("segment_map", start, mapped)

    def _unmap(self, start: int, size: int, group: int) -> None:
        """Give back the pages that lie wholly inside a free block."""
        page = page_size(self.settings, is_small=bool(group & 1))
        base = self._bases_of[group]
        low = base + (start - base + page - 1) // page * page
        high = base + (start + size - base) // page * page
        if low >= high:
            return
        self._drop_free(start, size, group)
        for at, length in ((start, low - start), (high, start + size - high)):
            if length:
                self._free_at[at] = length
                self._free_end[at + length] = at
                insort(self._lists[group], length << _SHIFT | at)
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

    def _release(self, start: int, size: int, group: int) -> None:
        """Make a block free, merged with its free neighbours."""
        free = self._lists[group]
        end = start + size
        if end in self._free_at and end not in self._barriers:
            length = self._free_at.pop(end)
            del free[bisect_left(free, length << _SHIFT | end)]
            end += length
        if start in self._free_end and start not in self._barriers:
            before = self._free_end.pop(start)
            del free[bisect_left(free, (start - before) << _SHIFT | before)]
            start = before
        self._free_at[start] = end - start
        self._free_end[end] = start
        insort(free, (end - start) << _SHIFT | start)
        if self._collects:
            self._age_base[start] = self._searches

    def _drop_free(self, start: int, size: int, group: int) -> None:
        free = self._lists[group]
        del free[bisect_left(free, size << _SHIFT | start)]
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
        self.addresses.give_back(start, size)
        self._shrink("segment_free", start, size)

    def _release_all(self) -> None:
        """Give back every cached block that is a whole segment, and whole pages of expandable segments."""
        for group in self._releasable:
            blocks = [(key & _MASK, key >> _SHIFT) for key in self._lists[group]]
            mapped = []
            for start, size in blocks:
                if self._segments.get(start, (0, 0))[0] == size:
                    self._release_segment(start, size, group)
                elif self.settings.expandable_segments:
                    mapped.append((start, size))
            for start, size in mapped:
                self._unmap(start, size, group)

    def _release_oversize(self, size: int, group: int) -> bool:
        """Give back blocks that are too large to be split, as many as the request needs."""
        limit = self.settings.max_split_size
        if limit is None or self.settings.expandable_segments:
            return False
        wanted = max(size, limit)
        free = self._lists[group]
        index = bisect_left(free, wanted << _SHIFT)
        if index < len(free):
            self._give_back_block(free[index], group)
            return True
        released = 0
        while free and released < wanted and free[-1] >> _SHIFT >= limit:
            released += free[-1] >> _SHIFT
            self._give_back_block(free[-1], group)
        return released >= wanted

    def _give_back_block(self, key: int, group: int) -> None:
        start, size = key & _MASK, key >> _SHIFT
        self._release_segment(start, size, group)

    def _collect(self) -> None:
        """Give back large cached segments that went unused for longer than the mean (garbage collection)."""
        assert self.limit is not None  # noqa: S101 (for the type checker; `_collects` says so)
        threshold = int(self.settings.garbage_collection_threshold * self.limit)
        if self.reserved <= threshold:
            return
        target = self.reserved - threshold
        blocks = [
            (key & _MASK, key >> _SHIFT, group)
            for group in self._releasable
            if group in self._aged
            for key in self._lists[group]
            if self._segments.get(key & _MASK, (0, 0))[0] == key >> _SHIFT
        ]
        ages = {start: self._searches - self._age_base[start] for start, _, _ in blocks}
        total, reclaimed, freed = sum(ages.values()), 0, True
        while reclaimed < target and freed and blocks:
            mean = total / len(blocks)
            freed = False
            kept = []
            for start, size, group in blocks:
                if ages[start] >= mean:
                    freed = True
                    reclaimed += size
                    total -= ages[start]
                    self._release_segment(start, size, group)
                else:
                    kept.append((start, size, group))
            blocks = kept
