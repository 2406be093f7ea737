"""Survivors by iteration, and what they prove.

The evidence is which iteration each surviving block was allocated in. In a loop that leaks nothing, what is alive at
the end comes from the last iteration (its variables), the last but one (what was kept for one round), or the first
(optimizer state, workspaces, caches). In one that leaks, it comes from everywhere. Sizes may vary from batch to batch
without any influence on that.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LEAST_ITERATIONS", "Shape", "Survivors", "blocks_to_count", "judge", "regrown", "rhythm"]

# A verdict needs evidence over this many iterations.
LEAST_ITERATIONS = 3
# With so few iterations, those that left something must have left the same.
_FEW = 4
_SAME = 0.1


# Of the distances between iterations that left something, so many must be the same to be called a period.
_REGULAR = 0.8
# A level that was reached in the first so many iterations, and is not passed in the rest, is a bound.
_EARLY, _LEVEL = 2 / 3, 0.9


class Shape(enum.Enum):
    """How the survivors of one line lie over the iterations."""

    NOTHING = "what one iteration needs"
    ONCE = "made in the first iterations"
    WINDOW = "the last few are kept"
    GROWTH = "more with each iteration"


class Survivors(NamedTuple):
    """One line's survivors.

    Attributes
    ----------
    shape
        What they prove.
    grown
        Iterations that left something, for `Shape.GROWTH`.
    typical
        Median of what one of these left, the first iteration not counted, in bytes.
    once
        Bytes that stayed from the first iterations, beyond what others left; for `Shape.WINDOW` all that it holds.
    span
        For `Shape.ONCE` how many first iterations these are, for `Shape.WINDOW` how many it holds.
    """

    shape: Shape
    grown: int = 0
    typical: int = 0
    once: int = 0
    span: int = 1


def judge(
    iteration: NDArray[np.integer[Any]],
    ended: NDArray[np.integer[Any]],
    size: NDArray[np.int64],
    iterations: int,
) -> Survivors:
    """Judge the allocations of one line.

    Parameters
    ----------
    iteration
        Iteration in which each was made, from 0.
    ended
        Iteration in which it was freed; -1: alive at the end.
    size
        Bytes.
    iterations
        Number of iterations.
    """
    alive = ended < 0
    left = np.bincount(iteration[alive], size[alive], iterations).astype(np.int64)
    which = np.flatnonzero(left)
    if iterations < LEAST_ITERATIONS or not len(which):
        return Survivors(Shape.NOTHING)
    first, last = int(which[0]), int(which[-1])
    if len(which) < LEAST_ITERATIONS:
        early = which[which < min(2, iterations - 2)]
        # The last iteration's own variables are no warm-up, however few iterations there are.
        once = int(left[early].sum()) if len(early) else 0
        return Survivors(Shape.ONCE if once else Shape.NOTHING, once=once, span=int(early[-1]) + 1 if once else 1)
    steady = which[which > 0] if first == 0 else which
    typical = int(np.median(left[steady]))
    if iterations <= _FEW and np.ptp(left[steady]) > _SAME * max(typical, 1):
        return Survivors(Shape.NOTHING)
    gap = int(np.median(np.diff(which)))
    if iterations - 1 - last > 2 * gap:
        return Survivors(Shape.ONCE, once=int(left.sum()), span=last + 1)
    if _is_bounded(iteration, ended, iterations):
        return Survivors(Shape.WINDOW, once=int(left.sum()), span=len(which))
    once = max(int(left[0]) - typical, 0) if first == 0 else 0
    return Survivors(Shape.GROWTH, len(which), typical, once if once > typical else 0)


def _is_bounded(iteration: NDArray[np.integer[Any]], ended: NDArray[np.integer[Any]], iterations: int) -> bool:
    """Tell whether as many iterations were kept long before the end as at the end: a window, the best few, a pool.

    What grows passes any former level until the end; at two thirds of the way it has two thirds of it.
    """
    until = np.zeros(iterations, np.int64)
    np.maximum.at(until, iteration, np.where(ended < 0, iterations, ended))
    made = np.arange(iterations)
    # An iteration's memory counts as kept while later iterations run. A variable that is bound anew lives for one more.
    kept = until > made + 1
    change = np.zeros(iterations + 2, np.int64)
    np.add.at(change, made[kept] + 1, 1)
    np.add.at(change, until[kept], -1)
    level = np.cumsum(change)[:iterations]
    return bool(level[: int(iterations * _EARLY)].max() >= _LEVEL * level[-1] > 0)


def blocks_to_count(
    size: NDArray[np.int64], iteration: NDArray[np.integer[Any]], left: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell which survivors count as growth: of the last iteration no more than any other left, the first one apart.

    What it has beyond that are its variables, which the next one would have bound anew.

    Parameters
    ----------
    size, iteration
        Bytes of each survivor, in the order in which they were made, and when that was.
    left
        Bytes that each iteration left.
    """
    counts = np.ones(len(size), bool)
    last = len(left) - 1
    steady = left[1:last]
    if not steady.any():
        return counts
    most, now = int(steady.max()), int(left[last])
    # The newest first: what is kept is mostly made before what is only bound.
    for index in np.flatnonzero(iteration == last)[::-1].tolist():
        if now - int(size[index]) >= most:
            now -= int(size[index])
            counts[index] = False
    return counts


def rhythm(iteration: NDArray[np.integer[Any]]) -> int | None:
    """Return how many iterations lie between two of these, in order; None when there is no such number."""
    distances, counts = np.unique(np.diff(np.unique(iteration)), return_counts=True)
    if not len(counts):
        return None
    most = int(np.argmax(counts))
    return int(distances[most]) if counts[most] >= _REGULAR * counts.sum() else None


def regrown(
    iteration: NDArray[np.integer[Any]], ended: NDArray[np.integer[Any]], requested: NDArray[np.int64], iterations: int
) -> tuple[int, int, int] | None:
    """Find an allocation that every iteration makes anew and larger, the last of which is alive.

    Returns
    -------
    tuple or None
        Iterations, bytes that it grew by each time, and its last size.
    """
    outlives = (ended < 0) | (ended > iteration)
    largest = np.zeros(iterations, np.int64)
    np.maximum.at(largest, iteration[outlives], requested[outlives])
    run = largest[np.argmax(largest > 0) :]
    # The first ones may be other things.
    run = run[1:] if len(run) > _FEW + 2 else run
    if len(run) < _FEW + 1 or not run.all() or not bool((ended < 0).any()):
        return None
    step = np.diff(run)
    typical = int(np.median(step))
    if typical <= 0 or np.count_nonzero(np.abs(step - typical) > _SAME * typical + 512) > len(step) // 10:
        return None
    if int(requested[ended < 0].max()) < int(run[-1]):
        return None
    return len(run), typical, int(run[-1])
