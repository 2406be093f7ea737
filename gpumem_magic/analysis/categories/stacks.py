"""Phases from recorded Python stacks: what a file knows, and what Python before 3.12 knows with ``--stacks python``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.categories.phases import (
    BACKWARD,
    BUILD,
    FORWARD,
    LOADER,
    OUTSIDE,
    STEP,
    ZERO_GRAD,
    Phases,
)
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.trace.model import Events, Frame, StackTable

__all__ = ["from_stacks", "phase_of"]

# Where torch's own calls are, by the end of the file's name and the function's; "" stands for any function.
_FRAMES = (
    ("torch/autograd/graph.py", "_engine_run_backward", BACKWARD),
    ("torch/autograd/__init__.py", "backward", BACKWARD),
    ("torch/autograd/__init__.py", "grad", BACKWARD),
    ("torch/optim/optimizer.py", "zero_grad", ZERO_GRAD),
    ("torch/optim/optimizer.py", "wrapper", STEP),
    ("torch/nn/modules/module.py", "zero_grad", ZERO_GRAD),
    ("torch/nn/modules/module.py", "_apply", BUILD),
    ("torch/utils/data/dataloader.py", "__next__", LOADER),
    ("torch/nn/init.py", "", BUILD),
)
# Autograd's thread begins with a custom function's backward (torch.compile's is one).
_ENGINES_CALL = "torch/autograd/function.py"
_MODULE = ("torch/nn/modules/module.py", "_call_impl")


def phase_of(frames: Sequence[Frame]) -> int:
    """Return the phase that a stack, innermost first, was recorded in.

    The innermost of torch's calls counts; a module's call only where there is no other.
    """
    if frames and frames[-1].filename.replace("\\", "/").endswith(_ENGINES_CALL):
        return BACKWARD
    in_module = False
    for frame in frames:
        if "autograd::Engine::" in frame.name:  # a native frame
            return BACKWARD
        file = frame.filename.replace("\\", "/")
        if "torch/" not in file:
            continue
        for end, name, phase in _FRAMES:
            if name in {"", frame.name} and file.endswith(end):
                return phase
        if frame.name == "__init__" and "torch/nn/modules/" in file:
            return BUILD
        in_module = in_module or (frame.name == _MODULE[1] and file.endswith(_MODULE[0]))
    return FORWARD if in_module else OUTSIDE


def from_stacks(events: Events, stacks: StackTable) -> Phases | None:
    """Find the phase of events from their stacks; None where none were recorded.

    What has no stack was done by autograd's thread. A free has the phase of the free where it has a stack of its own,
    else that of what was allocated last.
    """
    if len(stacks.stacks) < 2 or not len(events):
        return None
    used = np.unique(events.stack)
    if not used.any():
        return None
    kinds = np.full(len(stacks.stacks), BACKWARD, np.int8)
    for number in used.tolist():
        if number:
            kinds[number] = phase_of(stacks.resolve(number))
    kind = kinds[events.stack]
    allocated = events.action == Action.ALLOC
    told = allocated | ((events.action == Action.FREE_REQUESTED) & (events.stack != 0))
    last = np.maximum.accumulate(np.where(told, np.arange(len(kind)), -1))
    kind = np.where(last >= 0, kind[np.maximum(last, 0)], OUTSIDE).astype(np.int8)
    begins = np.ones(len(kind), bool)
    begins[1:] = kind[1:] != kind[:-1]
    span = np.where(kind != OUTSIDE, np.cumsum(begins) - 1, -1).astype(np.int32)
    return Phases(kind, span, np.zeros(len(kind), np.int32), ("",), seen=True)
