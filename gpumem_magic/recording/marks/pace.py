"""How many marks a cell may cost: a bucket that fills with time and is emptied by marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.recording.marks.store import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pace"]

# In a loop a line costs 0.12 µs and a call, with its line and its end, 0.5 µs (in C 0.04 and 0.13), so 100,000 a second
# are 1 to 3 % of the time.
_PER_SECOND = 100_000
# The first lines of a cell are free: 8,192 marks are 1 to 2 ms.
_CAPACITY = 8_192
# Marks count as needed while at least one in this many saw an allocation; needed marks cost a fifth (so 12 % of the
# time at most, on lines of a few µs that allocate each time).
_NEEDED = 32
# Waking up costs about 100 µs (instrumenting again, one block of marks): 100 a second are 1 %, 30 at once 3 ms.
_WAKES_PER_SECOND = 100
_WAKES = 30
# Until the pace is checked again: a hot loop writes 500 marks in the first and 5,000 in the second; a check is 2 µs.
_SOON_NS, _LATER_NS, _LATE_NS = 100_000, 1_000_000, 8_000_000


class Pace:
    """Decides when lines run too often to be marked one by one, and how often that is looked at again.

    Parameters
    ----------
    now_ns
        The current time.
    progress
        Number of allocations so far, or None when it cannot be known.
    """

    def __init__(self, now_ns: int, progress: Callable[[], int] | None) -> None:
        self._progress = progress
        self._marks = float(_CAPACITY)
        self._wakes = [float(_WAKES), float(_WAKES)]
        self._filled_ns = now_ns
        self._is_calm = False
        self._since_check = 0
        self._allocations = 0 if progress is None else progress()

    def _fill(self, now_ns: int) -> None:
        seconds = (now_ns - self._filled_ns) * 1e-9
        self._filled_ns = now_ns
        self._marks = min(_CAPACITY, self._marks + seconds * _PER_SECOND)
        self._wakes = [min(_WAKES, wakes + seconds * _WAKES_PER_SECOND) for wakes in self._wakes]

    def spend(self, marks: int, now_ns: int) -> bool:
        """Pay for a block of marks; return whether the next one may be written."""
        self._is_calm = marks * 1e9 < _PER_SECOND / 2 * (now_ns - self._filled_ns)
        self._fill(now_ns)
        self._marks -= marks
        self._since_check += marks
        if self._marks >= 0:
            return True
        if self._progress is not None:
            allocations = self._progress()
            if (allocations - self._allocations) * _NEEDED >= self._since_check:
                self._marks = min(_CAPACITY, self._marks + 0.8 * self._since_check)
            self._allocations = allocations
        self._since_check = 0
        return self._marks >= 0

    def rest(self) -> int:
        """Return for how many nanoseconds marks need not be paid for, so that a hot loop is found in time."""
        if self._marks < _CAPACITY / 4:
            return _SOON_NS
        return _LATE_NS if self._is_calm else _LATER_NS

    def spend_wake(self, now_ns: int, *, is_end: bool = False) -> bool:
        """Pay for looking closely again; return whether that is affordable. One block of marks is included.

        The end of a whole statement (`is_end`) has an account of its own, so that the next one starts afresh.
        """
        self._fill(now_ns)
        if self._wakes[is_end] < 1:
            return False
        self._wakes[is_end] -= 1
        self._marks = BLOCK / 2
        return True

    def allocated_since_check(self) -> bool:
        """Return whether anything was allocated since the last look, as far as that can be known (else True)."""
        if self._progress is None:
            return True
        allocations = self._progress()
        self._since_check = 0
        grown = allocations != self._allocations
        self._allocations = allocations
        return grown
