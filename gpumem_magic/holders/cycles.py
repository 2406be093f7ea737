"""Who holds objects that nothing named reaches: a reference cycle (late, not lost), something alive, or only C code."""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpumem_magic.holders.edges import describe_chain, type_name
from gpumem_magic.holders.roots import is_library, library_of
from gpumem_magic.holders.suspended import locals_of, running_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gpumem_magic.holders.budget import Budget

__all__ = ["Climb", "climb", "closure_above"]

# The collector compares every reference of the process with each object that it is asked about.
_FEW = 32
# From so many on, going once through all objects is the shorter way.
_MANY = 640
# With more objects above it than this, an object's holders are not all known; without a bound, the search climbs
# through every library.
_MOST_ABOVE = 400


class Climb(NamedTuple):
    """What was found above an object.

    Attributes
    ----------
    kind
        ``"cycle"`` (a cycle and nothing else), ``"alive"`` (something that lives holds it), ``"outside"`` (the topmost
        object is held by C code alone), ``"unsure"`` (a cycle, but not all holders are known), ``"cut"`` (too many
        objects are above it to look at all).
    path
        The cycle as a path, ``Net.fn → function (closure variable `self`) → Net``, else the path to the object.
    chain
        For all but cycles, the objects from the topmost one down.
    library
        The library whose class makes the cycle, ``""`` when it is the user's own.
    """

    kind: Literal["cycle", "alive", "outside", "unsure", "cut"]
    path: str
    chain: tuple[object, ...] = ()
    library: str = ""


def climb(
    targets: Sequence[object],
    is_alive: Callable[[object], bool],
    own: Iterable[object],
    uncounted: Collection[int],
    budget: Budget,
) -> dict[int, Climb]:
    """Find what keeps `targets` alive.

    Parameters
    ----------
    targets
        Objects that no root reaches, the largest first.
    is_alive
        Tells whether an object certainly lives.
    own
        Objects of the scan itself, which are no holders.
    uncounted
        Ids of objects that the scan refers to: their references are not counted.
    budget
        When it is spent, no further one is looked for.

    Returns
    -------
    dict
        By ``id(target)``. Targets above which there is nothing in Python are left out.
    """
    above = _Above({*map(id, own), id(targets), id(own), *_running()}, is_alive, budget)
    if len(targets) <= _MANY:
        for first in range(0, len(targets), _FEW):
            above.look(targets[first : first + _FEW])
    else:
        above.look_at_everything(targets)
    return {id(target): found for target in targets if (found := _judge(id(target), above, uncounted)) is not None}


class _Above:
    """Who holds what, as ids: lists of objects would themselves be holders."""

    def __init__(self, skip: set[int], is_alive: Callable[[object], bool], budget: Budget) -> None:
        self.objects: dict[int, object] = {}
        self.alive: set[int] = set()
        self.is_complete = True
        self.holders: dict[int, list[int]] = {}
        self._skip = skip
        self._is_alive = is_alive
        self._budget = budget
        skip.update((id(self.objects), id(self), id(self.__dict__)))

    def these(self, numbers: Iterable[int]) -> tuple[object, ...]:
        """Return objects by their ids."""
        return tuple(self.objects[number] for number in numbers)

    def look(self, targets: Sequence[object]) -> None:
        """Ask the collector who refers to the targets, to those, and so on upwards: milliseconds a level."""
        frontier = list(targets)
        self._skip.add(id(targets))
        known = set(map(id, frontier))
        for value in frontier:
            self.objects[id(value)] = value
        while frontier:
            if len(known) >= _MOST_ABOVE or self._budget.is_spent():
                self.is_complete = False
                return
            # From Python 3.13 on the tuple of the arguments is found as well.
            asked = tuple(frontier[:_FEW])
            self._skip.update((id(frontier), id(asked)))
            found = gc.get_referrers(*asked)
            self._skip.add(id(found))
            rest = frontier[_FEW:]
            for holder in found:
                if id(holder) in self._skip:
                    continue
                self._note(holder, known)
                if id(holder) not in known:
                    known.add(id(holder))
                    if self._is_alive(holder):
                        self.alive.add(id(holder))
                    else:
                        rest.append(holder)
            frontier = rest

    def look_at_everything(self, targets: Iterable[object]) -> None:
        """Go through all objects once, for many targets."""
        everything = gc.get_objects()
        self._skip.add(id(everything))
        for target in targets:
            self.objects[id(target)] = target
        for count, value in enumerate(everything):
            if count % 4096 == 0 and self._budget.is_spent():
                self.is_complete = False
                return
            if id(value) not in self._skip:
                self._note(value, None)
                if self._is_alive(value):
                    self.alive.add(id(value))

    def _note(self, holder: object, known: set[int] | None) -> None:
        for child in gc.get_referents(holder):
            if known is None or id(child) in known:
                holders = self.holders.setdefault(id(child), [])
                if not holders or holders[-1] != id(holder):
                    holders.append(id(holder))
                    self.objects[id(holder)] = holder


