"""Which line an allocation without a stack belongs to, as far as the stacks around it tell.

Autograd's backward thread has no Python stack. The thread that called ``loss.backward()`` waits meanwhile, and what it
did last before and first after (an allocation or a free, on any device) stands in the same call: then every allocation
between them was made while that line ran. On the recordings this names the line of nearly all of autograd's
allocations. Stacks of the backward thread itself (checkpoints compute again there) are no witnesses: only those count
that begin where the program begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.trace.frames import function_name, is_library, is_native
from gpumem_magic.trace.model import Action, StackTable
from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import Events

__all__ = ["infer_frames"]


def _frees_have_their_own(events: Events, history: History) -> bool:
    """Return whether frees carry the stack of the free (``context="all"``), not that of the allocation again."""
    lives = history.lifetimes
    both = (lives.alloc_event >= 0) & (lives.free_event >= 0)
    allocated, freed = events.stack[lives.alloc_event[both]], events.stack[lives.free_event[both]]
    return bool(np.any((freed != 0) & (allocated != 0) & (freed != allocated)))


def _python_only(stacks: StackTable) -> StackTable:
    """Leave out C++ frames, which are mixed with Python's in no order that tells what called what."""
    native = [is_native(frame.filename) for frame in stacks.frames]
    if not any(native):
        return stacks
    return StackTable(stacks.frames, tuple(tuple(f for f in stack if not native[f]) for stack in stacks.stacks))


def _frame_between(before: int, after: int, stacks: StackTable) -> int:
    """Return the user's frame that called the library function in which both stacks are, or -1.

    Both must agree frame by frame from the outermost one into the library: a user's function in which the two are at
    different lines says nothing.
    """
    frame, inside = -1, False
    for one, other in zip(reversed(stacks.stacks[before]), reversed(stacks.stacks[after]), strict=False):
        if one != other:
            break
        if is_library(stacks.frames[one].filename):
            inside = True
        else:
            frame, inside = one, False
    return frame if inside else -1


def _program_stacks(stacks: StackTable) -> NDArray[np.bool_]:
    """Return which stacks begin where the program begins: in a module, or where a kernel is started."""
    roots = [stacks.frames[stack[-1]].name if stack else "" for stack in stacks.stacks]
    return np.array([function_name(name) in {"<module>", "_run_module_as_main"} for name in roots], bool)


def _anchors(
    devices: Sequence[tuple[Events, History]], stacks: StackTable
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return times and stacks of what the program's own thread did, on all devices, in time order."""
    program = _program_stacks(stacks)
    times, numbers = [], []
    for events, history in devices:
        known = program[events.stack] & (events.action == Action.ALLOC)
        if _frees_have_their_own(events, history):
            known |= program[events.stack] & (events.action == Action.FREE_REQUESTED)
        times.append(rising(events.time_us)[known])
        numbers.append(events.stack[known])
    time_us, stack = np.concatenate(times), np.concatenate(numbers)
    order = np.argsort(time_us, kind="stable")
    return time_us[order], stack[order]


def infer_frames(events: Events, devices: Sequence[tuple[Events, History]], stacks: StackTable) -> NDArray[np.int32]:
    """Find a frame for each allocation that has no stack, or none of Python.

    Parameters
    ----------
    events
        The events of one device.
    devices
        Events and replay of every device of the trace.
    stacks
        Stacks of the trace.

    Returns
    -------
    numpy.ndarray
        Index into `StackTable.frames`, or -1: the event has a Python stack, or its line cannot be told. int32, shape
        ``(n,)``.
    """
    result = np.full(len(events), -1, np.int32)
    # With C++ frames, autograd's thread has a stack, and nothing of Python in it.
    stacks = _python_only(stacks)
    has_python = np.array([bool(stack) for stack in stacks.stacks], bool)
    wanted = np.flatnonzero(~has_python[events.stack] & (events.action == Action.ALLOC))
    if not len(wanted):
        return result
    time_us, stack = _anchors(devices, stacks)
    moments = rising(events.time_us)[wanted]
    # Within one microsecond the order between devices is unknown: what shares it is no witness.
    before, after = np.searchsorted(time_us, moments, "left") - 1, np.searchsorted(time_us, moments, "right")
    inside = (before >= 0) & (after < len(time_us))
    wanted, before, after = wanted[inside], before[inside], after[inside]
    if not len(wanted):
        return result
    width = len(stacks.stacks)
    pairs, which = np.unique(stack[before].astype(np.int64) * width + stack[after], return_inverse=True)
    frames = np.array([_frame_between(pair // width, pair % width, stacks) for pair in pairs.tolist()], np.int32)
    result[wanted] = frames[which.reshape(-1)]
    return result
