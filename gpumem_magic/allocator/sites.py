"""Calls of ``empty_cache`` that left no event, told by where the program is.

A call that finds nothing to give back leaves no event, but the program stands at the same line as when one did. Where
stacks were recorded, each call that is seen stands between two requests of known places, so many frees before the
second one. If one was seen at each pass by these two places at which it would have left an event, it is a call in a
loop, under no condition: it is taken to have been made at the other passes too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.program import Op
from gpumem_magic.trace.frames import is_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpumem_magic.allocator.program import Program
    from gpumem_magic.trace.model import DeviceTrace, StackTable

__all__ = ["find_unshown_calls"]

# Seen fewer times, or not at a larger share of the passes, a call may as well stand under a condition. Of 300
# recordings of random loops, 62 with calls that left no event, 55 were told some, and none too many; of 900 with a call
# at every second, third or fifth pass none was told any.
_LEAST_SEEN = 3
_MOST_UNSHOWN = 0.5
_FREES = (int(Op.FREE), int(Op.FREE_LATER))


class _Pass(NamedTuple):
    """The program on its way between two requests: their places, and the operation before which a call would come."""

    places: tuple[object, object]
    first: int
    last: int


def find_unshown_calls(
    device: DeviceTrace, stacks: StackTable, program: Program, quiet: Callable[[], NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """Find the operations before which the program called ``empty_cache`` and no event shows it.

    Parameters
    ----------
    device, stacks, program
        The recording, and the program in it.
    quiet
        Returns before which operations a call would have left no event (`gpumem_magic.allocator.verify.find_quiet`);
        called only where it matters.

    Returns
    -------
    ndarray
        Ascending; empty where stacks do not tell, or nothing is that certain.
    """
    nothing = np.zeros(0, np.int64)
    codes = program.codes
    seen = np.flatnonzero((codes == Op.EMPTY_CACHE) & _is_called(device, stacks, program))
    if len(seen) < _LEAST_SEEN:
        return nothing
    passes = _passes(device, stacks, program)
    firsts = np.array([one.first for one in passes], np.int64)
    # (places, frees after the call) → numbers of the passes where it was seen.
    at: dict[tuple[object, int], set[int]] = defaultdict(set)
    for call in seen.tolist():
        number = int(np.searchsorted(firsts, call, "right")) - 1
        if number >= 0 and call < passes[number].last:
            frees = int(np.isin(codes[call : passes[number].last], _FREES).sum())
            at[passes[number].places, frees].add(number)
    regular = {key: numbers for key, numbers in at.items() if len(numbers) >= _LEAST_SEEN}
    by_places: dict[object, list[int]] = defaultdict(list)
    for number, one in enumerate(passes):
        by_places[one.places].append(number)
    if not any(len(by_places[places]) > len(numbers) for (places, _), numbers in regular.items()):
        return nothing
    silent = quiet()
    found: list[int] = []
    for (places, frees), numbers in regular.items():
        others = [_before(codes, passes[number], frees) for number in by_places[places] if number not in numbers]
        # Were it called on condition, it would not show in some pass where it had to.
        if len(others) <= _MOST_UNSHOWN * len(numbers) and all(step is not None and silent[step] for step in others):
            found += [step for step in others if step is not None]
    return np.array(sorted(found), np.int64)


def _is_called(device: DeviceTrace, stacks: StackTable, program: Program) -> NDArray[np.bool_]:
    """Mark the operations whose stack has the function in it: entering a capture calls it too."""
    count = len(stacks.stacks)
    named = np.array([any(frame.name == "empty_cache" for frame in stacks.resolve(number)) for number in range(count)])
    # What was there before has no event, and a capture can end after the last one.
    known = (program.events >= 0) & (program.events < len(device.events))
    marked: NDArray[np.bool_] = known.copy()
    marked[known] = named[device.events.stack[program.events[known]]]
    return marked


def _passes(device: DeviceTrace, stacks: StackTable, program: Program) -> list[_Pass]:
    """Return the stretches between each two requests of which the places are known."""
    places = [
        tuple((frame.filename, frame.line) for frame in stacks.resolve(number) if not is_library(frame.filename))
        for number in range(len(stacks.stacks))
    ]
    steps = np.flatnonzero((program.codes == Op.ALLOC) & (program.events >= 0))
    stack = device.events.stack[program.events[steps]].tolist()
    steps = steps.tolist()
    return [
        _Pass((places[before], places[after]), first + 1, last)
        for first, last, before, after in zip(steps, steps[1:], stack, stack[1:], strict=False)
        if places[before] and places[after]
    ]


def _before(codes: NDArray[np.uint8], one: _Pass, frees: int) -> int | None:
    """Return the operation in a pass that `frees` frees are left from, None when it has fewer."""
    inside = np.flatnonzero(np.isin(codes[one.first : one.last], _FREES)) + one.first
    if len(inside) < frees:
        return None
    return int(inside[-frees]) if frees else one.last
