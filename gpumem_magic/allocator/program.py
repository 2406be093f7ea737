"""What the program asked of the allocator, without what the allocator made of it.

A recording mixes the two. Requests, frees and the order in which they came are the program's and stay the same under
another setting; addresses and segments are the allocator's and do not. Releases of cached segments can be either: the
program's ``empty_cache``, or the allocator's way to satisfy a request.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gpumem_magic.allocator.private_pools import freed_pools, pool_uses, pools_of
from gpumem_magic.allocator.releases import find_releases
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.evidence import Evidence
    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.releases import Release
    from gpumem_magic.trace.model import DeviceTrace, Events

__all__ = ["Doubt", "Op", "Program", "extract", "find_doubts"]

# A private pool that is known to have been in use, but not which.
_SOME_POOL = (0, -1)


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
    HIDDEN_EMPTY_CACHE = 8  # as EMPTY_CACHE; it released nothing under the recorded setting
    FREE_POOL = 9  # nobody holds a private pool any more; the argument is an index into `Program.groups`
    POSSIBLE_EMPTY_CACHE = 10  # as EMPTY_CACHE; the recording would look the same with it and without it


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

    def with_calls(self, steps: NDArray[np.int64]) -> Program:
        """Empty the cache before each of the given operations, in ascending order."""
        return replace(
            self,
            codes=np.insert(self.codes, steps, np.uint8(Op.POSSIBLE_EMPTY_CACHE)),
            arguments=np.insert(self.arguments, steps, np.int32(0)),
            events=np.insert(self.events, steps, self.events[steps]),
            _steps=[],
        )

    def keeping(self, keep: NDArray[np.bool_]) -> Program:
        """Leave out the operations that are not marked."""
        if keep.all():
            return self
        return replace(
            self,
            codes=self.codes[keep],
            arguments=self.arguments[keep],
            events=self.events[keep],
            _steps=[],
        )


def extract(evidence: Evidence, turned: frozenset[Doubt] = frozenset()) -> Program:
    """Turn a recording into the program that it shows.

    Parameters
    ----------
    evidence
        The recording, and what is known of it.
    turned
        Those of `find_doubts` that are taken to be so.

    Returns
    -------
    Program
        What was alive before the first event is allocated first, in address order.
    """
    device, history = evidence.device, evidence.history
    events = device.events
    lives = history.lifetimes
    # Never empty: what is only reserved belongs to a pair too.
    groups: dict[tuple[tuple[int, int], int], int] = {((0, 0), 0): 0}
    for segment in device.segments:
        groups.setdefault((segment.pool_id, segment.stream), len(groups))
    pools = pools_of(device, history)
    group = np.array(
        [
            groups.setdefault((pool, stream), len(groups))
            for pool, stream in zip(pools, lives.stream.tolist(), strict=True)
        ],
        dtype=np.int32,
    )
    codes, arguments, order = _block_operations(device, history)
    releases = [
        one._replace(is_whole=True) if Doubt(one.first, "whole") in turned else one for one in find_releases(evidence)
    ]
    codes, arguments, order = _without_completions(codes, arguments, order, events, releases)
    extra: list[tuple[int, int, int]] = [
        (one.first, Op.EMPTY_CACHE, 0) for one in releases if one.asked or Doubt(one.first, "emptied") in turned
    ]
    extra += [
        (event, Op.FREE_POOL, index)
        for event, pool in freed_pools(device, releases)
        for (of, _), index in tuple(groups.items())
        if of == pool
    ]
    # A pool is free before the cache is emptied.
    extra.sort(key=lambda one: (one[0], one[1] != Op.FREE_POOL))
    uses = pool_uses(device, history, pools)
    failed: list[tuple[int, int]] = []
    for event in np.flatnonzero(events.action == Action.OOM).tolist():
        extra.append((event, Op.FAIL, len(failed)))
        stream = int(events.stream[event])
        pool = next((use.pool for use in uses if use.first < event <= use.last and use.stream == stream), (0, 0))
        waiting = (lives.free_event >= 0) & (lives.free_event < event) & (lives.release_event > event)
        if pool == (0, 0) and (Doubt(event, "in pool") in turned or np.any(waiting)):
            # Giving back the cache waits for all streams first. Frees still waited, so a private pool was in use.
            pool = _SOME_POOL
        failed.append((int(events.size[event]), groups.setdefault((pool, stream), len(groups))))
    for use in uses:
        if use.pool[0] != 0:
            # Entering a capture empties the cache, which leaves no event when no whole segment was free.
            extra.append((use.first, Op.HIDDEN_EMPTY_CACHE, 0))
            extra += [(use.first, Op.BEGIN_CAPTURE, 0), (use.last + 1, Op.END_CAPTURE, 0)]
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


class Doubt(NamedTuple):
    """Something that a recording may or may not show.

    `what` is ``"emptied"`` (a release that the allocator seems to have made for itself was the program's),
    ``"whole"`` (what completed before it was completed by it), or ``"in pool"`` (a request that failed was made while
    a private pool was in use, when less is released for it).
    """

    event: int
    what: Literal["emptied", "whole", "in pool"]


def find_doubts(evidence: Evidence) -> list[Doubt]:
    """Return what has two explanations, in order."""
    releases = find_releases(evidence)
    action = evidence.device.events.action
    # Without a limit a request has nothing released, unless something else filled the device: then it is repeated as a
    # call of the program's, which gives the same back at the same moment.
    squeezed = evidence.limit is None
    found = [Doubt(one.first, "emptied") for one in releases if one.asked is None or (squeezed and one.asked is False)]
    found += [
        Doubt(one.first, "whole")
        for one in releases
        if one.is_ladder and not one.is_whole and one.first and action[one.first - 1] == Action.FREE_COMPLETED
    ]
    if any(segment.pool_id != (0, 0) for segment in evidence.device.segments):
        found += [Doubt(event, "in pool") for event in np.flatnonzero(action == Action.OOM).tolist()]
    return sorted(found)


def _without_completions(
    codes: NDArray[np.uint8],
    arguments: NDArray[np.int32],
    order: NDArray[np.int64],
    events: Events,
    releases: list[Release],
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int64]]:
    """Leave out the completions that a request brings about by releasing the whole cache.

    The model makes them itself, after it has looked for a free block and collected garbage, as torch does.
    """
    keep = np.ones(len(codes), dtype=bool)
    codes = codes.copy()
    for one in releases:
        if not one.is_ladder or one.asked:
            continue
        begin = one.first
        while one.is_whole and begin > 0 and events.action[begin - 1] == Action.FREE_COMPLETED:
            begin -= 1
        low, high = np.searchsorted(order, [begin, one.last + 1])
        keep[low:high] &= codes[low:high] != Op.COMPLETE
        if not one.is_whole:
            continue
        # A free whose halves stand side by side may have waited all the same.
        at = int(np.searchsorted(order, begin - 1))
        if at < len(order) and order[at] == begin - 1 and codes[at] == Op.FREE:
            codes[at] = Op.FREE_LATER
    return codes[keep], arguments[keep], order[keep]


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
