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
        if call < 0 or codes[call] != Op.HIDDEN_EMPTY_CACHE or quiet[begin]:
            continue
        keep[call] = False
        for step in range(call - 1, -1, -1):
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
