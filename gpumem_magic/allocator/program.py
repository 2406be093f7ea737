"""What the program asked of the allocator, without what the allocator made of it.

A recording mixes the two. Requests, frees and the order in which they came are the program's and stay the same under
another setting; addresses and segments are the allocator's and do not. Releases of cached segments can be either: the
program's ``empty_cache``, or the allocator's way to satisfy a request.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.ranges import within
from gpumem_magic.allocator.rounding import round_sizes
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.trace.model import DeviceTrace, Events, Segment, StackTable

__all__ = ["Op", "Program", "doubtful_releases", "extract", "recorded_limit"]

# A private pool that is known to have been in use, but not which.
_SOME_POOL = (0, -1)
# A request of an expandable segment maps this many ranges at most before it is looked for no further.
_MOST_PIECES = 64


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

    def without(self, op: Op) -> Program:
        """Leave out every operation of a kind."""
        return self.keeping(self.codes != op)

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


def extract(
    device: DeviceTrace,
    history: History,
    stacks: StackTable,
    settings: Mapping[str, object],
    *,
    limit: int | None = None,
    emptied: frozenset[int] = frozenset(),
) -> Program:
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
    limit
        Most bytes that the recorded process might reserve, when that is known.
    emptied
        Events among `doubtful_releases` at which the program emptied the cache, rather than the allocator for itself.

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
        (event, Op.EMPTY_CACHE, 0)
        for event, asked in _releases(device, history, stacks, settings, limit)
        if asked or event in emptied
    ]
    uses = _pool_uses(device, history, pools)
    failed: list[tuple[int, int]] = []
    for event in np.flatnonzero(events.action == Action.OOM).tolist():
        extra.append((event, Op.FAIL, len(failed)))
        stream = int(events.stream[event])
        pool = next((use.pool for use in uses if use.first < event <= use.last and use.stream == stream), (0, 0))
        if pool == (0, 0) and np.any(
            (lives.free_event < event) & (lives.release_event > event) & (lives.free_event >= 0)
        ):
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
        # The same addresses can have been another pool's before.
        inside &= lives.alloc_event >= _created(device, segment)
        for number in np.flatnonzero(inside).tolist():
            pools[number] = segment.pool_id
    if device.pool_ids:
        recorded = np.where(lives.alloc_event >= 0, device.events.pool[np.maximum(lives.alloc_event, 0)], -1)
        for number in np.flatnonzero(recorded >= 0).tolist():
            pools[number] = device.pool_ids[recorded[number]]
    return pools


def doubtful_releases(
    device: DeviceTrace, history: History, stacks: StackTable, settings: Mapping[str, object], limit: int | None
) -> list[int]:
    """Return events at which the allocator seems to have released segments for itself, and the program may have."""
    return [event for event, asked in _releases(device, history, stacks, settings, limit) if asked is None]


class _PoolUse(NamedTuple):
    """One capture, or one use of a pool: its first and last allocation."""

    pool: tuple[int, int]
    stream: int
    first: int
    last: int


def _pool_uses(device: DeviceTrace, history: History, pools: list[tuple[int, int]]) -> list[_PoolUse]:
    """Find stretches in which allocations went to a private pool.

    They end where its stream allocates elsewhere, and where the allocator does what it leaves while a pool is in use:
    complete frees that waited for a stream, or release segments.
    """
    private = {pool for pool in pools if pool != (0, 0)}
    if not private:
        return []
    lives, action = history.lifetimes, device.events.action
    of_pool = np.array([sorted(private).index(pool) if pool in private else -1 for pool in pools], dtype=np.int64)
    begun = lives.alloc_event >= 0
    late = (action == Action.FREE_COMPLETED) & ~np.concatenate([[False], action[:-1] == Action.FREE_REQUESTED])
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    breaks = np.flatnonzero(late | released)
    uses = []
    for number, pool in enumerate(sorted(private)):
        for stream in np.unique(lives.stream[begun & (of_pool == number)]).tolist():
            mine = np.sort(lives.alloc_event[begun & (of_pool == number) & (lives.stream == stream)])
            others = lives.alloc_event[begun & (of_pool != number) & (lives.stream == stream)]
            stretch = np.searchsorted(np.sort(np.concatenate([others, breaks])), mine)
            edges = np.flatnonzero(np.diff(stretch)) + 1
            uses += [_PoolUse(pool, stream, int(part[0]), int(part[-1])) for part in np.split(mine, edges)]
    return sorted(uses, key=lambda use: use.first)


def _created(device: DeviceTrace, segment: Segment) -> int:
    """Return the event since which a segment of the final state has been there without a break, -1 from before."""
    events = device.events
    if segment.is_expandable:
        # Pages come and go within it, and an expandable segment of another pool has other addresses while it lives.
        gone = (events.action == Action.SEGMENT_FREE) & within(events.addr, segment.address, segment.size)
        return int(np.flatnonzero(gone).max(initial=-2)) + 1
    made = (events.action == Action.SEGMENT_ALLOC) & (events.addr == np.uint64(segment.address))
    return int(np.flatnonzero(made).max(initial=-1))


def _releases(
    device: DeviceTrace,
    history: History,
    stacks: StackTable,
    settings: Mapping[str, object],
    limit: int | None,
) -> list[tuple[int, bool | None]]:
    """Tell ``empty_cache`` from the allocator's own releases.

    Returns
    -------
    list
        First event of each burst of releases, and whether the program asked for it; None when the allocator did
        unless something else says otherwise (garbage collection under a known limit).
    """
    events = device.events
    action = events.action
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    if not np.any(released):
        return []
    typed = from_torch(settings)
    known = limit
    limit = recorded_limit(device, history, settings) if limit is None else limit
    threshold = typed.garbage_collection_threshold
    collects_above = None if known is None or not threshold else int(threshold * known)
    # Frees that waited for a stream complete in the middle of a burst.
    late = (action == Action.FREE_COMPLETED) & ~np.concatenate([[False], action[:-1] == Action.FREE_REQUESTED])
    inside = released | late
    starts = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]])).tolist()
    found: list[tuple[int, bool | None]] = []
    for start in starts:
        last = start
        while last + 1 < len(events) and inside[last + 1]:
            last += 1
        burst = np.flatnonzero(released[start : last + 1])
        if not len(burst):
            continue
        first, final = start + int(burst[0]), start + int(burst[-1])
        following = int(action[last + 1]) if last + 1 < len(events) else Action.UNKNOWN
        asked: bool | None = True
        names = {frame.name for frame in stacks.resolve(int(events.stack[final]))}
        # In expandable segments what was free can serve after a release without new pages.
        own = {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM}
        own |= {Action.ALLOC} if typed.expandable_segments else set()
        if following in own and "empty_cache" not in names:
            # Without stacks: the allocator releases only when the request would pass a limit.
            reserved = int(history.reserved[first])
            if events.stack[final] != 0 and events.stack[final] == events.stack[last + 1]:
                asked = False
            elif (limit is not None and reserved + _wanted(events, last + 1, typed) > limit) or (
                collects_above is not None and reserved > collects_above
            ):
                asked = None
        found.append((first, asked))
    return found


def _wanted(events: Events, event: int, settings: AllocatorSettings) -> int:
    """Return the bytes of the segment that is asked for at `event`, or by the request that it belongs to."""
    end = min(event + _MOST_PIECES, len(events))
    asks = np.flatnonzero((events.action[event:end] == Action.ALLOC) | (events.action[event:end] == Action.OOM))
    if not len(asks):
        return int(events.size[event])
    size = events.size[event + int(asks[0])]
    return segment_size(int(round_sizes(np.array([size]), settings)[0]), settings)
