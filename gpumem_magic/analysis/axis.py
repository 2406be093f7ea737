"""A time axis with its idle stretches folded away. The rule is the view's (``labextension/src/view/axis/folds.ts``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FoldedAxis", "fold_axis"]

# A stretch without any change is folded when it is longer than this share of all that stays unfolded.
_FOLD_SHARE = 0.12
# Width that a fold keeps, as a share of all that stays unfolded: enough for its mark, too little to mislead.
_FOLDED_SHARE = 0.02
# With fewer changes than this the pauses between them are the picture.
_FEWEST_CHANGES = 16


@dataclass(frozen=True)
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


def fold_axis(time_us: NDArray[np.int64], start_us: int, end_us: int) -> FoldedAxis:
    """Decide which idle stretches to fold.

    Folding the longest makes the rest of the axis shorter, so that the next may become worth folding; this goes on
    until nothing left over is long for what remains.

    Parameters
    ----------
    time_us
        Times of all changes, not falling.
    start_us, end_us
        The axis.
    """
    end_us = max(end_us, start_us + 1)
    folds: list[tuple[int, int]] = []
    remaining = end_us - start_us
    if len(time_us) >= _FEWEST_CHANGES:
        edges = np.concatenate([[start_us], np.clip(time_us, start_us, end_us), [end_us]])
        gaps = np.diff(edges)
        # Only the longest few hundred can matter: the share bounds how many are long at once.
        for index in np.argsort(-gaps)[:500].tolist():
            if gaps[index] <= _FOLD_SHARE * remaining:
                break
            remaining -= int(gaps[index])
            folds.append((int(edges[index]), int(edges[index + 1])))
        if remaining <= 0:
            folds, remaining = [], end_us - start_us
    folds.sort()
    knots, widths = [start_us], []
    for start, to in folds:
        knots += [start, to]
        widths += [start - knots[-3], _FOLDED_SHARE * remaining]
    knots.append(end_us)
    widths.append(end_us - knots[-2])
    positions = np.concatenate([[0.0], np.cumsum(widths)])
    # A fold at the very start or end leaves two knots at one time; `interp` wants rising ones.
    times, first = np.unique(np.array(knots, np.int64), return_index=True)
    last = np.append(first[1:], len(knots)) - 1
    places = positions[np.where(times == start_us, first, last)] / positions[-1]
    return FoldedAxis(times, places, tuple(folds))
