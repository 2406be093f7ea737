"""Sizes as error messages print them: two decimals and a unit, so an interval rather than a number."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

__all__ = ["SIZE", "Size", "parse_size"]

#: Matches one size; the groups are the number and the unit.
SIZE = r"(\d{1,24}(?:\.\d{1,6})?) ?(bytes?|B|[KMGTPE]i?B)\b"

_EXPONENT = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


class Size(NamedTuple):
    """A printed size in bytes: the true one lies between `low` and `high`, both included."""

    low: int
    high: int

    @property
    def value(self) -> int:
        """The middle, which is the printed number."""
        return (self.low + self.high) // 2

    @property
    def is_exact(self) -> bool:
        """True when the message printed whole bytes."""
        return self.low == self.high

    @classmethod
    def exact(cls, count: int) -> Size:
        """Return a size that is known to the byte."""
        return cls(count, count)

    def plus(self, other: Size) -> Size:
        """Return the sum with its interval."""
        return Size(self.low + other.low, self.high + other.high)

    def minus(self, other: Size) -> Size:
        """Return the difference with its interval, not below zero."""
        return Size(max(self.low - other.high, 0), max(self.high - other.low, 0))


def parse_size(number: str, unit: str) -> Size:
    """Read the two parts that `SIZE` matches.

    torch divides by powers of 1024 whether it prints ``GiB`` or, as MPS did, ``GB`` (``format_size`` in
    ``c10/cuda/CUDACachingAllocator.cpp`` and ``aten/src/ATen/mps/MPSAllocator.mm``), and prints two decimals.

    Parameters
    ----------
    number, unit
        For example ``"1.66"`` and ``"GiB"``.
    """
    scale = 1024 ** _EXPONENT[unit[0].lower()]
    if scale == 1:
        return Size.exact(round(float(number)))
    decimals = len(number.partition(".")[2])
    middle, half = float(number) * scale, scale / 10**decimals / 2
    # Bytes are whole, so what rounds to the printed number begins at the next whole one.
    return Size(max(math.ceil(middle - half), 0), math.floor(middle + half))


def find_size(pattern: str, text: str) -> Size | None:
    """Return the size that stands where `pattern` says ``{size}``, or None."""
    found = re.search(pattern.replace("{size}", SIZE), text)
    return None if found is None else parse_size(found[1], found[2])
