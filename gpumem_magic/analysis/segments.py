"""Where memory lay at any moment of a recording: segments, the blocks in them, and what that says of fragmentation.

A recording holds every address, so the map of any moment follows from what is kept here: the events, the allocations as
lifetimes, and who owns each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.rounding import SMALL_LIMIT
from gpumem_magic.allocator.settings_model import MIB, from_torch
from gpumem_magic.allocator.sizes import page_size
from gpumem_magic.allocator.start import segment_events, segments_before
from gpumem_magic.analysis.timeline import addresses
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History, Lifetimes
    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["NOBODY", "Fragmentation", "MapSegment", "MemoryRecord", "SegmentState", "Span", "SpanKind", "memory_record"]

# Owner of a block that no allocation of the timeline stands for.
NOBODY = -1
_SMALL_SEGMENT = 2 * MIB
# Two expandable segments of one device lie further apart: each reserves 9/8 of the device's memory in addresses.
_REACH = 1 << 37


class SpanKind:
    """What a stretch of a segment is; free stretches are what lies between."""

    LIVE = 0
    PENDING = 1  # its free was requested; another stream may still use it
    UNMAPPED = 2  # addresses of an expandable segment without memory behind them


class Span(NamedTuple):
    """A stretch of a segment that is not free: bytes from the segment's start, and whose it is.

    `group` indexes `DeviceAnalysis.groups`, or is `NOBODY`. `requested` is 0 for unmapped addresses.
    """

    offset: int
    size: int
    requested: int
    group: int
    kind: int


class MapSegment(NamedTuple):
    """One segment at one moment.

    `extent` counts unmapped holes, `mapped` does not. `returnable` is what ``empty_cache()`` would give back: the
    whole segment when nothing lives in it, and whole free pages of an expandable one.
    """

    address: int
    extent: int
    mapped: int
    stream: int
    is_small: bool
    is_expandable: bool
    is_private: bool
    returnable: int
    spans: tuple[Span, ...]

    @property
    def active(self) -> int:
        """Bytes of blocks in use, or waiting for a stream."""
        return sum(span.size for span in self.spans if span.kind != SpanKind.UNMAPPED)

    @property
    def free(self) -> int:
        """Bytes that are reserved and not in use."""
        return self.mapped - self.active

    @property
    def waste(self) -> int:
        """Free bytes that ``empty_cache()`` cannot give back, because something lives in the segment."""
        return self.free - self.returnable

    def gaps(self) -> list[tuple[int, int]]:
        """Return the free stretches, as offset and size."""
        gaps, cursor = [], 0
        for span in self.spans:
            if span.offset > cursor:
                gaps.append((cursor, span.offset - cursor))
            cursor = max(cursor, span.offset + span.size)
        if cursor < self.extent:
            gaps.append((cursor, self.extent - cursor))
        return gaps


@dataclass(frozen=True)
class Fragmentation:
    """Why reserved memory is more than what is in use, in bytes, at one moment.

    Attributes
    ----------
    reserved
        Mapped bytes of all segments.
    active
        Bytes of blocks in use, and of those that wait for another stream.
    requested
        What the program asked for of the active bytes.
    rounding
        active − requested: rounding to 512 bytes and remainders too small to be split off.
    free
        reserved − active: the allocator's cache.
    returnable
        Of the free bytes, what ``empty_cache()`` would give back.
    pinned
        Of the free bytes, what it would not: they lie in segments in which something lives.
    largest_free
        The largest free block: a request above it needs a new segment.
    segments, empty_segments
        Number of segments, and of those in which nothing lives.
    """

    reserved: int
    active: int
    requested: int
    free: int
    returnable: int
    largest_free: int
    segments: int
    empty_segments: int

    @property
    def rounding(self) -> int:
        """Bytes that were handed out and not asked for."""
        return self.active - self.requested

    @property
    def pinned(self) -> int:
        """Free bytes that cannot go back."""
        return self.free - self.returnable

    @property
    def scattered(self) -> float:
        """1 − largest free block / free bytes: 0 when all that is free is one block; 0 when nothing is."""
        return 1 - self.largest_free / self.free if self.free else 0.0


@dataclass(frozen=True)
class SegmentState:
    """All segments of a device right after an event (-1: before the first), in address order."""

    event: int
    segments: tuple[MapSegment, ...]

    def fragmentation(self) -> Fragmentation:
        """Sum up."""
        active = requested = free = returnable = largest = mapped = empty = 0
        for segment in self.segments:
            mapped += segment.mapped
            returnable += segment.returnable
            used = [span for span in segment.spans if span.kind != SpanKind.UNMAPPED]
            empty += not used
            active += sum(span.size for span in used)
            requested += sum(span.requested for span in used)
            for _, size in segment.gaps():
                free += size
                largest = max(largest, size)
        return Fragmentation(mapped, active, requested, free, returnable, largest, len(self.segments), empty)


@dataclass(frozen=True, eq=False, repr=False)
class MemoryRecord:
    """What a device's recording says of addresses; nothing of it is computed before somebody asks.

    Attributes
    ----------
    device
        The events and the final state.
    settings
        `Trace.settings`.
    lifetimes
        Every allocation, from the replay under the recorded setting.
    group
        Owner of each lifetime: index into `DeviceAnalysis.groups` or `NOBODY`, int32.
    emptied
        How often the program called ``empty_cache``, with an event or without; None when that is not known.
    calls
        Events before which it did, one for each call, ascending; None when that is not known.
    """

    device: DeviceTrace
    settings: Mapping[str, object]
    lifetimes: Lifetimes
    group: NDArray[np.int32]
    emptied: int | None = None
    calls: tuple[int, ...] | None = None

    def event_at(self, timeline: Timeline, time_us: int) -> int:
        """Return the last event of the state that the timeline shows at a time.

        A new segment belongs to the allocation that needs it, so it is not there before that; what ``empty_cache()``
        gave back by then is gone.

        Parameters
        ----------
        timeline
            The timeline of the same device.
        time_us
            Unix microseconds.
        """
        count = len(self.device.events)
        if time_us >= int(self.device.events.time_us.max(initial=0)) or not timeline.changes:
            return count - 1
        change = int(np.searchsorted(timeline.time_us, time_us, "right")) - 1
        first = int(timeline.event[change]) if change >= 0 else -1
        behind = int(timeline.event[change + 1]) if change + 1 < timeline.changes else count
        events = self.device.events
        if first + 1 < behind and events.action[first + 1] == Action.FREE_COMPLETED:
            # The other half of a free, though the clock may have moved on between the two.
            first += int(events.addr[first] == events.addr[first + 1])
        action = events.action[first + 1 : behind]
        released = np.flatnonzero(
            ((action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP) | (action == Action.FREE_COMPLETED))
            & (events.time_us[first + 1 : behind] <= time_us)
        )
        return first + 1 + int(released[-1]) if len(released) else first

    def addresses(self, timeline: Timeline) -> NDArray[np.uint64]:
        """Return the address of each lifetime of the timeline of the same device; 0 where it has none."""
        return addresses(self.lifetimes, timeline)

    def at(self, event: int) -> SegmentState:
        """Return all segments right after `event`; -1: before the first event."""
        stretches = self._stretches(event)
        spans = self._spans(event)
        offsets = [span[0] for span in spans]
        segments: list[MapSegment] = []
        for pieces in stretches:
            start, end = pieces[0].start, pieces[-1].start + pieces[-1].size
            inside = spans[bisect_left(offsets, start) : bisect_left(offsets, end)]
            own = [Span(at - start, size, requested, group, kind) for at, size, requested, group, kind in inside]
            own += [
                Span(one.start + one.size - start, after.start - one.start - one.size, 0, NOBODY, SpanKind.UNMAPPED)
                for one, after in pairwise(pieces)
            ]
            own.sort()
            mapped = sum(piece.size for piece in pieces)
            segment = MapSegment(
                address=start,
                extent=end - start,
                mapped=mapped,
                stream=pieces[0].stream,
                is_small=pieces[0].is_small,
                is_expandable=pieces[0].is_expandable,
                is_private=pieces[0].is_private,
                returnable=0,
                spans=tuple(own),
            )
            segments.append(segment._replace(returnable=self._returnable(segment)))
        return SegmentState(event, tuple(segments))

    def _spans(self, event: int) -> list[tuple[int, int, int, int, int]]:
        lives = self.lifetimes
        alive = (lives.alloc_event <= event) & ((lives.release_event == -1) | (lives.release_event > event))
        pending = (lives.free_event == -2) | ((lives.free_event >= 0) & (lives.free_event <= event))
        chosen = np.flatnonzero(alive)
        chosen = chosen[np.argsort(lives.address[chosen], kind="stable")]
        size = lives.size[chosen]
        # An unknown request counts as all that was taken, as in the timeline.
        asked = lives.requested[chosen]
        requested = np.where(asked >= 0, np.minimum(asked, size), size)
        return list(
            zip(
                lives.address[chosen].tolist(),
                size.tolist(),
                requested.tolist(),
                self.group[chosen].tolist(),
                pending[chosen].astype(int).tolist(),
                strict=True,
            )
        )

    def _stretches(self, event: int) -> list[list[_Stretch]]:
        """Return mapped stretches in address order, those of one expandable segment together."""
        events, which = self.device.events, self._segment_events
        native, mapped = segments_before(self.device, event + 1, which)
        past = which[: np.searchsorted(which, event, "right")]
        made = past[events.action[past] == Action.SEGMENT_ALLOC]
        stream_of = dict(zip(events.addr[made].tolist(), events.stream[made].tolist(), strict=True))
        pool_of = dict(zip(events.addr[made].tolist(), events.pool[made].tolist(), strict=True))
        stretches: list[list[_Stretch]] = []
        final = {segment.address: segment for segment in self.device.segments}
        for address, size in native:
            known = final.get(address)
            pool = pool_of.get(address, -1)
            private = self.device.pool_ids[pool] != (0, 0) if pool >= 0 else known is not None and _private(known)
            stream = stream_of.get(address, known.stream if known is not None else 0)
            small = size == _SMALL_SEGMENT
            stretches.append([_Stretch(address, size, stream, small, is_expandable=False, is_private=private)])
        pages = [self._pages(address, size) for address, size in mapped]
        for page in pages:
            before = stretches[-1][-1] if stretches else None
            near = before is not None and page.start - before.start - before.size < _REACH
            if near and before is not None and before.belongs_with(page):
                stretches[-1].append(page)
            else:
                stretches.append([page])
        return sorted(stretches, key=lambda pieces: pieces[0].start)

    def _pages(self, address: int, size: int) -> _Stretch:
        addresses, streams = self._mapped_by
        index = bisect_left(addresses, address)
        stream, private, small = 0, False, False
        if index < len(addresses) and addresses[index] < address + size:
            stream = streams[index]
        for segment in self.device.segments:
            if segment.is_expandable and segment.address < address + size and address < segment.address + segment.size:
                stream, private, small = segment.stream, _private(segment), segment.is_small
                break
        else:
            first = bisect_left(self._small, address)
            small = first < len(self._small) and self._small[first] < address + size
        return _Stretch(address, size, stream, small, is_expandable=True, is_private=private)

    @cached_property
    def _segment_events(self) -> NDArray[np.intp]:
        return segment_events(self.device.events)

    @cached_property
    def _mapped_by(self) -> tuple[list[int], list[int]]:
        """Addresses of `SEGMENT_MAP` events, ascending, and their streams."""
        events = self.device.events
        which = np.flatnonzero((events.action == Action.SEGMENT_MAP) | (events.action == Action.SEGMENT_UNMAP))
        which = which[np.argsort(events.addr[which], kind="stable")]
        return events.addr[which].tolist(), events.stream[which].tolist()

    @cached_property
    def _small(self) -> list[int]:
        """Addresses at which small blocks ever lay, ascending."""
        lives = self.lifetimes
        addresses: list[int] = np.unique(lives.address[lives.size <= SMALL_LIMIT]).tolist()
        return addresses

    def _returnable(self, segment: MapSegment) -> int:
        if all(span.kind == SpanKind.UNMAPPED for span in segment.spans):
            return segment.mapped
        if not segment.is_expandable:
            return 0
        page = page_size(from_torch(self.settings), is_small=segment.is_small)
        base = self._base(segment)
        total = 0
        for offset, size in segment.gaps():
            low = segment.address + offset - base
            whole = (low + size) // page * page - -(-low // page) * page
            total += max(whole, 0)
        return total

    def _base(self, segment: MapSegment) -> int:
        """Return an address from which the segment's pages can be counted: the lowest that was ever mapped there."""
        addresses, streams = self._mapped_by
        low = bisect_left(addresses, segment.address - _REACH)
        high = bisect_right(addresses, segment.address)
        mine = (
            at for at, stream in zip(addresses[low:high], streams[low:high], strict=True) if stream == segment.stream
        )
        return next(mine, segment.address)


