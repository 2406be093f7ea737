"""Reference cycles among objects that nothing named reaches: late, not lost."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import deque
from typing import TYPE_CHECKING

from gpumem_magic.holders.edges import describe_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["closure_above", "find_cycles"]

# The collector compares every reference of the process with each object that it is asked about.
_FEW = 32
# From so many on, going once through all objects is the shorter way.
_MANY = 640
# A cycle of more objects than this is not found; without a bound, the search climbs through every library.
_MOST_ABOVE = 400


def find_cycles(
    targets: Sequence[object], reached: Mapping[int, object], own: Iterable[object], deadline: float
) -> dict[int, str]:
    """Find cycles that keep `targets` alive.

    Parameters
    ----------
    targets
        Objects that no root reaches, the largest first.
    reached
        Objects that a root reaches, by id.
    own
        Objects of the scan itself, which are no holders.
    deadline
        ``time.monotonic()`` after which no further one is looked for.

    Returns
    -------
    dict
        ``id(target)`` → the cycle as a path, ``Net.fn → function (closure variable `self`) → Net``. Targets without
        one are left out.
    """
    skip = {*map(id, own), id(targets), id(own), *reached, *_running_frames()}
    above = _Above(skip, deadline)
    if len(targets) <= _MANY:
        for first in range(0, len(targets), _FEW):
            above.look(targets[first : first + _FEW])
    else:
        above.look_at_everything()
    return {id(target): path for target in targets if (path := _cycle_above(target, above)) is not None}


class _Above:
    """Who holds what, as ids: lists of objects would themselves be holders."""

    def __init__(self, skip: set[int], deadline: float) -> None:
        self.objects: dict[int, object] = {}
        self._holders: dict[int, list[int]] = {}
        self._skip = skip
        self._deadline = deadline
        skip.update((id(self.objects), id(self), id(self.__dict__)))

    def holders(self, value: object) -> Iterator[object]:
        """Yield the known holders of an object."""
        for number in self._holders.get(id(value), ()):
            yield self.objects[number]

    def look(self, targets: Sequence[object]) -> None:
        """Ask the collector who refers to the targets, to those, and so on upwards: milliseconds a level."""
        frontier = list(targets)
        self._skip.add(id(targets))
        known = set(map(id, frontier))
        for value in frontier:
            self.objects[id(value)] = value
        while frontier and len(known) < _MOST_ABOVE and time.monotonic() < self._deadline:
            self._skip.add(id(frontier))
            found = gc.get_referrers(*frontier[:_FEW])
            self._skip.add(id(found))
            rest = frontier[_FEW:]
            for holder in found:
                if not self._counts(holder):
                    continue
                self._note(holder, known)
                if id(holder) not in known:
                    known.add(id(holder))
                    rest.append(holder)
            frontier = rest
            if all(_cycle_above(target, self) is not None for target in targets):
                return

    def look_at_everything(self) -> None:
        """Go through all objects once, for many targets."""
        everything = gc.get_objects()
        self._skip.add(id(everything))
        for count, value in enumerate(everything):
            if count % 4096 == 0 and time.monotonic() > self._deadline:
                return
            if self._counts(value):
                self._note(value, None)

    def _counts(self, value: object) -> bool:
        if id(value) in self._skip or issubclass(type(value), (types.ModuleType, type)):
            return False
        # The globals of a module hold everything that is in it.
        return not (type(value) is dict and "__builtins__" in value)

    def _note(self, holder: object, known: set[int] | None) -> None:
        for child in gc.get_referents(holder):
            if known is None or id(child) in known:
                holders = self._holders.setdefault(id(child), [])
                if not holders or holders[-1] != id(holder):
                    holders.append(id(holder))
                    self.objects[id(holder)] = holder


def _running_frames() -> set[int]:
    """Return the ids of frames that run now: they end by themselves."""
    found = set()
    for frame in sys._current_frames().values():  # noqa: SLF001 - the documented way to see other threads
        current: types.FrameType | None = frame
        while current is not None:
            found.add(id(current))
            current = current.f_back
    return found


def _cycle_above(target: object, above: _Above) -> str | None:
    """Walk upwards from `target` until an object comes twice."""
    below: dict[int, tuple[object, object | None]] = {id(target): (target, None)}
    pending = deque([target])
    while pending and len(below) < _MOST_ABOVE:
        value = pending.popleft()
        for holder in above.holders(value):
            if id(holder) in below:
                cycle = _path_down(holder, value, below)
                if cycle is not None:
                    return cycle
                continue
            below[id(holder)] = (holder, value)
            pending.append(holder)
    return None


def _path_down(holder: object, value: object, below: Mapping[int, tuple[object, object | None]]) -> str | None:
    """Write the cycle that closes because `holder`, already below `value`, holds it."""
    chain = [value]
    while chain[-1] is not holder:
        following = below[id(chain[-1])][1]
        if following is None:
            return None
        chain.append(following)
    # Begin where a reader recognises something: at an instance rather than at its dict, method or cell.
    plain = (dict, list, tuple, types.MethodType, types.FunctionType, types.CellType)
    start = next((index for index, link in enumerate(chain) if type(link) not in plain), 0)
    turned = [*chain[start:], *chain[: start + 1]]
    return f"{describe_chain(type(turned[0]).__name__, turned)} → {type(turned[0]).__name__}"


def closure_above(target: object, own: Iterable[object]) -> str | None:
    """Return the function whose closure holds `target`, with the variable, when no Python object leads to it further.

    Such a function is a hook that C++ keeps.
    """
    skip = {*map(id, own), *_running_frames()}
    for cell in gc.get_referrers(target):
        if type(cell) is not types.CellType or id(cell) in skip:
            continue
        for closure in gc.get_referrers(cell):
            for function in gc.get_referrers(closure) if type(closure) is tuple else ():
                if type(function) is types.FunctionType and function.__closure__ is closure:
                    names = function.__code__.co_freevars
                    name = next((n for n, c in zip(names, function.__closure__ or (), strict=True) if c is cell), "?")
                    return f"{function.__qualname__}() (closure variable `{name}`)"
    return None
