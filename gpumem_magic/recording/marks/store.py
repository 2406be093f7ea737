"""Where marks are kept: line stacks interned in a tree, times and stack numbers in flat arrays, all bounded."""

from __future__ import annotations

import struct
import threading
from array import array
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpumem_magic.recording.model import Marks
from gpumem_magic.trace.frames import function_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["BLOCK", "MAX_MARKS", "NOWHERE", "UNKNOWN", "Spot", "Spots", "ThreadLog", "build_marks", "is_foreign_thread"]

# 48 MB. A launch-bound training step of 18 ms writes about 10 marks; this is hours of it.
MAX_MARKS = 4_000_000
# Functions by what calls them; beyond, a stack is represented by its outer part. Recursion is folded, so that real
# programs stay in the hundreds.
MAX_BLOCKS = 65_535
_LINES = 65_536  # numbers in the block of a function
_MARGIN = 1_024  # lines before a function's first that still have a number
_DENSE = 1 << 22  # a table of this many numbers is read at once
# Marks that are written one by one go into blocks of this many.
BLOCK = 256

_BLANK = [0] * BLOCK
NOWHERE = 0  # no notebook code on this thread
UNKNOWN = 1  # notebook code, but which line is not known


class Spot:
    """One line (or range of lines) of one function, called from `parent`.

    Attributes
    ----------
    number
        Its position in `Spots`.
    parent
        Number of the calling spot.
    file, name
        ``co_filename`` and ``co_name``.
    first, last
        Lines; they differ only where single lines could not be told apart.
    """

    __slots__ = ("file", "first", "last", "name", "number", "parent")

    def __init__(self, number: int, parent: int, function: tuple[str, str], lines: tuple[int, int]) -> None:
        self.number = number
        self.parent = parent
        self.file, self.name = function
        self.first, self.last = lines