class _Stretch(NamedTuple):
    start: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    is_private: bool

    def belongs_with(self, other: _Stretch) -> bool:
        """Tell whether two stretches of pages are of one expandable segment."""
        return self[2:] == other[2:] and self.is_expandable


def _private(segment: object) -> bool:
    return getattr(segment, "pool_id", (0, 0)) != (0, 0)


def memory_record(
    device: DeviceTrace,
    settings: Mapping[str, object],
    history: History,
    timeline: Timeline,
    emptied: int | None = None,
) -> MemoryRecord | None:
    """Keep what says where memory lay.

    Parameters
    ----------
    device
        The recording.
    settings
        `Trace.settings`.
    history
        Its replay.
    timeline
        Made from the same history, with owners.
    emptied
        See `MemoryRecord`.

    Returns
    -------
    MemoryRecord or None
        None where no caching allocator gave the addresses.
    """
    if device.kind not in {"cuda", "xpu"} or not device.has_snapshot:
        return None
    lives = history.lifetimes
    counted = lives.counted
    if isinstance(counted, slice):
        group = timeline.group[timeline.lifetimes - len(lives) :]
    else:
        group = np.full(len(lives), NOBODY, np.int32)
        group[counted] = timeline.group[timeline.lifetimes - len(counted) :]
    group.flags.writeable = False
    return MemoryRecord(device, settings, lives, group, emptied)
