"""What the program asked of the allocator, without what the allocator made of it.

A recording mixes the two. Requests, frees and the order in which they came are the program's and stay the same under
another setting; addresses and segments are the allocator's and do not. Releases of cached segments can be either: the
program's ``empty_cache``, or the allocator's way to satisfy a request.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.ranges import within
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import DeviceTrace, StackTable

__all__ = ["Op", "Program", "extract", "recorded_limit"]


class Op(enum.IntEnum):
    """One step of a program. The argument is a lifetime's number, except where said."""

    ALLOC = 0
    FREE = 1  # completed at once
    FREE_LATER = 2  # requested; other streams still use the block
    COMPLETE = 3  # the later half of it
    EMPTY_CACHE = 4
    FAIL = 5  # a request that failed in the recording; the argument is a number in `Program.failed`
    BEGIN_CAPTURE = 6
    END_CAPTURE = 7


@dataclass(frozen=True)
class Program:
    """Operations of one device, as columns of shape ``(n,)``, and the lifetimes that they name.

    Attributes
    ----------
    codes, arguments
        `Op` and its argument.
    events
        Index of the event that an operation comes from, -1 for what was there before.
    requested
        Bytes asked for, by lifetime.
    group
        Index into `groups`, by lifetime.
    groups
        (pool, stream) pairs; blocks of different pairs never serve each other.
    failed
        (bytes, group) of requests that failed in the recording.
    """

    codes: NDArray[np.uint8]
    arguments: NDArray[np.int32]
    events: NDArray[np.int32]
    requested: NDArray[np.int64]
    group: NDArray[np.int32]
    groups: tuple[tuple[tuple[int, int], int], ...]
    failed: tuple[tuple[int, int], ...] = ()
    # Operations in order, filled on first use.
    _steps: list[tuple[int, int]] = field(default_factory=list, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        # 400,000 pairs take longer to send than to build.
        return {**self.__dict__, "_steps": []}

    def steps(self) -> list[tuple[int, int]]:
        """Return (code, argument) pairs as Python numbers; built once, because every replay walks them."""
        if not self._steps:
            # In one assignment: two threads may replay the program at once.
            self._steps[:] = list(zip(self.codes.tolist(), self.arguments.tolist(), strict=True))
        return self._steps


def extract(device: DeviceTrace, history: History, stacks: StackTable, settings: Mapping[str, object]) -> Program:
    """Turn a recording into the program that it shows.

    Parameters
    ----------
    device
        The recording.
    history
        Its replay, which pairs allocations with frees.
    stacks
        Stacks of the trace: they tell ``empty_cache`` from the allocator's own releases.
    settings
        `Trace.settings`.

    Returns
    -------
    Program
        What was alive before the first event is allocated first, in address order.
    """
    events = device.events
    lives = history.lifetimes
    # Never empty: what is only reserved belongs to a pair too.
    groups: dict[tuple[tuple[int, int], int], int] = {((0, 0), 0): 0}
    for segment in device.segments:
        groups.setdefault((segment.pool_id, segment.stream), len(groups))
    pools = _pools(device, history)
    group = np.array(
        [
            groups.setdefault((pool, stream), len(groups))
            for pool, stream in zip(pools, lives.stream.tolist(), strict=True)
        ],
        dtype=np.int32,
    )
    codes, arguments, order = _block_operations(device, history)
    extra: list[tuple[int, int, int]] = [
        (event, Op.EMPTY_CACHE, 0) for event in _empty_caches(device, history, stacks, settings)
    ]
    failures = np.flatnonzero(events.action == Action.OOM).tolist()
    failed: list[tuple[int, int]] = []
    for event in failures:
        extra.append((event, Op.FAIL, len(failed)))
        stream = int(events.stream[event])
        failed.append((int(events.size[event]), groups.setdefault(((0, 0), stream), len(groups))))
    captured = np.array([pool[0] != 0 for pool in pools], dtype=bool) & (lives.alloc_event >= 0)
    for pool in {pool for pool in pools if pool[0] != 0}:
        mine = lives.alloc_event[captured & np.array([one == pool for one in pools], dtype=bool)]
        if len(mine):
            # Entering a capture empties the cache, which leaves no event when no whole segment was free.
            first, last = int(mine.min()), int(mine.max())
            extra += [(first, Op.EMPTY_CACHE, 0), (first, Op.BEGIN_CAPTURE, 0), (last + 1, Op.END_CAPTURE, 0)]
    if extra:
        at = np.array([event for event, _, _ in extra], dtype=np.int64)
        # Stable, and extra operations go before the block operation of the same event.
        position = np.searchsorted(order, at, side="left")
        codes = np.insert(codes, position, np.array([code for _, code, _ in extra], dtype=np.uint8))
        arguments = np.insert(arguments, position, np.array([value for _, _, value in extra], dtype=np.int32))
        order = np.insert(order, position, at)
    return Program(
        codes=codes,
        arguments=arguments,
        events=order.astype(np.int32),
        requested=np.maximum(lives.requested, 1),
        group=group,
        groups=tuple(groups),
        failed=tuple(failed),
    )


def recorded_limit(device: DeviceTrace, history: History, settings: Mapping[str, object]) -> int | None:
    """Return the largest limit on reserved bytes under which the recording's requests fail as they did.

    None when nothing failed.
    """
    events = device.events
    typed = from_torch(settings)
    failures = np.flatnonzero(events.action == Action.OOM).tolist()
    if not failures:
        return None
    return min(int(history.reserved[event]) + segment_size(int(events.size[event]), typed) - 1 for event in failures)


def _block_operations(
    device: DeviceTrace, history: History
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int64]]:
    events, lives = device.events, history.lifetimes
    count = len(events)
    owner = np.full(count, -1, dtype=np.int32)
    numbers = np.arange(len(lives), dtype=np.int32)
    code = np.full(count, 255, dtype=np.uint8)
    for column, action, op in (
        (lives.release_event, Action.FREE_COMPLETED, Op.COMPLETE),
        (lives.free_event, Action.FREE_REQUESTED, Op.FREE_LATER),
        (lives.alloc_event, Action.ALLOC, Op.ALLOC),
    ):
        known = column >= 0
        # A lifetime that a contradiction ended points at an event of another kind.
        known[known] = events.action[column[known]] == action
        owner[column[known]] = numbers[known]
        code[column[known]] = op
    # A completion without a request, and the two halves side by side, are a plain free.
    lone = (lives.free_event == lives.release_event) & (lives.release_event >= 0)
    code[lives.release_event[lone]] = np.where(code[lives.release_event[lone]] == Op.COMPLETE, Op.FREE, 255)
    at_once = (lives.free_event >= 0) & (lives.release_event == lives.free_event + 1)
    at_once[at_once] = code[lives.free_event[at_once]] == Op.FREE_LATER
    code[lives.free_event[at_once]] = Op.FREE
    code[lives.release_event[at_once]] = 255
    order = np.flatnonzero(code != 255)
    before = numbers[lives.alloc_event < 0]
    before = before[np.argsort(lives.address[before], kind="stable")]
    codes = np.concatenate([np.full(len(before), Op.ALLOC, dtype=np.uint8), code[order]])
    arguments = np.concatenate([before, owner[order]])
    return codes, arguments, np.concatenate([np.full(len(before), -1, dtype=np.int64), order])


