"""Frees that wait for another stream: when they complete is a matter of the GPU's time, and differs from run to run.

A block that other streams used (``record_stream``) can be used again once the allocator has seen their events complete;
it looks at the next request. The recording says when that was in one run. Under another setting, or in the next run of
the same one, it may be a request earlier or later: of 23 pairs of runs of one program under one setting on an H200, 12
had the same peak, and two were 13 % apart.

Of 712 predictions for six such programs, held against an H200, the recorded moments gave the exact peak in 421, as
often as a second run does; no other choice of moments, nor the median of many, was right as often. So they are the
point, and the range comes from programs whose frees complete at once, sooner, later, and each at a time of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.program import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.program import Program

__all__ = ["waits", "with_delays", "with_disturbed_delays"]

# How much sooner or later a completion is thought to come: half of them within a factor of 2.7 (e to the 0.67 x 1.5).
_SPREAD = 1.5
# A free directly before a request may have waited too, and have been found complete at once. So many as among the
# others are thought to have done so, and to be found complete a few steps on.
_FEW_STEPS = 4


def waits(program: Program) -> bool:
    """Tell whether any free of a program was seen to wait."""
    return bool(np.any(program.codes == Op.FREE_LATER))


def with_delays(program: Program, factor: float) -> Program:
    """Move every completion to `factor` times its distance from its request."""
    return _moved(program, factor)


def with_disturbed_delays(program: Program, seed: int) -> Program:
    """Give every completion a time of its own, around its recorded one; let some more frees wait.

    Parameters
    ----------
    program
        As recorded.
    seed
        The same number gives the same program.
    """
    draw = np.random.default_rng(seed)
    codes, count = program.codes, len(program.codes)
    factors = np.exp(_SPREAD * draw.standard_normal(int(np.count_nonzero(codes == Op.COMPLETE))))
    at_request = np.zeros(count, bool)
    at_request[:-1] = (codes[:-1] == Op.FREE) & (codes[1:] == Op.ALLOC)
    waiting = int(np.count_nonzero(codes == Op.FREE_LATER))
    others = int(np.count_nonzero((codes == Op.FREE) & ~at_request))
    share = waiting / max(waiting + others, 1)
    late = np.flatnonzero(at_request & (draw.random(count) < share))
    return _moved(program, factors, late, draw.exponential(_FEW_STEPS, len(late)))


def _moved(
    program: Program,
    factor: float | NDArray[np.float64],
    late: NDArray[np.intp] | None = None,
    delays: NDArray[np.float64] | None = None,
) -> Program:
    """Move completions to `factor` times their distance from the request, and complete the frees `late` by `delays`."""
    codes, arguments, events = program.codes.copy(), program.arguments, program.events
    position = np.arange(len(codes), dtype=np.float64)
    requested_at: NDArray[np.float64] = np.zeros(len(program.requested), dtype=np.float64)
    asked = codes == Op.FREE_LATER
    requested_at[arguments[asked]] = position[asked]
    completed = codes == Op.COMPLETE
    begin = requested_at[arguments[completed]]
    position[completed] = begin + (position[completed] - begin) * factor + 0.5
    if late is not None and delays is not None:
        codes[late] = Op.FREE_LATER
        codes = np.append(codes, np.full(len(late), int(Op.COMPLETE), codes.dtype))
        arguments = np.append(arguments, arguments[late])
        events = np.append(events, events[late])
        position = np.append(position, late + 1.5 + delays)
    order = np.argsort(position, kind="stable")
    return replace(program, codes=codes[order], arguments=arguments[order], events=events[order], _steps=[])
