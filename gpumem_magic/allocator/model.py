"""The caching allocator as a state machine: what it would reserve for a program under given settings.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.6 to 2.12; read and held against recordings of
2.11).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.cache import MASK, SHIFT, Cache
from gpumem_magic.allocator.program import Op
from gpumem_magic.allocator.rounding import SMALL_LIMIT, round_sizes, split_thresholds
from gpumem_magic.allocator.sizes import segment_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.addresses import AddressModel
    from gpumem_magic.allocator.adopt import Region
    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.program import Program
    from gpumem_magic.allocator.settings_model import AllocatorSettings

__all__ = ["Failure", "Model"]

_ALLOC, _FREE, _FREE_LATER, _COMPLETE = int(Op.ALLOC), int(Op.FREE), int(Op.FREE_LATER), int(Op.COMPLETE)

# No device has so much, and an expandable segment's addresses do not reach further.
_MOST = 1 << 41


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


class Model(Cache):
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
    changes
        (event, settings) from which on other settings hold, ascending.
    waits
        Complete frees that wait for a stream once a segment was given back for a request: the driver waits for all
        work before it frees memory (on an H200 they were complete at the next request in 105 of 107 such cases). Not
        where a recording says itself when they completed.

    Attributes
    ----------
    reserved, reserved_peak
        Bytes at the end (or at death) and at most.
    retries
        Times the cache was freed for a request.
    emptied
        Times that an ``empty_cache`` of which the recording says nothing gave something back.
    spared
        Requests that failed in the recording, and for which a cached block would be there.
    failures
        Requests that failed, in order; the last one ended the run unless it was survived.
    has_ties
        True when the order of segments in the address space decided anything.
    step
        The operation that last needed more than a cached block.
    steps
        Every change of what is reserved, when `traced`.
    address
        Where each lifetime's block lay, -1 where it got none.
    """

    def __init__(
        self,
        program: Program,
        settings: AllocatorSettings,
        addresses: AddressModel,
        *,
        limit: int | None = None,
        survives: Callable[[int], bool] | None = None,
        virtual_base: Callable[[int], int] | None = None,
        traced: bool = False,
        changes: Sequence[tuple[int, AllocatorSettings]] = (),
        waits: bool = False,
    ) -> None:
        super().__init__(settings, 2 * len(program.groups), addresses, virtual_base)
        self.program = program
        self.limit = limit
        self.retries = 0
        self.emptied = 0
        self.spared = 0
        self.failures: list[Failure] = []
        self.has_ties = False
        self.address = [-1] * len(program.requested)
        self._is_traced = traced
        self._survives = survives
        self._waits = waits
        self._changes = [(int(np.searchsorted(program.events, event)), after) for event, after in changes]
        rounded, threshold = self._sizes()
        self._need: list[int] = rounded.tolist()
        self._threshold: list[int] = threshold.tolist()
        # Group 2k is pair k's large pool, 2k + 1 its small pool.
        self._group: list[int] = (program.group * 2 + (rounded <= SMALL_LIMIT)).tolist()
        self._held = [0] * len(program.requested)
        self._pending: dict[int, None] = {}
        self._is_capturing = False
        # A free block that would be given back, and its list: while it is there, no other is looked for.
        self._witness = (-1, 0)
        self._freed_pairs: list[int] = []
        default = [index for index, (pool, _) in enumerate(program.groups) if pool == (0, 0)]
        default.sort(key=lambda index: program.groups[index][1])
        # While a private pool is in use the cache is not given back for a request.
        self._private = frozenset(
            2 * index + small for index, (pool, _) in enumerate(program.groups) if pool != (0, 0) for small in (0, 1)
        )
        # The large pool first, each by stream; private pools keep what they have.
        self._releasable = [2 * index for index in default] + [2 * index + 1 for index in default]
        every = [settings, *(after for _, after in changes)]
        self._keeps_age = limit is not None and any(one.garbage_collection_threshold > 0 for one in every)
        self._is_mixed = len({one.expandable_segments for one in every}) > 1
        self._aged = frozenset(2 * index for index in default)

    def begin_with(self, history: History, regions: Sequence[Region]) -> int:
        """Begin in the middle of a process instead of with the program's own first requests.

        Returns
        -------
        int
            The step to `run` from: the first that is an event of the recording.
        """
        self.adopt(regions)
        lives = history.lifetimes
        for number in np.flatnonzero(lives.alloc_event < 0).tolist():
            self.address[number] = int(lives.address[number])
            self._held[number] = int(lives.size[number])
            if lives.free_event[number] == -2:
                self._pending[number] = None
        return int(np.count_nonzero(self.program.events < 0))

    def _sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rounded size and split threshold of every lifetime."""
        program = self.program
        rounded = round_sizes(program.requested, self.settings)
        threshold = split_thresholds(rounded, self.settings)
        for start, settings in self._changes:
            later = program.arguments[start:][program.codes[start:] == Op.ALLOC]
            rounded[later] = round_sizes(program.requested[later], settings)
            threshold[later] = split_thresholds(rounded[later], settings)
        return rounded, threshold

    def run(self, first: int = 0) -> None:
        """Play the program from step `first` until its end or until a request fails for good."""
        for stop, settings in self._changes:
            if not self._play(first, stop):
                return
            first = max(first, stop)
            self.settings = settings
        self._play(first, len(self.program.codes))

    def walk(self, first: int = 0) -> Iterator[int]:
        """Play the program as `run` does, and stop before each step to tell its number."""
        for stop, settings in [*self._changes, (len(self.program.codes), None)]:
            for step in range(first, stop):
                yield step
                if not self._play(step, step + 1):
                    return
            first = max(first, stop)
            self.settings = settings or self.settings

    @property
    def would_show(self) -> bool:
        """Whether an ``empty_cache`` here would leave an event, or cannot be called because a capture is under way."""
        if self._is_capturing or self._pending:
            return True
        key, group = self._witness
        free = self._lists[group]
        index = bisect_left(free, key)
        if index < len(free) and free[index] == key and self._is_whole(key, group):
            return True
        pairs = [group for pair in self._freed_pairs for group in (2 * pair, 2 * pair + 1)]
        for group in (*self._releasable, *pairs):
            for key in self._lists[group]:
                if self._is_whole(key, group):
                    self._witness = (key, group)
                    return True
        return False

    def _is_whole(self, key: int, group: int) -> bool:
        """Tell whether a free block would be given back, or pages of it."""
        start, size = key & MASK, key >> SHIFT
        if self._segments.get(start) == size:
            return True
        if not self._virtual[group] or (self._is_mixed and self._is_native(start)):
            return False
        low, high = self._whole_pages(start, size, group)
        return low < high

    def _play(self, first: int, stop: int) -> bool:  # noqa: C901, PLR0912, PLR0915 (the hot loop: a call costs more than it would hide)
        """Play steps `first` to `stop`; False when a request fails for good."""
        lists, group, need, threshold = self._lists, self._group, self._need, self._threshold
        free_at, free_end, barriers, unmapped = self._free_at, self._free_end, self._barriers, self._unmapped
        address, held = self.address, self._held
        collects, max_split = self._keeps_age, self.settings.max_split_size
        only_native = self._is_mixed and not self.settings.expandable_segments
        asks_for_ties = not (self.has_ties or self._is_mixed or self.settings.expandable_segments)
        steps = iter(self.program.steps()[first:stop])
        for code, number in steps:
            if code == _ALLOC:
                size = need[number]
                home = group[number]
                free = lists[home]
                index = bisect_left(free, size << SHIFT)
                if only_native:
                    index = self._first_native(free, index)
                found = None
                if index < len(free):
                    key = free[index]
                    at = key & MASK
                    have = free_at[at]
                    if unmapped and at + have in unmapped:
                        index = self._cheapest_to_extend(free, index)
                        key = free[index]
                        at, have = key & MASK, key >> SHIFT
                    if max_split is None or have < max_split or not self._is_unsuitable(size, have):
                        if asks_for_ties and index + 1 < len(free) and free[index + 1] >> SHIFT == have:
                            asks_for_ties = not self._is_tie(free, index)
                        del free[index]
                        found = key
                if collects:
                    self._searches += home in self._aged
                if found is None:
                    # Counted here only: an index in every turn would cost 5 %.
                    self.step = step = stop - 1 - length_hint(steps)
                    block = self._obtain(size, home)
                    if block is None:
                        goes_on = self._survives is not None and self._survives(number)
                        self.failures.append(Failure(step, number, size, goes_on))
                        if not goes_on:
                            return False
                        continue
                    at, have = block
                rest = have - size
                del free_at[at]
                if rest >= threshold[number]:
                    end = at + size
                    free_at[end] = rest
                    free_end[end + rest] = end
                    insort(free, rest << SHIFT | end)
                    if collects:
                        self._put_at[end] = self._searches
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
                    del free[bisect_left(free, size << SHIFT | end)]
                    end += size
                if at in free_end and at not in barriers:
                    start = free_end.pop(at)
                    del free[bisect_left(free, (at - start) << SHIFT | start)]
                    at = start
                size = end - at
                free_at[at] = size
                free_end[end] = at
                insort(free, size << SHIFT | at)
                if collects:
                    self._put_at[at] = self._searches
            else:
                self.step = stop - 1 - length_hint(steps)
                self._other(code, number)
        return True

    def _other(self, code: int, number: int) -> None:
        """Do a rarer operation."""
        if code == _FREE_LATER:
            if self.address[number] >= 0:
                self._pending[number] = None
        elif code == _COMPLETE:
            self._complete(number)
        elif code in {Op.EMPTY_CACHE, Op.HIDDEN_EMPTY_CACHE}:
            self._complete_all()
            self._release_all()
        elif code == Op.POSSIBLE_EMPTY_CACHE:
            held, waiting = self.reserved, len(self._pending)
            self._complete_all()
            self._release_all()
            self.emptied += self.reserved < held or waiting > 0
        elif code == Op.FAIL:
            self._fail(number)
        elif code == Op.FREE_POOL:
            self._freed_pairs.append(number)
        else:
            self._is_capturing = code == Op.BEGIN_CAPTURE

    def _fail(self, number: int) -> None:
        """Ask again for what failed in the recording; what it would have been used for is not known."""
        size, pair = self.program.failed[number]
        group = 2 * pair + (size <= SMALL_LIMIT)
        if self._keeps_age:
            self._searches += group in self._aged
        if self._has_free(size, group):
            self.spared += 1
            return
        block = self._obtain(size, group)
        if block is None:
            # The program went on when it caught the error: it then asked for something again.
            goes_on = bool(np.any(self.program.codes[self.step + 1 :] == Op.ALLOC))
            self.failures.append(Failure(self.step, -1, size, goes_on))
        else:
            at, have = block
            insort(self._lists[group], have << SHIFT | at)

    def _has_free(self, size: int, group: int) -> bool:
        """Look for a free block as `run` does."""
        free = self._lists[group]
        index = bisect_left(free, size << SHIFT)
        if self._is_mixed and not self.settings.expandable_segments:
            index = self._first_native(free, index)
        if index == len(free):
            return False
        if (free[index] & MASK) + (free[index] >> SHIFT) in self._unmapped:
            index = self._cheapest_to_extend(free, index)
        return not self._is_unsuitable(size, free[index] >> SHIFT)

    def _is_unsuitable(self, size: int, have: int) -> bool:
        """Tell whether `max_split_size` forbids a block of `have` bytes for `size` bytes.

        Small blocks never get that large, except in expandable segments.
        """
        limit = self.settings.max_split_size
        if limit is None:
            return False
        return size < limit <= have or (size >= limit and have >= size + self.settings.max_non_split_rounding)

    def _complete(self, number: int) -> None:
        if self._pending.pop(number, 0) is None:
            self._release(self.address[number], self._held[number], self._group[number])

    def _complete_all(self) -> None:
        for number in list(self._pending):
            self._complete(number)

    def _obtain(self, size: int, group: int) -> tuple[int, int] | None:
        """Get a block for which the cache has none: the ladder of ``malloc``. It is in no list."""
        held = len(self._segments)
        if self._keeps_age and self.settings.garbage_collection_threshold > 0:
            self._collect()
        waited = len(self._segments) < held
        found = self._ask_driver(size, group)
        if found is None and self.settings.max_split_size is not None and self._release_oversize(size, group):
            waited = True
            found = self._ask_driver(size, group)
        if waited and self._waits and not self._is_capturing:
            # A block in no list is not merged with what becomes free now.
            self._complete_all()
        if found is None and not self._is_capturing and group not in self._private:
            self._complete_all()
            self._release_all()
            self.retries += 1
            found = self._ask_driver(size, group)
        return found

    def _ask_driver(self, size: int, group: int) -> tuple[int, int] | None:
        """Get memory from the driver: a block outside every list, or None when the limit is in the way."""
        segment = segment_size(size, self.settings)
        if self.reserved + segment > (_MOST if self.limit is None else min(self.limit, _MOST)):
            return None
        if self.settings.expandable_segments:
            return self._extend(size, group)
        return self._take_segment(segment, int(self.program.events[self.step]))

    def _is_tie(self, free: list[int], index: int) -> bool:
        """Tell whether the lowest address decides between blocks that are not alike: the driver's order matters then.

        Whole segments of one size are alike; blocks inside one expandable segment have an order of their own.
        """
        homes = self._homes_of_tied(free, index)
        have = free[index] >> SHIFT
        self.has_ties = len(homes) > 1 and any(self._segments[home] != have for home in homes)
        return self.has_ties

    def _release_all(self) -> None:
        """Give back every cached block that is a whole segment, and whole pages of expandable segments."""
        for small in (0, 1):
            self._release_groups([group for group in self._releasable if group & 1 == small])
        for pair in self._freed_pairs:
            self._release_groups([2 * pair + 1])
            self._release_groups([2 * pair])

    def _release_groups(self, groups: Sequence[int]) -> None:
        """Give back what is whole in the lists of one pool."""
        mapped = []
        for group in groups:
            for start, size in [(key & MASK, key >> SHIFT) for key in self._lists[group]]:
                if self._segments.get(start) == size:
                    self._release_segment(start, size, group)
                elif self.settings.expandable_segments if not self._is_mixed else not self._is_native(start):
                    mapped.append((start, size, group))
        for start, size, group in mapped:
            self._unmap(start, size, group)

    def _release_oversize(self, size: int, group: int) -> bool:
        """Give back blocks that are too large to be split, as many as the request needs."""
        limit = self.settings.max_split_size
        if limit is None or self.settings.expandable_segments:
            return False
        wanted = max(size, limit)
        free = self._lists[group]
        index = bisect_left(free, wanted << SHIFT)
        if index < len(free):
            self._give_back_block(free[index], group)
            return True
        released = 0
        while free and released < wanted and free[-1] >> SHIFT >= limit:
            released += free[-1] >> SHIFT
            self._give_back_block(free[-1], group)
        return released >= wanted

    def _give_back_block(self, key: int, group: int) -> None:
        start, size = key & MASK, key >> SHIFT
        if self._segments.get(start) == size:
            self._release_segment(start, size, group)

    def _collect(self) -> None:
        """Give back large cached segments that went unused for longer than the mean (garbage collection)."""
        assert self.limit is not None  # noqa: S101 (for the type checker; `_collects` says so)
        threshold = int(self.settings.garbage_collection_threshold * self.limit)
        if self.reserved <= threshold:
            return
        target = self.reserved - threshold
        blocks = [
            (key & MASK, key >> SHIFT, group)
            for group in self._releasable
            if group in self._aged
            for key in self._lists[group]
            if self._segments.get(key & MASK) == key >> SHIFT
        ]
        ages = {start: self._searches - self._put_at.get(start, self._searches) for start, _, _ in blocks}
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
