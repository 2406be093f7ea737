"""When a capture emptied the cache: entering one does so, before it allocates for the graph.

``torch.cuda.graph`` empties the cache, the capture takes two small blocks for its random numbers, and what the program
does in it comes after that: it may give back whole segments before it first asks for memory. Where the call left no
event it is looked for from the first allocation backwards, at a moment at which it would have left none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.program import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.program import Program

__all__ = ["has_captures", "with_calls_where_quiet"]

_FREES = {int(Op.FREE), int(Op.FREE_LATER)}
# The state of a generator of random numbers: two of one number each.
_STATE_BYTES = 512
_STATES = 2


def has_captures(program: Program) -> bool:
    """Tell whether a capture is in a program."""
    return bool(np.any(program.codes == Op.BEGIN_CAPTURE))


def with_calls_where_quiet(program: Program, quiet: NDArray[np.bool_]) -> Program:
    """Move the calls at the beginning of captures to where they would have left no event; leave out those that did.

    Parameters
    ----------
    program
        With `Op.HIDDEN_EMPTY_CACHE` directly before each `Op.BEGIN_CAPTURE`.
    quiet
        Before which operations a call would have left no event.
    """
    codes = program.codes
    order = np.arange(len(codes), dtype=np.float64)
    keep = np.ones(len(codes), bool)
    for begin in np.flatnonzero(codes == Op.BEGIN_CAPTURE).tolist():
        call = begin - 1
        if call < 0 or codes[call] != Op.HIDDEN_EMPTY_CACHE:
            continue
        first = _before_random_numbers(program, begin)
        before = first - 1
        while before >= 0 and codes[before] in _FREES:
            before -= 1
        if before >= 0 and codes[before] == Op.EMPTY_CACHE:
            # That was the capture's own, and what came between is the capture's too.
            keep[call] = False
        elif first < call or not quiet[begin]:
            keep[call] = False
            for step in range(min(first, call - 1), -1, -1):
                if codes[step] in {Op.EMPTY_CACHE, Op.END_CAPTURE}:
                    break
                if quiet[step]:
                    keep[call], order[call] = True, step - 0.5
                    break
    chosen = np.flatnonzero(keep)[np.argsort(order[keep], kind="stable")]
    if np.array_equal(chosen, np.arange(len(codes))):
        return program
    return replace(
        program,
        codes=codes[chosen],
        arguments=program.arguments[chosen],
        events=np.minimum.accumulate(program.events[chosen][::-1])[::-1],
        _steps=[],
    )


def _before_random_numbers(program: Program, begin: int) -> int:
    """Return the operation before which a capture began: the first of what it took for its random numbers.

    Only frees, which a program may do in a capture, lie between these and the first allocation of the graph.
    """
    codes, arguments = program.codes, program.arguments
    later = np.flatnonzero(codes[begin:] == Op.ALLOC)
    call = begin - 1
    if not len(later):
        return call
    stream = program.groups[int(program.group[arguments[begin + int(later[0])]])][1]
    first, found = call, 0
    for step in range(call - 1, -1, -1):
        if codes[step] in _FREES:
            continue
        number = int(arguments[step])
        is_state = codes[step] == Op.ALLOC and program.requested[number] <= _STATE_BYTES
        if not is_state or program.groups[int(program.group[number])] != ((0, 0), stream) or found == _STATES:
            break
        first, found = step, found + 1
    return first
