"""What a device's allocator held after every event: the result of replaying a recording under its own setting.

`gpumem_magic.allocator.replay` computes it; everything that shows bytes over time is built on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Deviation", "History", "Lifetimes"]


@dataclass(frozen=True)
class Deviation:
    """The first place where the model and the recording disagree."""

    event: int
    expected: str
    recorded: str


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class History:
    """Counters of one device over a recording, as torch's ``memory_stats`` would have read.

    Attributes
    ----------
    allocated, active, requested, reserved
        Bytes before the first event (index 0) and after each event, int64, shape ``(n + 1,)``.
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
    """

    allocated: NDArray[np.int64]
    active: NDArray[np.int64]
    requested: NDArray[np.int64]
    reserved: NDArray[np.int64]
    lifetimes: Lifetimes
    exact: bool
    first_deviation: Deviation | None
    warnings: tuple[str, ...]
