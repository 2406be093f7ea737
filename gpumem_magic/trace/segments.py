"""The final state in a snapshot: segments and their blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import SnapshotError
from gpumem_magic._format import visible
from gpumem_magic.trace.model import Block, BlockState, Segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumem_magic.trace.interning import StackInterner

__all__ = ["Budget", "read_host_segments", "read_segments"]

_STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE_ALLOCATED,
    "active_pending_free": BlockState.ACTIVE_PENDING_FREE,
    # The documentation's word, which no version read writes.
    "active_awaiting_free": BlockState.ACTIVE_PENDING_FREE,
}
_MASK64 = 2**64 - 1
# More than any address space holds, and few enough that thousands of them still add up in 64 bits.
_LARGEST = 2**50


class Budget:
    """How many entries may still be visited; lists that repeat inside lists make work that a file does not show."""

    def __init__(self, left: int | None) -> None:
        self._left = left

    def spend(self, count: int) -> None:
        """Take `count` entries off the budget.

        Raises
        ------
        SnapshotError
            When nothing is left.
        """
        if self._left is None:
            return
        self._left -= count
        if self._left < 0:
            raise SnapshotError("not a torch memory snapshot: the pickle repeats itself more often than a snapshot can")


def read_segments(
    entries: Sequence[Mapping[str, Any]], stacks: StackInterner, budget: Budget, warnings: list[str]
) -> dict[int, tuple[Segment, ...]]:
    """Convert a snapshot's segments.

    Returns
    -------
    dict
        Device ordinal → its segments in address order.
    """
    budget.spend(len(entries))
    by_device: dict[int, list[Segment]] = {}
    unknown_states: set[str] = set()
    for entry in entries:
        by_device.setdefault(int(entry.get("device", 0)), []).append(_segment(entry, stacks, budget, unknown_states))
    if unknown_states:
        words = ", ".join(sorted(unknown_states)[:5])
        warnings.append(f"blocks in unknown states ({words}) are counted as inactive")
    return {device: tuple(sorted(segments, key=lambda item: item.address)) for device, segments in by_device.items()}


def _segment(entry: Mapping[str, Any], stacks: StackInterner, budget: Budget, unknown_states: set[str]) -> Segment:
    blocks = entry.get("blocks") or ()
    budget.spend(len(blocks))
    address = int(entry["address"]) & _MASK64
    first, second = entry.get("segment_pool_id") or (0, 0)
    cursor = address
    converted = []
    for block in blocks:
        # Blocks of old snapshots have no address of their own; they follow each other without gaps.
        cursor = int(block.get("address", cursor)) & _MASK64
        size = _size(block["size"])
        state = _STATES.get(block.get("state", ""))
        if state is None:
            unknown_states.add(visible(str(block.get("state"))[:40]))
            state = BlockState.INACTIVE
        requested, frames = _requested(block, size)
        converted.append(Block(cursor, size, requested, state, stacks.stack(frames)))
        cursor += size
    converted.sort()
    return Segment(
        address=address,
        size=_size(entry["total_size"]),
        stream=int(entry.get("stream", 0)),
        is_small=entry.get("segment_type") == "small",
        pool_id=(int(first), int(second)),
        is_expandable=bool(entry.get("is_expandable", False)),
        stack=stacks.stack(entry.get("frames")),
        blocks=tuple(converted),
    )


def _requested(block: Mapping[str, Any], size: int) -> tuple[int, Sequence[Mapping[str, Any]] | None]:
    """Return requested bytes and frames; torch 2.0 kept both in a list under ``history``."""
    frames = block.get("frames")
    requested = block.get("requested_size")
    history = block.get("history")
    if history and (requested is None or not frames):
        latest = history[0]
        frames = frames or latest.get("frames")
        requested = latest.get("real_size", size) if requested is None else requested
    return _size(size if requested is None else requested), frames


def _size(value: Any) -> int:
    size = int(value)
    if not 0 <= size <= _LARGEST:
        raise SnapshotError("not a torch memory snapshot: a segment or block has an impossible size")
    return size


def read_host_segments(
    entries: Sequence[Mapping[str, Any]], stacks: StackInterner, budget: Budget
) -> tuple[Segment, ...]:
    """Convert ``host_segments`` (torch 2.14+): flat blocks, each one a segment of its own."""
    budget.spend(len(entries))
    segments = []
    for entry in entries:
        address = int(entry["address"]) & _MASK64
        size = _size(entry.get("size", entry.get("total_size", 0)))
        state = _STATES.get(entry.get("state", ""), BlockState.INACTIVE)
        requested, frames = _requested(entry, size)
        block = Block(address, size, requested, state, stacks.stack(frames))
        segments.append(
            Segment(
                address=address,
                size=size,
                stream=0,
                is_small=False,
                pool_id=(0, 0),
                is_expandable=False,
                stack=block.stack,
                blocks=(block,),
            )
        )
    return tuple(sorted(segments, key=lambda item: item.address))