def _pools(device: DeviceTrace, history: History) -> list[tuple[int, int]]:
    """Return the pool of every lifetime: recorded from torch 2.12 on, before that told by the final segments."""
    lives = history.lifetimes
    pools: list[tuple[int, int]] = [(0, 0)] * len(lives)
    private = [segment for segment in device.segments if segment.pool_id != (0, 0)]
    for segment in private:
        inside = within(lives.address, segment.address, segment.size)
        for number in np.flatnonzero(inside).tolist():
            pools[number] = segment.pool_id
    if device.pool_ids:
        recorded = np.where(lives.alloc_event >= 0, device.events.pool[np.maximum(lives.alloc_event, 0)], -1)
        for number in np.flatnonzero(recorded >= 0).tolist():
            pools[number] = device.pool_ids[recorded[number]]
    return pools


def _empty_caches(
    device: DeviceTrace, history: History, stacks: StackTable, settings: Mapping[str, object]
) -> list[int]:
    """Return the events at which the program emptied the cache: first events of bursts of releases."""
    events = device.events
    released = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    firsts = np.flatnonzero(released & ~np.concatenate([[False], released[:-1]])).tolist() if len(released) else []
    limit = recorded_limit(device, history, settings)
    emptied = []
    for first in firsts:
        last = first
        while last + 1 < len(events) and released[last + 1]:
            last += 1
        following = int(events.action[last + 1]) if last + 1 < len(events) else Action.UNKNOWN
        if following in {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM}:
            names = {frame.name for frame in stacks.resolve(int(events.stack[last]))}
            own_stack = int(events.stack[last]) != 0 and events.stack[last] == events.stack[last + 1]
            if "empty_cache" not in names and own_stack:
                continue
            # Without stacks: the allocator releases only when the request would pass the limit.
            wanted = int(history.reserved[first]) + int(events.size[last + 1])
            if "empty_cache" not in names and limit is not None and wanted > limit:
                continue
        emptied.append(first)
    return emptied