class Spots:
    """All line stacks of a recording, as a tree of `Spot`: a stack is a spot and its parents.

    All lines of one function with one caller are a block of numbers, one after the other, so that a line's number is
    the block's base plus the line: nothing is to be looked up, and a line that runs for the first time is no slower.
    A function of more lines than a block has numbers takes several.
    """

    def __init__(self) -> None:
        # What calls it, the function, what to take off for the line, and the last line of what is a range of lines.
        self._blocks: dict[int, tuple[int, tuple[str, str], int, int]] = {0: (NOWHERE, ("", ""), 0, 0)}
        self._ranges: dict[tuple[int, str, str, int, int], int] = {}
        self._next = 1

    def __len__(self) -> int:
        return self._next

    def _take(self, count: int) -> int | None:
        """Return the first of `count` new blocks; None when there is no room.

        Without a lock, which a fork could find taken: nothing is called in between, so that no thread and no signal's
        handler comes in.
        """
        number = self._next
        if number + count > MAX_BLOCKS:
            return None
        self._next = number + count
        return number

    def base(self, parent: int, function: tuple[str, str], first: int, last: int) -> int | None:
        """Return what makes a line of `function` a spot below `parent` when added to it; None when there is no room.

        Parameters
        ----------
        parent
            Number of the calling spot.
        function
            ``co_filename`` and ``co_name``.
        first, last
            Its first and its last line.
        """
        less = 0 if first < _LINES // 2 else first - _MARGIN
        count = max(last - less, 0) // _LINES + 1
        number = self._take(count)
        if number is None:
            return None
        for block in range(count):
            self._blocks[number + block] = (parent, function, less + block * _LINES, 0)
        return number * _LINES - less

    def add(self, parent: int, file: str, name: str, first: int, last: int) -> int:
        """Return the number of a range of lines below `parent`; `parent` itself when there is no room for more."""
        key = (parent, file, name, first, last)
        number = self._ranges.get(key)
        if number is None:
            block = self._take(1)
            if block is None:
                return parent
            self._blocks[block] = (parent, (file, name), first, last)
            number = self._ranges[key] = block * _LINES
        return number

    def path(self, number: int) -> list[Spot]:
        """Return a stack, outermost first; empty for `NOWHERE` and `UNKNOWN`."""
        spots: list[Spot] = []
        while number > UNKNOWN:
            parent, function, less, last = self._blocks[number // _LINES]
            line = number % _LINES + less
            spots.append(Spot(number, parent, function, (line, last or line)))
            number = parent
        spots.reverse()
        return spots


class Paths(Protocol):
    """What numbers in a log mean."""

    def path(self, number: int) -> list[Spot]:
        """Return a stack, outermost first."""


def is_foreign_thread(ident: int) -> bool:
    """Tell whether a thread was started by something else than Python's ``threading``."""
    # enumerate() also lists the stand-ins that current_thread() makes for such threads.
    return not any(
        thread.ident == ident and not isinstance(thread, threading._DummyThread) for thread in threading.enumerate()
    )


class ThreadLog:
    """The marks of one thread.

    The newest ones are in `times` (Unix nanoseconds) and `spots`, of which `count` are filled; writing one beyond the
    end raises IndexError, which costs nothing until it happens. They are lists, because a store into an ``array`` takes
    more than twice as long (55 against 20 ns); the older marks are arrays.
    """

    __slots__ = ("_old_spots", "_old_times", "count", "dropped", "ident", "is_foreign", "spots", "times")

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.is_foreign = is_foreign_thread(ident)
        self.times = [0] * BLOCK
        self.spots = [0] * BLOCK
        self.count = 0
        self.dropped = 0
        self._old_times = array("q")
        self._old_spots = array("I")

    @property
    def newest(self) -> int:
        """Number that was marked last; `NOWHERE` before the first."""
        if self.count:
            return self.spots[self.count - 1]
        return self._old_spots[-1] if self._old_spots else NOWHERE

    def flush(self, limit: int) -> None:
        """Move the block to the older marks, of which the newest `limit` are kept."""
        # Half of the time that a list takes, and less.
        times = array("q", struct.pack(f"{self.count}q", *self.times[: self.count]))
        spots = array("I", struct.pack(f"{self.count}I", *self.spots[: self.count]))
        # No calls in between, so that an interrupt leaves both alike.
        self._old_times += times
        self._old_spots += spots
        # The numbers are freed here, where they are in the caches: one by one, by those that take their places, it
        # took a third of a mark's time.
        self.times[: self.count] = self.spots[: self.count] = _BLANK[: self.count]
        self.count = 0
        self._trim(limit)

    def extend(self, times: NDArray[np.int64], spots: NDArray[np.uint32], limit: int) -> None:
        """Add marks to the older ones, of which the newest `limit` are kept; the block must be empty."""
        # From a buffer of its own, so that an interrupt leaves both alike.
        moments, numbers = array("q", times.tobytes()), array("I", spots.tobytes())
        self._old_times += moments
        self._old_spots += numbers
        self._trim(limit)

    def latest(self, count: int) -> list[int]:
        """Return the spots of the newest marks, at most `count`, from when the thread last came from nowhere."""
        spots = [*self._old_spots[-count:], *self.spots[: self.count]][-count:]
        # What ran before, in another statement of the cell, says nothing of what runs now.
        if NOWHERE in spots:
            del spots[: len(spots) - spots[::-1].index(NOWHERE)]
        return spots

    def _trim(self, limit: int) -> None:
        if len(self._old_times) > limit:
            # Half at a time, so that moving the rest is paid once per limit/2 marks.
            surplus = len(self._old_times) - limit // 2
            del self._old_times[:surplus]
            del self._old_spots[:surplus]
            self.dropped += surplus

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return all kept marks: Unix nanoseconds and spot numbers."""
        times = self._old_times + array("q", self.times[: self.count])
        return np.array(times, np.int64), np.array(self._old_spots + array("I", self.spots[: self.count]), np.uint32)


def _distinct(number: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """Return the distinct numbers, and the index of each one among them."""
    if not len(number):
        return number, np.zeros(0, np.intp)
    # A table needs no sorting. Few lines of each block are in use: the others get no room in it.
    line = number % _LINES
    width = int(line.max()) + 1
    key = (number // _LINES).astype(np.int64) * width + line
    if key.max() >= _DENSE:
        return np.unique(number, return_inverse=True)
    seen = np.flatnonzero(np.bincount(key))
    index = np.zeros(seen[-1] + 1, np.intp)
    index[seen] = np.arange(len(seen))
    return (seen // width * _LINES + seen % width).astype(np.uint32), index[key]


def build_marks(logs: Iterable[ThreadLog], spots: Paths, *, has_functions: bool) -> Marks:
    """Join the threads' marks into columns in time order.

    Parameters
    ----------
    logs
        One per thread.
    spots
        What their numbers mean.
    has_functions
        See `Marks`.
    """
    logs = list(logs)
    columns = [log.columns() for log in logs]
    time_ns = np.concatenate([times for times, _ in columns]) if columns else np.zeros(0, np.int64)
    number = np.concatenate([numbers for _, numbers in columns]) if columns else np.zeros(0, np.uint32)
    thread = np.repeat(np.array([log.ident for log in logs], np.int64), [len(times) for times, _ in columns])
    # One thread's marks are in order already.
    in_order = not np.any(time_ns[1:] < time_ns[:-1])
    order: NDArray[np.intp] | slice = slice(None) if in_order else np.argsort(time_ns, kind="stable")
    # Place and last lines of each entry, by first use.
    found: dict[tuple[tuple[tuple[str, int, str], ...], tuple[int, ...]], int] = {}
    distinct, number = _distinct(number)
    place_of = np.full(len(distinct), -1, np.int32)
    for index, spot_number in enumerate(distinct.tolist()):
        if spot_number != NOWHERE:
            path = spots.path(spot_number)[::-1]
            stack = tuple((spot.file, spot.first, function_name(spot.name)) for spot in path)
            place_of[index] = found.setdefault((stack, tuple(spot.last for spot in path)), len(found))
    return Marks(
        time_us=time_ns[order] // 1000,
        thread=thread[order],
        place=place_of[number[order]],
        places=tuple(place for place, _ in found),
        has_functions=has_functions,
        dropped=sum(log.dropped for log in logs),
        last_lines=tuple(last for _, last in found),
        foreign=tuple(log.ident for log in logs if log.is_foreign),
    )
