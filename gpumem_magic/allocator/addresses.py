"""Where the driver puts segments. Only the order of addresses matters: ties between free blocks go to the lowest."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Protocol

from gpumem_magic.allocator.settings_model import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.allocator.foreign import Foreign

__all__ = ["AddressModel", "BumpDown", "BumpUp", "Driver", "Scattered"]

_TOP = 1 << 46
_BOTTOM = 1 << 45
_CHUNK = 32 * MIB
_CONTEXT_HOLES = (24 * MIB, 2 * MIB)


class AddressModel(Protocol):
    """Gives addresses to segments from cudaMalloc."""

    def take(self, size: int, event: int) -> int:
        """Return the address of a new segment of `size` bytes, asked for at event number `event`."""

    def give_back(self, address: int, size: int) -> None:
        """Take a segment back."""


class Driver:
    """What an H200's driver was seen to do.

    A segment goes into a hole of a chunk that exists, newest chunk first and lowest hole first; else a new chunk of
    whole 32 MiB is placed as high as possible in a gap that is strictly larger. A chunk that is wholly free goes back.

    Two holes are there from the beginning, as the process's context leaves them (every program that only allocates
    was seen to fill these first): 24 MiB at the end of a chunk, and 2 MiB at the end of a newer one below it.

    Parameters
    ----------
    jitter
        Seed of small disturbances: one placement in 16 skips the holes, as when a library of the process took them.
        None for none.
    foreign
        Further holes, each from its event on, above everything else.
    """

    def __init__(self, jitter: int | None = None, foreign: Sequence[Foreign] = ()) -> None:
        self._holes: dict[int, list[tuple[int, int]]] = {}  # chunk → (address, size) of holes, ascending
        self._sizes: dict[int, int] = {}  # chunk → size, in order of creation
        self._with_holes: list[int] = []  # numbers of chunks with holes, ascending = oldest first
        self._number: dict[int, int] = {}
        self._address: dict[int, int] = {}
        self._created = 0
        self._ordered: list[int] = []  # chunk addresses ascending
        self._random = random.Random(jitter) if jitter is not None else None  # noqa: S311 (no secret)
        self._foreign = sorted(foreign, reverse=True)
        self._above = _TOP
        for hole in _CONTEXT_HOLES:
            self._new_chunk(_CHUNK - hole)

    def take(self, size: int, event: int) -> int:
        """Return the address of a new segment of `size` bytes, asked for at event number `event`."""
        while self._foreign and self._foreign[-1].event <= event:
            self._add_foreign(self._foreign.pop().size)
        if self._random is None or self._random.random() > 1 / 16:
            for number in reversed(self._with_holes):
                chunk = self._address[number]
                holes = self._holes[chunk]
                for index, (address, length) in enumerate(holes):
                    if length >= size:
                        if length == size:
                            del holes[index]
                            if not holes:
                                self._with_holes.remove(number)
                        else:
                            holes[index] = (address + size, length - size)
                        return address
        return self._new_chunk(size)

    def give_back(self, address: int, size: int) -> None:
        """Take a segment back."""
        chunk = self._ordered[bisect_left(self._ordered, address + 1) - 1]
        holes = self._holes[chunk]
        had_holes = bool(holes)
        index = bisect_left(holes, (address, 0))
        if index < len(holes) and holes[index][0] == address + size:
            size += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == address:
            address, before = holes[index - 1]
            holes[index - 1] = (address, before + size)
        else:
            holes.insert(index, (address, size))
        number = self._number[chunk]
        if len(holes) == 1 and holes[0][1] == self._sizes[chunk]:
            if had_holes:
                self._with_holes.remove(number)
            self._ordered.remove(chunk)
            del self._holes[chunk], self._sizes[chunk], self._number[chunk], self._address[number]
        elif not had_holes:
            insort(self._with_holes, number)

    def _add_foreign(self, hole: int) -> None:
        # One chunk of it is in use by others, so that it never goes back.
        self._add_chunk(self._above, hole + _CHUNK, self._above, hole)
        self._above += hole + 2 * _CHUNK

    def _new_chunk(self, size: int) -> int:
        whole = (size + _CHUNK - 1) // _CHUNK * _CHUNK
        end = _TOP
        for chunk in reversed(self._ordered):
            if chunk >= _TOP:
                continue
            if end - (chunk + self._sizes[chunk]) > whole:
                break
            end = chunk
        self._add_chunk(end - whole, whole, end - whole + size, whole - size)
        return end - whole

    def _add_chunk(self, address: int, size: int, hole: int, length: int) -> None:
        self._created += 1
        insort(self._ordered, address)
        self._sizes[address] = size
        self._number[address], self._address[self._created] = self._created, address
        self._holes[address] = [(hole, length)] if length else []
        if length:
            self._with_holes.append(self._created)


class BumpDown:
    """Every segment lies below all that came before; nothing is used twice."""

    def __init__(self) -> None:
        self._next = _TOP

    def take(self, size: int, event: int) -> int:  # noqa: ARG002 (time is no matter)
        """Return the address of a new segment of `size` bytes, asked for at event number `event`."""
        self._next -= size
        return self._next

    def give_back(self, address: int, size: int) -> None:
        """Take a segment back."""


class BumpUp:
    """Every segment lies above all that came before; nothing is used twice."""

    def __init__(self) -> None:
        self._next = _BOTTOM

    def take(self, size: int, event: int) -> int:  # noqa: ARG002 (time is no matter)
        """Return the address of a new segment of `size` bytes, asked for at event number `event`."""
        self._next += size
        return self._next - size

    def give_back(self, address: int, size: int) -> None:
        """Take a segment back."""


class Scattered:
    """Segments lie in random order."""

    # One segment a slot: 1 TiB holds every segment, and 4 million slots are drawn from without end.
    _SLOT = 1 << 40
    _SLOTS = 1 << 22

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self._used: set[int] = set()

    def take(self, size: int, event: int) -> int:  # noqa: ARG002 (a slot holds every size, at any time)
        """Return the address of a new segment of `size` bytes, asked for at event number `event`."""
        slot = self._random.randrange(1, self._SLOTS)
        while slot in self._used:
            slot = self._random.randrange(1, self._SLOTS)
        self._used.add(slot)
        return slot * self._SLOT

    def give_back(self, address: int, size: int) -> None:  # noqa: ARG002 (a slot holds every size)
        """Take a segment back."""
        self._used.discard(address // self._SLOT)
