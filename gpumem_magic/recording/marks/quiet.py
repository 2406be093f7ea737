"""What many marks have in common, so that a place stays right when lines can no longer be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.recording.marks.store import NOWHERE, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpumem_magic.recording.marks.store import Spot, Spots

__all__ = ["Hot", "summarise"]

_Function = tuple[str, str]  # co_filename, co_name


class Hot:
    """What runs too often to be heard, and the spot that stands for all of it.

    Attributes
    ----------
    spot
        The place of the thread for as long as nothing else fires.
    lines
        Lines that may fire unheard: (file, function, line).
    inner
        Functions that may start and end unheard; they run within `spot`.
    root
        When not None, everything may fire unheard but the end of this function.
    everything
        Everything may fire unheard.
    strikes
        How often it had to be widened.
    """

    __slots__ = ("everything", "inner", "lines", "root", "spot", "strikes")

    def __init__(self, spot: int) -> None:
        self.spot = spot
        self.lines: set[tuple[str, str, int]] = set()
        self.inner: set[_Function] = set()
        self.root: _Function | None = None
        self.everything = False
        self.strikes = 0

    def hears_nothing_of(self, function: _Function, line: int | None = None) -> bool:
        """Return whether a line, or with None the beginning of a function, changes nothing."""
        if self.everything or self.root is not None:
            return True
        return function in self.inner if line is None else (*function, line) in self.lines

    def has_unheard(self, function: _Function) -> bool:
        """Return whether lines of a function may fire unheard, whichever thread runs them."""
        return function in self.inner or any((file, name) == function for file, name, _ in self.lines)

    def hears_no_end_of(self, function: _Function) -> bool:
        """Return whether the end of a function changes nothing."""
        if self.root is not None:
            return function != self.root
        return self.everything or function in self.inner


def _common(paths: list[list[Spot]]) -> int:
    """Return how many outer spots all paths share."""
    level = 0
    shortest = min(len(path) for path in paths)
    while level < shortest and len({path[level].number for path in paths}) == 1:
        level += 1
    return level


def _range(spots: Spots, parent: int, members: Collection[Spot], name: str) -> int:
    first = min(spot.first for spot in members)
    last = max(spot.last for spot in members)
    return spots.add(parent, next(iter(members)).file, name, first, last)


def summarise(recent: Iterable[int], spots: Spots, recursive: Collection[_Function]) -> Hot:
    """Find the narrowest spot that holds all `recent` ones.

    Parameters
    ----------
    recent
        Spot numbers of the latest marks; at least one.
    spots
        What they mean; a range is added to it where needed.
    recursive
        Functions that were seen to call themselves. Their end says nothing about where the outermost call is, so they
        are represented by their caller.

    Returns
    -------
    Hot
        Its spot is a range of lines of one function, or the line that called everything, or ``UNKNOWN``.
    """
    paths = [spots.path(number) for number in recent]
    level = _common(paths)
    parent = paths[0][level - 1] if level else None
    differing = [path[level] for path in paths if len(path) > level]
    functions = {(spot.file, spot.name) for spot in differing}
    inner_from = level
    if len(differing) == len(paths) and len(functions) == 1 and not functions & set(recursive):
        number = _range(spots, parent.number if parent else NOWHERE, differing, differing[0].name)
        inner_from = level + 1
    elif parent is not None:
        number = parent.number
    elif len(differing) == len(paths) and len({file for file, _ in functions}) == 1:
        number = _range(spots, NOWHERE, differing, "")
    else:
        number = UNKNOWN
    hot = Hot(number)
    for path in paths:
        # The caller's own line may fire again without changing anything.
        hot.lines |= {(spot.file, spot.name, spot.first) for spot in path[max(0, level - 1) :]}
        hot.inner |= {(spot.file, spot.name) for spot in path[inner_from:]}
    return hot
