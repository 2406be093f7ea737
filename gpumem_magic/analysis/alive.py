"""Who is alive at a moment, by the line of code that allocated it. The parts add up to the byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.trace.frames import is_native, user_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import Frame, StackTable

__all__ = ["Alive", "AliveGroup", "alive_at", "alive_mask", "peak_event"]


@dataclass(frozen=True)
class AliveGroup:
    """Blocks that one line of code holds at a moment.

    Attributes
    ----------
    file, line, function
        The user's innermost frame; None where no stack was recorded, and `reason` then says why.
    requested
        Bytes that were asked for.
    size
        Bytes of the blocks, rounding and unsplit remainders included.
    blocks
        Number of blocks.
    stacks
        Numbers of the stacks in the group, the largest first.
    inferred
        Part of `requested` that has no stack of its own and is here because the program was in this line before and
        after it (`gpumem_magic.analysis.stackless`).
    """

    file: str | None
    line: int | None
    function: str | None
    requested: int
    size: int
    blocks: int
    reason: str | None = None
    stacks: tuple[int, ...] = ()
    inferred: int = 0


@dataclass(frozen=True)
class Alive:
    """Everything allocated at a moment, largest group first.

    ``sum(group.requested) == requested``, ``sum(group.size) == allocated == requested + rounding``.
    """

    event: int
    allocated: int
    requested: int
    rounding: int
    groups: tuple[AliveGroup, ...]


def peak_event(history: History) -> int:
    """Return the index of the event after which allocated bytes first reach their peak, -1 for "before the first"."""
    return int(np.argmax(history.allocated)) - 1


def alive_mask(history: History, event: int) -> NDArray[np.bool_]:
    """Mark the lifetimes that count as allocated after event number `event` (-1: before the first event).

    Returns
    -------
    ndarray
        bool, shape ``(m,)``. Blocks whose free was requested and waits for other streams are active, not allocated.
    """
    lives = history.lifetimes
    begun = lives.alloc_event <= event
    ended = (lives.free_event == -2) | ((lives.free_event >= 0) & (lives.free_event <= event))
    mask: NDArray[np.bool_] = begun & ~ended
    return mask


def alive_at(
    history: History,
    stacks: StackTable,
    event: int,
    *,
    choose: Callable[[Sequence[Frame]], Frame | None] = user_frame,
    inferred: NDArray[np.int32] | None = None,
) -> Alive:
    """Group what is allocated after event number `event`.

    Parameters
    ----------
    history
        The device's replay.
    stacks
        Stacks of the trace.
    event
        Index of an event, -1 for the state before the first.
    choose
        Picks the frame that names a stack.
    inferred
        What `gpumem_magic.analysis.stackless.infer_frames` found for the device's events.

    Returns
    -------
    Alive
        Groups that add up exactly: `Alive.allocated` equals ``history.allocated[event + 1]``.
    """
    lives = history.lifetimes
    alive = np.flatnonzero(alive_mask(history, event))
    requested = np.maximum(lives.requested[alive], 0)
    size = lives.size[alive]
    stack = lives.stack[alive].astype(np.int64)
    is_before = lives.alloc_event[alive] < 0
    # Blocks without a stack from before the recording and from within are different unknowns.
    key = np.where((stack == 0) & is_before, -1, stack)
    if inferred is not None and len(inferred):
        # Frames in the place of stacks count down from -2.
        frame = np.where(is_before, -1, inferred[np.maximum(lives.alloc_event[alive], 0)]).astype(np.int64)
        key = np.where(frame >= 0, -2 - frame, key)
    numbers, inverse, blocks = np.unique(key, return_inverse=True, return_counts=True)
    by_stack_requested = np.zeros(len(numbers), dtype=np.int64)
    by_stack_size = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(by_stack_requested, inverse, requested)
    np.add.at(by_stack_size, inverse, size)
    has_stacks = len(stacks.stacks) > 1
    members: dict[tuple[str | None, int | None, str | None, str | None], list[int]] = {}
    for position, number in enumerate(numbers.tolist()):
        members.setdefault(_owner(number, stacks, choose, has_stacks=has_stacks), []).append(position)
    groups = []
    for (file, line, function, reason), positions in members.items():
        positions.sort(key=lambda position: -int(by_stack_size[position]))
        groups.append(
            AliveGroup(
                file=file,
                line=line,
                function=function,
                requested=int(by_stack_requested[positions].sum()),
                size=int(by_stack_size[positions].sum()),
                blocks=int(blocks[positions].sum()),
                reason=reason,
                stacks=tuple(int(numbers[position]) for position in positions if numbers[position] > 0),
                inferred=int(by_stack_requested[[position for position in positions if numbers[position] < -1]].sum()),
            )
        )
    groups.sort(key=lambda group: (-group.requested, group.file or "", group.line or 0, group.function or ""))
    total, asked = int(size.sum()), int(requested.sum())
    return Alive(event, total, asked, total - asked, tuple(groups))


def _owner(
    number: int, stacks: StackTable, choose: Callable[[Sequence[Frame]], Frame | None], *, has_stacks: bool
) -> tuple[str | None, int | None, str | None, str | None]:
    if number < -1:
        inferred = stacks.frames[-2 - number]
        return inferred.filename, inferred.line or None, inferred.name, None
    if number < 0:
        return None, None, None, "allocated before the recording began"
    if number == 0:
        reason = "no Python stack: autograd's thread or C++ code" if has_stacks else "recorded without stacks"
        return None, None, None, reason
    frame = choose(stacks.resolve(number))
    if frame is None or is_native(frame.filename):
        return None, None, None, "no Python stack: autograd's thread or C++ code"
    return frame.filename, frame.line or None, frame.name, None
