"""Repetition in the order of one owner's allocations, where no line tells where an iteration begins.

A training loop inside a library runs on one line of the notebook. Its steps show as a sequence of sizes that comes
again and again. So do the equal layers of one forward pass, which keeps most of what it allocates; a step gives most of
it back. So the repetition must be long, frequent, and mostly freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.analysis.leaks.evidence import LEAST_ITERATIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Repetition", "repetitions"]

_LEAST_PERIODS = 5
_LEAST_ALLOCATIONS = 8
_FREED_SHARE = 0.8
_AGREEMENT = 0.9


class Repetition(NamedTuple):
    """The last `periods` periods of `length` allocations begin at index `first`."""

    first: int
    length: int
    periods: int


def repetitions(requested: NDArray[np.int64], stayed: NDArray[np.bool_], *, is_loop: bool = False) -> Repetition | None:
    """Find the period of a sequence of allocations that ends in the same work over and over.

    Parameters
    ----------
    requested
        Bytes asked for, in order, shape ``(n,)``.
    stayed
        Which are alive at the end.
    is_loop
        The code is known to loop, so that three periods of any length are enough, whatever they keep.

    Returns
    -------
    Repetition or None
        None where there is no period, fewer than five of them, or where a period keeps most of what it allocates.
    """
    least, allocations = (LEAST_ITERATIONS, 1) if is_loop else (_LEAST_PERIODS, _LEAST_ALLOCATIONS)
    if len(requested) < least * allocations:
        return None
    key = requested * 2 + stayed
    for length in _candidates(key, stayed, least, allocations):
        count, first = _periods(key, length)
        if count < least:
            continue
        part, alive = requested[first:], stayed[first:]
        if is_loop or int(part[alive].sum()) <= (1 - _FREED_SHARE) * int(part.sum()):
            return Repetition(first, length, count)
    return None


def _candidates(key: NDArray[np.int64], stayed: NDArray[np.bool_], periods: int, allocations: int) -> list[int]:
    """Return plausible lengths: distances between the last occurrences of what stayed, the rarest first."""
    kinds, counts = np.unique(key[stayed], return_counts=True)
    lengths: list[int] = []
    often = counts >= periods
    for kind in kinds[often][np.argsort(counts[often], kind="stable")][:8]:
        at = np.flatnonzero(key == kind)
        length = int(np.median(np.diff(at[-2 * periods :])))
        if length >= allocations and length not in lengths:
            lengths.append(length)
    return lengths


def _periods(key: NDArray[np.int64], length: int) -> tuple[int, int]:
    """Count how often the sequence repeats from its end backwards, and where that begins."""
    total = len(key)
    if length >= total:
        return 0, total
    agree = key[:-length] == key[length:]
    # Whole periods, counted from the end; the last one may be cut short or differ, as its variables are alive.
    usable = len(agree) // length * length
    if not usable:
        return 0, total
    share = agree[len(agree) - usable :].reshape(-1, length).mean(axis=1)[::-1]
    good = share >= _AGREEMENT
    if len(good) and not good[0]:
        good[0] = share[0] >= 0.5
    count = int(np.argmin(good)) if not good.all() else len(good)
    return count + 1 if count else 0, total - (count + 1) * length if count else total
