"""What was not seen by storage: its purpose follows from when it was made, when it was let go, and what is like it.

The rules, each for what the ones before it leave open:

1. Alike: memory of the same line, size, module and phase as some that were seen, all in one role, has that role.
2. Made in ``backward``: gone when it ends: a temporary; there afterwards: a gradient. Made by a module that runs in it
   (a checkpoint computes again) and let go by autograd: an activation.
3. Made in an optimizer's step: gone when it ends: a temporary; there afterwards: optimizer state.
4. Made while a model is built or moved, and there afterwards: a parameter. Made by a loader: an input.
5. Made in a forward: freed by ``backward``: an activation; gone when the forward ends: a temporary. What outlives a
   forward without a backward is its output, or, from three allocations on, a graph that nobody called backward on.
6. Made by other lines: freed by ``backward``: an activation; gone when the line ends: a temporary; else what a
   variable held.
7. Alive at the end and belonging to no tensor at all: a workspace when it has the size of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.analysis.categories.model import (
    ACTIVATION,
    BEFORE,
    BUFFER,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    OTHER,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
    WORKSPACE,
    WORKSPACE_SIZES,
)
from gpumem_magic.analysis.categories.phases import BACKWARD, BUILD, FORWARD, LOADER, OUTSIDE, STEP, UNCLEAR, ZERO_GRAD
from gpumem_magic.trace.constant import constant, is_constant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.categories.phases import Phases
    from gpumem_magic.analysis.model import Timeline

__all__ = ["SEEN_AS", "Facts", "Inferred", "facts", "infer"]

SEEN_AS = {
    "parameter": PARAMETER,
    "buffer": BUFFER,
    "gradient": GRADIENT,
    "optimizer": OPTIMIZER,
    "input": INPUT,
    "activation": ACTIVATION,
    "tensor": OTHER,
}

_TOLD_BY_LIKENESS = (GRADIENT, OPTIMIZER, INPUT, PARAMETER, BUFFER)
# One output or two of a forward are held by variables; more are what a graph keeps.
_GRAPH = 3


class Facts(NamedTuple):
    """Per lifetime: phase and stretch at its beginning and end, and whether the line that made it was still running.

    A lifetime from before the cell begins `OUTSIDE`, one alive at the end ends so, each in stretch -1.
    """

    born: NDArray[np.int8]
    born_span: NDArray[np.int32]
    died: NDArray[np.int8]
    died_span: NDArray[np.int32]
    module: NDArray[np.int32]
    died_module: NDArray[np.int32]
    same_line: NDArray[np.bool_]


class Inferred(NamedTuple):
    """Per lifetime: category (index into `KINDS`), and whether it was inferred."""

    category: NDArray[np.uint8]
    inferred: NDArray[np.bool_]


def facts(timeline: Timeline, phases: Phases, line_run: NDArray[np.int32] | None) -> Facts:
    """Look up the phases of each lifetime's beginning and end.

    Parameters
    ----------
    timeline
        The lifetimes.
    phases
        Of the device's events.
    line_run
        Number of the execution of a line that each event fell into, or None where lines are not known.
    """
    count = timeline.lifetimes
    new, over = timeline.start >= 0, timeline.end >= 0
    first, last = timeline.event[timeline.start[new]], timeline.event[timeline.end[over]]

    def column(values: NDArray[np.generic], where: NDArray[np.bool_], events: NDArray[np.int32], fill: int) -> NDArray:  # type: ignore[type-arg]
        if is_constant(values) and np.all(values[:1] == fill):
            return constant(fill, count, values.dtype)
        result = np.full(count, fill, values.dtype)
        result[where] = values[events]
        return result

    same = np.zeros(count, bool)
    if line_run is not None:
        begun, ended = column(line_run, new, first, -1), column(line_run, over, last, -2)
        same = begun == ended
    return Facts(
        born=column(phases.kind, new, first, OUTSIDE),
        born_span=column(phases.span, new, first, -1),
        died=column(phases.kind, over, last, OUTSIDE),
        died_span=column(phases.span, over, last, -1),
        module=column(phases.module, new, first, 0),
        died_module=column(phases.module, over, last, 0),
        same_line=same,
    )


def _alike(timeline: Timeline, known: NDArray[np.int16], what: Facts) -> NDArray[np.int16]:
    """Give what is like memory whose category is known the same one, where all of it agrees; else -1.

    Temporaries are not told that way, and neither are activations: one operation makes both in one size.
    """
    result = np.full(len(known), -1, np.int16)
    # That a variable holds it says nothing of what it is for.
    told = (known >= 0) & (known != OTHER)
    has = np.flatnonzero(told)
    if not np.isin(known[has], _TOLD_BY_LIKENESS).any():
        return result
    small = ((what.module.astype(np.uint64) * 8 + what.born.astype(np.uint64) + 1) << 16) + timeline.group * 2
    # Sizes have too many values to be numbered; multiplied by an odd number they spread over 64 bits.
    code = timeline.requested.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + small + (timeline.start < 0)
    codes, number = np.unique(code[has], return_inverse=True)
    lowest, highest = np.full(len(codes), 99, np.int16), np.full(len(codes), -1, np.int16)
    np.minimum.at(lowest, number, known[has])
    np.maximum.at(highest, number, known[has])
    agreed = (lowest == highest) & np.isin(highest, _TOLD_BY_LIKENESS)
    row = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
    chosen = (codes[row] == code) & agreed[row] & ~told
    # A line that hides a whole step makes other things of a gradient's size.
    chosen &= (what.born > OUTSIDE) | ~np.isin(highest[row], (GRADIENT, OPTIMIZER))
    # A gradient outlives its backward, state its step: what does not is something else of that size.
    chosen &= ~((what.born == what.died) & (what.born_span == what.died_span) & (what.born != OUTSIDE))
    result[chosen] = highest[row[chosen]]
    return result


def infer(
    timeline: Timeline,
    role: NDArray[np.int16],
    what: Facts,
    *,
    complete: bool,
    seen: bool,
    is_device: bool,
    has_gradients: bool,
) -> Inferred:
    """Give every lifetime a category.

    Parameters
    ----------
    timeline
        The lifetimes, with their groups.
    role
        Category in which each was seen, -1 for not.
    what
        See `Facts`.
    complete
        Whether the look after the code saw everything.
    seen
        Whether phases were watched, not read from the lines' text.
    is_device
        Whether libraries take workspaces here.
    has_gradients
        Whether anything was trained: then a line whose insides are unknown may hide a forward and its backward.
    """
    count = timeline.lifetimes
    new, alive = timeline.start >= 0, timeline.end < 0
    category = np.where(role >= 0, role, -1).astype(np.int16)

    def settle(where: NDArray[np.bool_], kind: int) -> None:
        open_ones = where & (category < 0)
        # Most rules find nothing, and to see that takes a tenth of writing it.
        if open_ones.any():
            category[open_ones] = kind

    within = (what.born == what.died) & (what.born_span == what.died_span) & ~alive & new
    # A batch is known as one where the outermost module was called with it; made inside of another it is that one's.
    category[(role == INPUT) & (what.born == FORWARD)] = -1
    alike = _alike(timeline, category, what)
    category = np.where(alike >= 0, alike, category)
    if is_device and complete:
        # Also one from before the cell: what lives on and belongs to no tensor.
        living = np.flatnonzero(alive & (timeline.blocks > 0))
        is_workspace = np.zeros(count, bool)
        is_workspace[living[np.isin(timeline.requested[living], WORKSPACE_SIZES)]] = True
        settle(is_workspace, WORKSPACE)
    settle(~new, BEFORE)
    settle(new & (timeline.blocks == 0), UNKNOWN)
    settle(within & (what.born == BACKWARD) & (what.module > 0) & (what.died_module == 0), ACTIVATION)
    settle(within & (what.born > OUTSIDE), TEMPORARY)
    freed = ~alive
    settle(freed & (what.born == BACKWARD), GRADIENT)
    settle(freed & (what.born == STEP), OPTIMIZER)
    settle(freed & (what.born == ZERO_GRAD), TEMPORARY)
    settle(freed & (what.born == LOADER), INPUT)
    settle(what.born == BUILD, PARAMETER)
    by_model = (what.born == FORWARD) | (what.born == OUTSIDE)
    settle(freed & by_model & (what.died == BACKWARD), ACTIVATION)
    outlived = (category < 0) & freed & (what.born == FORWARD)
    if outlived.any():
        spans = np.maximum(what.born_span, 0)
        of_span = np.bincount(spans[outlived], minlength=int(spans.max(initial=0)) + 1)
        settle(outlived & (of_span[spans] >= _GRAPH), ACTIVATION)
        settle(outlived, OTHER)
    if seen or not has_gradients or np.any(what.born == BACKWARD):
        settle(freed & what.same_line & (what.born == OUTSIDE), TEMPORARY)
        settle(freed & (what.born == OUTSIDE), OTHER)
    settle(freed & what.same_line & (what.born == UNCLEAR), TEMPORARY)
    if not complete:
        settle(alive & new & (what.born == BACKWARD), GRADIENT)
        settle(alive & new & (what.born == STEP), OPTIMIZER)
        settle(alive & new & (what.born == FORWARD), ACTIVATION)
        settle(alive & new & (what.born == OUTSIDE), OTHER)
    settle(np.ones(count, bool), UNKNOWN)
    inferred = (role != category) & (category != BEFORE) & (category != UNKNOWN)
    return Inferred(category.astype(np.uint8), inferred)