def _running() -> set[int]:
    """Return the ids of frames that run now: they end by themselves."""
    return {id(frame) for _, frame in running_frames()}


def _judge(target: int, above: _Above, uncounted: Collection[int]) -> Climb | None:
    """Walk upwards from an object: to something alive, or through all that there is. In ids, which refer to nothing."""
    follows: dict[int, int | None] = {target: None}
    pending = deque([target])
    cycle: tuple[int, ...] = ()
    top = frame = None
    while pending and len(follows) < _MOST_ABOVE:
        number = pending.popleft()
        holders = above.holders.get(number, ())
        if not holders and number != target and top is None:
            top = number
        for holder in holders:
            if holder in follows:
                cycle = cycle or _cycle(holder, number, follows)
                continue
            follows[holder] = number
            if _tells_more(above.objects[holder], None if frame is None else above.objects[frame]):
                frame = holder
            if holder in above.alive:
                return Climb("alive", "", above.these(_down(holder, follows)))
            pending.append(holder)
    is_complete = above.is_complete and not pending
    outside = _held_from_outside(follows, above.objects, uncounted) if is_complete else None
    if outside is None and frame is not None and frame not in cycle:
        text = _of_an_error(above.these(_down(frame, follows)), map(above.objects.__getitem__, follows))
        if text is not None:
            return Climb("cycle" if is_complete and cycle else "unsure", text)
    if cycle and outside is None:
        text, library = _cycle_text(above.these(cycle))
        return Climb("cycle" if is_complete else "unsure", text, library=library)
    top = outside if outside is not None else top
    if top is None:
        return None
    chain = above.these(_down(top, follows))
    # Where not all was looked at, that nothing is known above an object says nothing.
    kind: Literal["outside", "cut"] = "outside" if is_complete else "cut"
    return Climb(kind, describe_chain(type_name(type(chain[0])), chain), chain)


def _tells_more(value: object, former: Any) -> bool:
    """Tell whether an object is a frame, and of the user's own code where another one is known."""
    if type(value) is not types.FrameType:
        return False
    return former is None or (not is_library(value.f_code.co_filename) and is_library(former.f_code.co_filename))


def _of_an_error(chain: Sequence[Any], all_above: Iterable[object]) -> str | None:
    """Name the variable of a frame that an error which is over left behind; None when no error is above the frame.

    What else is above it are often the hundreds of objects with which IPython shows a traceback.
    """
    if not any(issubclass(type(value), (types.TracebackType, BaseException)) for value in all_above):
        return None
    frame, *below = chain
    name = next((name for name, value in locals_of(frame) if below and value is below[0]), None)
    if name is None:
        return None
    return f"through an earlier error's frame: {frame.f_code.co_name}(), {describe_chain(f'local `{name}`', below)}"


def _down(top: int, follows: Mapping[int, int | None]) -> tuple[int, ...]:
    chain = [top]
    while (following := follows[chain[-1]]) is not None:
        chain.append(following)
    return tuple(chain)


def _held_from_outside(
    follows: Mapping[int, int | None], objects: Mapping[int, object], uncounted: Collection[int]
) -> int | None:
    """Return an object to which more refers than all its known holders: C code keeps it, and gc does not free it.

    The collector itself decides in this way.
    """
    inside: Counter[int] = Counter()
    for number in follows:
        inside.update(filter(follows.__contains__, map(id, gc.get_referents(objects[number]))))
    # What nothing refers to but a dict of ours: how many references this Python counts then is its own affair.
    lone: dict[int, object] = {0: []}
    usual = sys.getrefcount(lone[0])
    for number in follows:
        if number not in uncounted and sys.getrefcount(objects[number]) - usual > inside[number]:
            return number
    return None


def _cycle(holder: int, number: int, follows: Mapping[int, int | None]) -> tuple[int, ...]:
    """Return the cycle that closes because `holder`, already below `number`, holds it; empty when it is beside it."""
    chain = [number]
    while chain[-1] != holder:
        following = follows[chain[-1]]
        if following is None:
            return ()
        chain.append(following)
    return tuple(chain)


def _cycle_text(chain: tuple[object, ...]) -> tuple[str, str]:
    """Write a cycle; with the library whose class it begins with."""
    # Begin where a reader recognises something: at an instance rather than at its dict, method or cell.
    plain = set(map(id, (dict, list, tuple, types.MethodType, types.FunctionType, types.CellType)))
    start = next((index for index, link in enumerate(chain) if id(type(link)) not in plain), 0)
    turned = [*chain[start:], *chain[: start + 1]]
    first = type(turned[0])
    return f"{describe_chain(type_name(first), turned)} → {type_name(first)}", library_of(first)


def closure_above(target: object, own: Iterable[object]) -> str | None:
    """Return the function whose closure holds `target`, with the variable, when no Python object leads to it further.

    Such a function is a hook that C++ keeps.
    """
    skip = {*map(id, own), *_running()}
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
