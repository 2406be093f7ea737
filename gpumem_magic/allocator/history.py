"""What a device's allocator held after every event: the result of replaying a recording under its own setting.

`gpumem_magic.allocator.replay` computes it; everything that shows bytes over time is built on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Deviation", "History", "Lifetimes", "sums_at"]


@dataclass(frozen=True)
class Deviation:
    """The first place where the model and the recording disagree."""

    event: int
    expected: str
    recorded: str


@dataclass(frozen=True, eq=False, repr=False)
class Lifetimes:
    """Allocations as lifetimes, columns of shape ``(m,)``, in order of their beginning (pre-existing ones first).

    Attributes
    ----------
    alloc_event
        Index of the ALLOC event, -1 when alive before the first event, int32.
    free_event
        Index of the FREE_REQUESTED event (where `allocated` falls), -1 when alive at the end, -2 when it lies before
        the first event (the block then never counts as allocated, only as active), int32.
    release_event
        Index of the FREE_COMPLETED event (where `active` and `requested` fall), -1 when not reached, int32.
    address
        uint64.
    requested
        Bytes asked for, int64; -1 when unknown (alive before the recording and not in the final state).
    size
        Bytes as `allocated` counts them: the block, rounding and unsplit remainder included, int64.
    stream
        int64.
    stack
        Index into the trace's stacks, int32.
    """

    alloc_event: NDArray[np.int32]
    free_event: NDArray[np.int32]
    release_event: NDArray[np.int32]
    address: NDArray[np.uint64]
    requested: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.alloc_event)

    @cached_property
    def counted(self) -> NDArray[np.intp] | slice:
        """Which of them count as allocated at some time, in order of their beginning; a slice where all do.

        What was given back before the first event (and only waits for a stream) does not, nor does what a contradictory
        recording takes back in the event that makes it.
        """
        born, freed = self.alloc_event, self.free_event
        has_counted = (freed != -2) & ((freed != born) | (freed < 0))
        is_rising = not np.any(born[1:] < born[:-1])
        if is_rising and has_counted.all():
            return slice(None)
        chosen = np.flatnonzero(has_counted)
        return chosen if is_rising else chosen[np.argsort(born[chosen], kind="stable")]


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Counters of one device over a recording, as torch's ``memory_stats`` would have read.

    Each counter is bytes before the first event (index 0) and after each event, int64, shape ``(n + 1,)``; those that
    follow from the lifetimes are summed up when they are asked for.

    Attributes
    ----------
    reserved
        The counter of what lies in segments.
    lifetimes
        Every allocation.
    exact
        True when every event fits the allocator's rules (an allocation takes the front of a free block of its
        segment, a free frees what is in use, segments go as one free block), the final state equals the snapshot's
        block by block, and no size had to be assumed. All four counters are then exact. Of this process's own
        allocator (``from_torch``) it is taken for granted that blocks in use do not overlap.
    first_deviation
        Where it did not, or None.
    warnings
        One line each, for the user: which figure is not exact, and why.
    doubt
        That one of `warnings` which falls away when torch's counter held as much before the first event as is allocated
        there: a size that had to be assumed is the least possible one, so none is wrong then. None where none was.
    """

    reserved: NDArray[np.int64]
    lifetimes: Lifetimes
    exact: bool
    first_deviation: Deviation | None
    warnings: tuple[str, ...]
    doubt: str | None = None

    def confirmed(self) -> History:
        """Return what is known once torch's counter has confirmed every size."""
        return replace(
            self,
            exact=self.first_deviation is None,
            warnings=tuple(line for line in self.warnings if line != self.doubt),
            doubt=None,
        )

    @cached_property
    def allocated(self) -> NDArray[np.int64]:
        """The counter of what is in use: blocks, until their free is requested."""
        return self._summed(self.lifetimes.size, self.lifetimes.free_event)

    @cached_property
    def active(self) -> NDArray[np.int64]:
        """The counter of blocks until their free is complete."""
        return self._summed(self.lifetimes.size, self.lifetimes.release_event)

    @cached_property
    def requested(self) -> NDArray[np.int64]:
        """The counter of what was asked for, until the free is complete."""
        return self._summed(np.maximum(self.lifetimes.requested, 0), self.lifetimes.release_event)

    def _summed(self, size: NDArray[np.int64], end: NDArray[np.int32]) -> NDArray[np.int64]:
        # Row 0 is "before the first event", row i + 1 is "after event i"; an end of -2 lies before the first event.
        alive, ended = end != -2, end >= 0
        change = sums_at(self.lifetimes.alloc_event[alive] + 1, size[alive], len(self.reserved))
        change -= sums_at(end[ended] + 1, size[ended], len(self.reserved))
        return np.cumsum(change)


def sums_at(index: NDArray[np.integer[Any]], size: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sum sizes by index.

    Parameters
    ----------
    index
        Where each is added, 0 to `count` - 1; nearly always a different one for each, which is ten times as fast.
    size
        Bytes, not negative.
    count
        How many sums there are.
    """
    sums = np.zeros(count, dtype=np.int64)
    sums[index] = size
    if int(sums.sum()) != int(size.sum()):
        sums[:] = 0
        np.add.at(sums, index, size)
    return sums
