"""A time axis with its idle stretches folded away. The rule is the view's (``labextension/src/view/axis/folds.ts``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FoldedAxis", "fold_axis"]

# A stretch without any change is folded when it is longer than this share of all that stays unfolded.
_FOLD_SHARE = 0.35
# Nobody waits in a shorter stretch: it is folded only when it is longer than all that then remains.
_NOTICED_US = 100_000
# With fewer changes a stretch between two folds the pauses are the picture.
_FEWEST_BETWEEN = 4
# One each between the cells of a long notebook; a picture of folds would be no picture.
_MOST_FOLDS = 60
# Width that a fold keeps, as a share of all that stays unfolded: enough for its mark, too little to mislead; and that
# of all together.
_FOLDED_SHARE, _ALL_FOLDED_SHARE = 0.02, 0.3
# With fewer changes than this the pauses between them are the picture.
_FEWEST_CHANGES = 16


@dataclass(frozen=True, eq=False, repr=False)
class FoldedAxis:
    """A piecewise linear map from Unix microseconds to 0…1.

    Attributes
    ----------
    knots
        Rising times, int64, shape ``(k,)``.
    positions
        Their places, 0 to 1, shape ``(k,)``.
    folds
        Folded stretches as (from, to), Unix microseconds.
    """

    knots: NDArray[np.int64]
    positions: NDArray[np.float64]
    folds: tuple[tuple[int, int], ...]

    def place(self, time_us: NDArray[np.int64] | float) -> NDArray[np.float64]:
        """Return where times lie on the axis, 0 to 1."""
        return np.interp(np.asarray(time_us, np.float64), self.knots.astype(np.float64), self.positions)

    def time(self, position: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the times, Unix microseconds, at places on the axis."""
        return np.interp(position, self.positions, self.knots.astype(np.float64))

    @property
    def folded_us(self) -> int:
        """Microseconds that lie in folds."""
        return sum(to - start for start, to in self.folds)


def _longest(gaps: NDArray[np.int64], total: int) -> NDArray[np.intp]:
    """Return the longest gaps that may be worth a fold, longest first."""
    # While a fiftieth of the axis remains, no gap of less than a 5,000th is long for it: few are left to compare.
    few = np.flatnonzero(gaps > total // 5000)
    if (total - int(gaps[few].sum())) * 50 <= total:
        few = np.arange(len(gaps))
    length = gaps[few]
    if len(few) > _MOST_FOLDS:
        few = few[np.argpartition(-length, _MOST_FOLDS)[:_MOST_FOLDS]]
    longest: NDArray[np.intp] = few[np.lexsort((few, -gaps[few]))]
    return longest


def _worth(lengths: list[int], remaining: int, changes: int) -> int:
    """Return how many of the longest gaps to fold."""
    count = 0
    for number, length in enumerate(lengths):
        remaining -= length
        # Everything idle is no reason to fold: then there would be nothing beside the folds.
        if remaining <= 0:
            break
        if length < _NOTICED_US:
            if length <= remaining or number > count:
                break
            count = number + 1
        elif length > remaining * _FOLD_SHARE and changes >= _FEWEST_BETWEEN * (number + 2):
            count = number + 1
    return count


def fold_axis(time_us: NDArray[np.int64], start_us: int, end_us: int) -> FoldedAxis:
    """Decide which idle stretches to fold.

    The longest ones, as many as are each long for what then remains. Those that one notices not one after the other:
    of twenty equal pauses between twenty cells none is long for the others.

    Parameters
    ----------
    time_us
        Times of all changes, not falling.
    start_us, end_us
        The axis.
    """
    end_us = max(end_us, start_us + 1)
    folds: list[tuple[int, int]] = []
    if len(time_us) >= _FEWEST_CHANGES:
        edges = np.concatenate([[start_us], np.clip(time_us, start_us, end_us), [end_us]])
        gaps = np.diff(edges)
        longest = _longest(gaps, end_us - start_us)
        count = _worth(gaps[longest].tolist(), end_us - start_us, len(time_us))
        folds = [(int(edges[index]), int(edges[index + 1])) for index in longest[:count].tolist()]
    remaining = end_us - start_us - sum(to - start for start, to in folds)
    share = min(_FOLDED_SHARE, _ALL_FOLDED_SHARE / max(len(folds), 1))
    folds.sort()
    knots, widths = [start_us], []
    for start, to in folds:
        knots += [start, to]
        widths += [start - knots[-3], share * remaining]
    knots.append(end_us)
    widths.append(end_us - knots[-2])
    positions = np.concatenate([[0.0], np.cumsum(widths)])
    # A fold at the very start or end leaves two knots at one time; `interp` wants rising ones.
    times, first = np.unique(np.array(knots, np.int64), return_index=True)
    last = np.append(first[1:], len(knots)) - 1
    places = positions[np.where(times == start_us, first, last)] / positions[-1]
    return FoldedAxis(times, places, tuple(folds))
