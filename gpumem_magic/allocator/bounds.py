"""How far settings can go: bytes that no setting can give back, and bytes that one could."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.program import Op
from gpumem_magic.allocator.rounding import round_sizes
from gpumem_magic.allocator.settings_model import AllocatorSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.program import Program

__all__ = ["Bound", "find_bound"]

# Placing every block with the whole future known takes k comparisons for block k.
_MAX_OFFLINE = 6000
# Gaps looked at for one request: the lowest ones. Without a bound a badly fragmented program would take minutes.
_MAX_GAPS = 500


@dataclass(frozen=True)
class Bound:
    """Limits of what any setting could reach.

    Attributes
    ----------
    live_peak
        Most bytes in use at once, requests rounded to 512 bytes: nothing can reserve less.
    packed_peak
        Bytes of an arrangement without segments that exists, the best of those that were tried.
    """

    live_peak: int
    packed_peak: int


def find_bound(program: Program, reserved_peak: int) -> Bound:
    """Bound what a program needs from below, and from above by arrangements that exist.

    Parameters
    ----------
    program
        The program.
    reserved_peak
        Reserved bytes that are known to suffice.
    """
    sizes = round_sizes(program.requested, AllocatorSettings())
    change = np.zeros(len(program.codes), dtype=np.int64)
    begins = program.codes == Op.ALLOC
    ends = (program.codes == Op.FREE) | (program.codes == Op.COMPLETE)
    change[begins] = sizes[program.arguments[begins]]
    change[ends] = -sizes[program.arguments[ends]]
    live = int(np.cumsum(change).max(initial=0))
    packed = min(_first_fit(program, sizes), reserved_peak)
    if packed > live and len(sizes) <= _MAX_OFFLINE:
        packed = min(packed, _largest_first(program, sizes))
    return Bound(live, max(packed, live))


def _first_fit(program: Program, sizes: NDArray[np.int64]) -> int:
    """Peak of one region that grows at its end, every request at the lowest place that is free."""
    size_of: list[int] = sizes.tolist()
    # -1: not in use. A recording that contradicts itself may free twice, or what it never allocated.
    address = [-1] * len(size_of)
    gaps: list[int] = []  # starts, ascending
    length: dict[int, int] = {}
    ends: dict[int, int] = {}
    top = peak = 0
    alloc, frees = int(Op.ALLOC), (int(Op.FREE), int(Op.COMPLETE))
    for code, number in program.steps():
        size = size_of[number] if code in {alloc, *frees} else 0
        if code == alloc:
            for index, start in enumerate(islice(gaps, _MAX_GAPS)):
                have = length[start]
                if have >= size:
                    del gaps[index], length[start]
                    if have > size:
                        gaps.insert(index, start + size)
                        length[start + size] = have - size
                        ends[start + have] = start + size
                    else:
                        del ends[start + have]
                    address[number] = start
                    break
            else:
                address[number] = top
                top += size
                peak = max(peak, top)
        elif code in frees:
            start, end = address[number], address[number] + size
            address[number] = -1
            if start < 0:
                continue
            if end in length:
                gap = length.pop(end)
                del gaps[bisect_left(gaps, end)], ends[end + gap]
                end += gap
            if start in ends:
                before = ends.pop(start)
                del gaps[bisect_left(gaps, before)], length[before]
                start = before
            if end == top:
                top = start
            else:
                insort(gaps, start)
                length[start] = end - start
                ends[end] = start
    return peak


def _largest_first(program: Program, sizes: NDArray[np.int64]) -> int:
    """Peak when every block is placed with the whole future known, the largest first, as low as it fits."""
    count = len(program.codes)
    first = np.zeros(len(sizes), dtype=np.int64)
    last = np.full(len(sizes), count, dtype=np.int64)
    step = np.arange(count)
    begins = program.codes == Op.ALLOC
    ends = (program.codes == Op.FREE) | (program.codes == Op.COMPLETE)
    first[program.arguments[begins]] = step[begins]
    last[program.arguments[ends]] = step[ends]
    order = np.argsort(-sizes, kind="stable")
    first, last, sizes = first[order], last[order], sizes[order]
    low = np.zeros(len(sizes), dtype=np.int64)
    for number in range(len(sizes)):
        beside = np.flatnonzero((first[:number] < last[number]) & (last[:number] > first[number]))
        if not len(beside):
            continue
        starts = low[beside]
        by_start = np.argsort(starts, kind="stable")
        starts = starts[by_start]
        tops = np.maximum.accumulate(starts + sizes[beside][by_start])
        # Room before each neighbour, after the highest end of those below it; past all of them there is always room.
        floors = np.concatenate([[0], tops])
        room = np.concatenate([starts, [np.iinfo(np.int64).max]]) - floors
        low[number] = floors[np.argmax(room >= sizes[number])]
    return int((low + sizes).max(initial=0))
