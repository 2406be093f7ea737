"""Follow a recording's block events through the address space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.allocator.at_once import match_frees, sizes_at_once
from gpumem_magic.allocator.history import Deviation, Lifetimes
from gpumem_magic.allocator.layout import Layout
from gpumem_magic.allocator.rounding import SMALL_LIMIT
from gpumem_magic.allocator.start import LiveBlock, soft_size
from gpumem_magic.trace.constant import joined, taken
from gpumem_magic.trace.model import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.at_once import Matched, Order
    from gpumem_magic.allocator.start import Start
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["Follower"]

# A free whose two halves follow each other directly is one step (the usual case: no other stream used the block).
_FREE_AT_ONCE = 16
_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = int(Action.ALLOC), int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)
_SEGMENT_ALLOC = int(Action.SEGMENT_ALLOC)
# Past this many contradictions the recording's addresses are not followed any more: each costs a search.
_MAX_CONTRADICTIONS = 1000
# Before the first event, for an end (see `Lifetimes`).
_BEFORE = -2


class Follower:
    """Blocks of one device while its events are played.

    Parameters
    ----------
    device
        The recording.
    start
        State before the first event.
    """

    def __init__(self, device: DeviceTrace, start: Start) -> None:
        self.device = device
        self.start = start
        self.layout = Layout()
        self.first_deviation: Deviation | None = None
        self._contradictions = 0
        # Sizes and ends by lifetime, lists (arrays after `follow_at_once`); live: address → lifetime.
        self._live: dict[int, int] = {}
        self._sizes: Any = []
        self._free_event: Any = [-1] * len(start.blocks)
        self._release_event: Any = [-1] * len(start.blocks)
        # End of a block of unsure size → lifetime; a later allocation right behind it tells its size.
        self._soft_ends: dict[int, int] = {}
        # In use at the end without having been allocated.
        self._appeared: list[LiveBlock] = []
        self._requested: dict[int, int] = {}
        for number, block in enumerate(start.blocks):
            self._live[block.address] = number
            if block.is_pending:
                self._free_event[number] = _BEFORE

    @property
    def unsure(self) -> int:
        """Number of blocks from before the recording whose size is only known to within 1 MiB."""
        return len(self._soft_ends)

    def lay_out(self, rounded: NDArray[np.int64], *, is_expandable: bool) -> None:
        """Lay out the state before the first event; `rounded` are the block sizes its requests round up to."""
        layout = self.layout
        for address, size in self.start.segments:
            layout.add_segment(address, size)
        for address, size in self.start.ranges:
            layout.release(address, size)
        spans = sorted(layout.free_at.items())
        layout.free_at.clear()
        layout.free_end.clear()
        blocks = self.start.blocks
        needs = rounded.tolist()
        number = 0
        for low, length in spans:
            high = cursor = low + length
            cursor = low
            while number < len(blocks) and blocks[number].address < high:
                address = blocks[number].address
                if cursor < address and address > low:
                    layout.free_at[cursor] = address - cursor
                    layout.free_end[address] = cursor
                following = blocks[number + 1].address if number + 1 < len(blocks) else high
                gap = min(following, high) - address - needs[number]
                self._sizes.append(soft_size(blocks[number], needs[number], gap, is_expandable=is_expandable))
                cursor = address + self._sizes[-1]
                is_large = needs[number] > SMALL_LIMIT and not is_expandable
                if blocks[number].size is None and is_large and gap > SMALL_LIMIT:
                    self._soft_ends[cursor] = number
                number += 1
            if cursor < high:
                layout.free_at[cursor] = high - cursor
                layout.free_end[high] = cursor
        # Blocks outside every segment: nothing is known but the request.
        self._sizes.extend(
            need if block.size is None else block.size
            for need, block in zip(needs[number:], blocks[number:], strict=True)
        )

    def _make_room(self) -> None:
        """Give every allocation an end that is not known yet."""
        count = int(np.count_nonzero(self.device.events.action == Action.ALLOC))
        self._free_event.extend([-1] * count)
        self._release_event.extend([-1] * count)

    def follow_flat(self) -> None:
        """Play all events where blocks have no neighbours (CPU, pinned host): sizes are as recorded."""
        events = self.device.events
        self._make_room()
        self._sizes.extend(block.requested for block in self.start.blocks)
        self._sizes.extend(events.size[events.action == Action.ALLOC].tolist())
        live = self._live
        lifetime = len(self.start.blocks) - 1
        for event, (action, address) in enumerate(zip(events.action.tolist(), events.addr.tolist(), strict=True)):
            if action == _ALLOC:
                lifetime += 1
                if address in live:
                    self._end_unseen(event, address)
                live[address] = lifetime
            elif action in {_FREE_REQUESTED, _FREE_COMPLETED}:
                self._free(event, address, is_completed=action == _FREE_COMPLETED)

    def follow_at_once(self, order: Order, rounded: NDArray[np.int64], threshold: NDArray[np.int64]) -> bool:
        """Play all events of a plain recording whose blocks do not overlap; False, and nothing is done, for another.

        Parameters
        ----------
        order
            The block events by address.
        rounded, threshold
            As of `follow`, but of the allocations alone.
        """
        events = self.device.events
        matched = self._match_frees(order)
        if matched is None:
            return False
        known = _column(self.start.blocks, "address", np.uint64).view(np.int64), np.array(self._sizes, np.int64)
        sizes = sizes_at_once(events, order, matched, (rounded, threshold), blocks=known, segments=self.start.segments)
        if sizes is None:
            return False
        self._sizes = sizes
        self._take_ends(matched)
        return True

    def follow_in_turn(self, order: Order, rounded: NDArray[np.int64], threshold: NDArray[np.int64]) -> bool:
        """Play all events of a plain recording, whose frees are matched before, and check that blocks do not overlap.

        Takes two thirds of the time of `follow`, which plays any recording and says where it contradicts itself.

        Parameters
        ----------
        order, rounded, threshold
            As of `follow_at_once`.

        Returns
        -------
        bool
            False for another recording: then nothing here is of use any more.
        """
        events, blocks = self.device.events, len(self.start.blocks)
        matched = self._match_frees(order)
        if matched is None:
            return False
        is_step = (events.action != Action.FREE_REQUESTED) & (events.action <= Action.SEGMENT_UNMAP)
        steps = np.flatnonzero(is_step)
        # Of an allocation and of its end, which one it is; of another event, its bytes.
        subject = events.size.copy()
        subject[order.moves[matched.births]] = np.arange(blocks, blocks + len(matched.births))
        ended = np.flatnonzero(matched.release_event >= 0)
        subject[matched.release_event[ended]] = ended
        sizes = self._sizes = [*self._sizes, *rounded.tolist()]
        splits = [0] * blocks + threshold.tolist()
        free_at, free_end, barriers = self.layout.free_at, self.layout.free_end, self.layout.barriers
        # Most of the cost of every summary and report, hence inlined dictionary work: `Layout.release`.
        for action, address, number in zip(
            events.action[steps].tolist(), events.addr[steps].tolist(), subject[steps].tolist(), strict=True
        ):
            if action == _ALLOC:
                have, need = free_at.pop(address, 0), sizes[number]
                if have < need:
                    return False
                if have - need >= splits[number]:
                    end = address + need
                    free_at[end] = have - need
                    free_end[address + have] = end
                else:
                    free_end.pop(address + have, None)
                    sizes[number] = have
            elif action == _FREE_COMPLETED:
                end = address + sizes[number]
                if end in free_at and end not in barriers:
                    end += free_at.pop(end)
                if address in free_end and address not in barriers:
                    start = free_end.pop(address)
                    free_at[start] = end - start
                    free_end[end] = start
                else:
                    free_at[address] = end - address
                    free_end[end] = address
            else:
                self._move_segment(0, action, address, number)
        self._take_ends(matched)
        return self.first_deviation is None

    def _match_frees(self, order: Order) -> Matched | None:
        known = _column(self.start.blocks, "address", np.uint64).view(np.int64)
        return match_frees(self.device.events, order, known, _column(self.start.blocks, "is_pending", np.bool_))

    def _take_ends(self, matched: Matched) -> None:
        """Note when everything ended, and what is alive at the end."""
        events, blocks = self.device.events, self.start.blocks
        self._free_event, self._release_event = matched.free_event, matched.release_event
        living = np.flatnonzero(matched.release_event == -1)
        old = int(np.count_nonzero(living < len(blocks)))
        allocs = np.flatnonzero(events.action == Action.ALLOC)
        known = _column(blocks, "address", np.uint64)[living[:old]]
        addresses = np.concatenate([known, events.addr[allocs[living[old:] - len(blocks)]]])
        self._live = dict(zip(addresses.tolist(), living.tolist(), strict=True))

    def follow(self, rounded: NDArray[np.int64], threshold: NDArray[np.int64]) -> None:
        """Play all events.

        Parameters
        ----------
        rounded
            Block size that each event's bytes round up to, shape ``(n,)``.
        threshold
            Smallest remainder that is split off, shape ``(n,)``.
        """
        events = self.device.events
        self._make_room()
        code, index = _fuse(events.action, events.addr)
        live, sizes = self._live, self._sizes
        free_event, release_event = self._free_event, self._release_event
        free_at, free_end, release = self.layout.free_at, self.layout.free_end, self.layout.release
        lifetime = len(sizes) - 1
        for action, event, address, need, split in zip(
            code.tolist(),
            index.tolist(),
            events.addr[index].tolist(),
            rounded[index].tolist(),
            threshold[index].tolist(),
            strict=True,
        ):
            if action == _ALLOC:
                lifetime += 1
                have = free_at.pop(address, 0)
                if have < need or address in live:
                    sizes.append(need)
                    self._take_oddly(event, address, have, split)
                elif have - need >= split:
                    end = address + need
                    free_at[end] = rest = have - need
                    free_end[end + rest] = end
                    sizes.append(need)
                else:
                    free_end.pop(address + have, None)
                    sizes.append(have)
                live[address] = lifetime
            elif action == _FREE_AT_ONCE and address in live:
                number = live.pop(address)
                if free_event[number] == -1:
                    free_event[number] = event
                release_event[number] = event + 1
                release(address, sizes[number])
            elif action >= _SEGMENT_ALLOC and action != _FREE_AT_ONCE:
                self._move_segment(event, action, address, need)
            else:
                self._free(event, address, is_completed=action != _FREE_REQUESTED, merge=True)

    def meet_final_state(self) -> None:
        """Bring what is in use to the snapshot's own final state, and say where it was not already."""
        last = len(self.device.events) - 1
        final = {
            block.address: (block, segment.stream)
            for segment in self.device.segments
            for block in segment.blocks
            if block.state != BlockState.INACTIVE
        }
        for address, number in self._live.items():
            block, _ = final.pop(address, (None, 0))
            if block is None:
                self._deviate(last, f"block {address:#x} in use at the end", "not in the snapshot's segments")
                self._free_event[number] = self._free_event[number] if self._free_event[number] != -1 else last
                self._release_event[number] = last
                continue
            if self._sizes[number] != block.size:
                if not self._forget_soft(number):
                    self._deviate(
                        last, f"block {address:#x} of {self._sizes[number]:,} bytes at the end", f"{block.size:,} bytes"
                    )
                self._sizes[number] = block.size
            self._requested[number] = block.requested
            is_pending = block.state == BlockState.ACTIVE_PENDING_FREE
            if is_pending != (self._free_event[number] != -1):
                self._deviate(last, f"block {address:#x} in state {_state(not is_pending)}", _state(is_pending))
                self._free_event[number] = last if is_pending else -1
        for address, (block, stream) in sorted(final.items()):
            self._deviate(last, f"nothing allocated at {address:#x}", f"a block of {block.size:,} bytes in use")
            is_pending = block.state == BlockState.ACTIVE_PENDING_FREE
            self._appeared.append(LiveBlock(address, block.size, block.requested, stream, block.stack, is_pending))

    def lifetimes(self) -> Lifetimes:
        """Return every allocation."""
        events = self.device.events
        allocs = np.flatnonzero(events.action == Action.ALLOC).astype(np.int32)
        before, appeared = self.start.blocks, self._appeared
        last = len(events) - 1
        requested = np.concatenate(
            [_column(before, "requested", np.int64), events.size[allocs], _column(appeared, "requested", np.int64)]
        )
        for number, value in self._requested.items():
            requested[number] = value
        ends = [last if block.is_pending else -1 for block in appeared]
        return Lifetimes(
            alloc_event=np.concatenate(
                [np.full(len(before), -1, np.int32), allocs, np.full(len(appeared), last, np.int32)]
            ),
            free_event=np.concatenate([np.asarray(self._free_event, np.int32), np.array(ends, np.int32)]),
            release_event=np.concatenate(
                [np.asarray(self._release_event, np.int32), np.full(len(appeared), -1, np.int32)]
            ),
            address=np.concatenate(
                [_column(before, "address", np.uint64), events.addr[allocs], _column(appeared, "address", np.uint64)]
            ),
            requested=requested,
            size=np.concatenate(
                [np.asarray(self._sizes, np.int64), np.array([block.size or 0 for block in appeared], np.int64)]
            ),
            stream=joined(
                _column(before, "stream", np.int64), taken(events.stream, allocs), _column(appeared, "stream", np.int64)
            ),
            stack=joined(
                _column(before, "stack", np.int32), taken(events.stack, allocs), _column(appeared, "stack", np.int32)
            ),
        )

    def doubt(self) -> str:
        """Say of how many blocks the size is not known."""
        count, key = len(self._soft_ends), self.device.key
        if count == 1:
            return (
                f"{key}: 1 block was there before the first event and is gone at the end; its size is known to within "
                "1 MiB, so allocated bytes may be that much too low"
            )
        return (
            f"{key}: {count:,} blocks were there before the first event and are gone at the end; their sizes are known "
            "to within 1 MiB each, so allocated bytes may be that much too low"
        )

    def warnings(self) -> tuple[str, ...]:
        """Return one line for each figure that is not exact."""
        lines = []
        key = self.device.key
        if self._contradictions:
            first = self.first_deviation
            where = f"; the first at event {first.event:,}: {first.recorded}" if first else ""
            lines.append(
                f"{key}: the recording contradicts itself in {self._contradictions:,} "
                f"{'place' if self._contradictions == 1 else 'places'}{where}. "
                "Allocated and requested bytes are not exact before its end"
            )
        if self._soft_ends:
            lines.append(self.doubt())
        return tuple(lines)

    def _deviate(self, event: int, expected: str, recorded: str) -> None:
        self._contradictions += 1
        if self.first_deviation is None:
            self.first_deviation = Deviation(event, expected, recorded)

    def _free(self, event: int, address: int, *, is_completed: bool, merge: bool = False) -> None:
        number = self._live.get(address, -1)
        if number < 0:
            self._deviate(event, f"a block in use at {address:#x}", "a free of nothing")
            return
        if self._free_event[number] == -1:
            self._free_event[number] = event
        if is_completed:
            self._release_event[number] = event
            del self._live[address]
            if merge:
                self.layout.release(address, self._sizes[number])

    def _end_unseen(self, event: int, address: int) -> int:
        """End the lifetime at `address`, whose free the recording lacks; return its size."""
        number = self._live.pop(address)
        self._deviate(event, f"the block at {address:#x} to be free", "an allocation over a block in use")
        if self._free_event[number] == -1:
            self._free_event[number] = event
        self._release_event[number] = event
        size: int = self._sizes[number]
        return size

    def _take_oddly(self, event: int, address: int, have: int, split: int) -> None:
        """Take a block where no free block of that size begins. The lifetime's size is already `need`."""
        layout = self.layout
        need = self._sizes[-1]
        if have:
            layout.free_at[address] = have
        if address in self._live:
            layout.release(address, self._end_unseen(event, address))
        if self._contradictions > _MAX_CONTRADICTIONS:
            return
        found = layout.find(address)
        if found is None or found + layout.free_at[found] < address + need:
            self._deviate(event, f"{need:,} free bytes at {address:#x}", "an allocation there")
            layout.clear(address, need)
            return
        if found < address and address - found <= SMALL_LIMIT and self._is_soft_end(found):
            # The block before it was larger than its request: now its size is certain.
            self._sizes[self._soft_ends.pop(found)] += address - found
            layout.clear(found, address - found)
        elif found < address:
            self._deviate(event, f"the free block at {found:#x} to be used from its front", f"a block at {address:#x}")
        begin = address if address in layout.free_at else found
        rest = begin + layout.free_at[begin] - address - need
        if rest < split:
            self._sizes[-1] = need + rest
        layout.clear(address, self._sizes[-1])

    def _is_soft_end(self, address: int) -> bool:
        number = self._soft_ends.get(address, -1)
        return number >= 0 and self._live.get(self.start.blocks[number].address) == number

    def _forget_soft(self, number: int) -> bool:
        for end, owner in self._soft_ends.items():
            if owner == number:
                del self._soft_ends[end]
                return True
        return False

    def _move_segment(self, event: int, action: int, address: int, size: int) -> None:
        layout = self.layout
        if action == Action.SEGMENT_ALLOC:
            layout.add_segment(address, size)
        elif action == Action.SEGMENT_MAP:
            layout.release(address, size)
        elif action == Action.SEGMENT_FREE:
            if not layout.remove_segment(address, size):
                self._deviate(event, f"the segment at {address:#x} to be one free block", "its release")
        elif not layout.unmap(address, size):
            self._deviate(event, f"{size:,} free bytes at {address:#x}", "their release")


def _fuse(action: NDArray[np.uint8], address: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Return codes and event indices of what changes blocks, with directly completed frees as one."""
    code = action.copy()
    requested = code[:-1] == Action.FREE_REQUESTED
    at_once = requested & (code[1:] == Action.FREE_COMPLETED) & (address[:-1] == address[1:])
    code[:-1][at_once] = _FREE_AT_ONCE
    keep = (code <= Action.SEGMENT_UNMAP) | (code == _FREE_AT_ONCE)
    keep[1:] &= ~at_once
    index = np.flatnonzero(keep)
    return code[index], index


def _column(blocks: list[LiveBlock], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    return np.array([getattr(block, name) for block in blocks], dtype=dtype)


def _state(is_pending: bool) -> str:  # noqa: FBT001 (a formatter)
    return "waiting for its free" if is_pending else "allocated"
