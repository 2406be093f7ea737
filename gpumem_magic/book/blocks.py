"""Blocks that earlier runs left behind, and which of them later recordings prove to be gone.

A block is known by its device, address and size. It is gone when a recording frees its address, or allocates anything
where it lies: an allocator hands out no byte twice. Frees outside recordings show themselves that way at the latest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.trace.model import Events

__all__ = ["BlockTable", "Survivors", "survivors"]

# 28 bytes each.
_MOST_BLOCKS = 500_000
_FIRST_EVENTS = 4096
_FEW_BLOCKS = 4
_TOUCHING = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


class Survivors(NamedTuple):
    """Blocks that a recording allocated and that were alive at its end; `group` indexes `DeviceAnalysis.groups`."""

    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    group: NDArray[np.int32]


def survivors(events: Events, timeline: Timeline) -> Survivors:
    """Return the blocks that a recording allocated and that were alive at its end."""
    lasting = np.flatnonzero((timeline.start >= 0) & (timeline.end == -1) & (timeline.blocks > 0))
    event = timeline.event[timeline.start[lasting]]
    return Survivors(events.addr[event], timeline.size[lasting], timeline.group[lasting])


class BlockTable:
    """Blocks of one device that may be alive, in address order.

    Attributes
    ----------
    address, size, owner, line
        Columns of shape ``(n,)``: address, bytes, the number of the entry that allocated it, and the number of the
        line where it did, as whoever adds them counts lines.
    left_out
        Blocks that did not fit.
    """

    def __init__(self, most: int = _MOST_BLOCKS) -> None:
        self.address: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.size: NDArray[np.int64] = np.zeros(0, np.int64)
        self.owner: NDArray[np.int64] = np.zeros(0, np.int64)
        self.line: NDArray[np.int32] = np.zeros(0, np.int32)
        self.left_out = 0
        self._most = most

    def __len__(self) -> int:
        return len(self.address)

    def apply(self, events: Events) -> None:
        """Drop the blocks whose place these events touch."""
        # A loop's first events mostly touch all that its former run left, so that no other needs to be looked at.
        for part in (slice(_FIRST_EVENTS), slice(_FIRST_EVENTS, None)):
            if len(self):
                columns = events.action[part], events.addr[part], events.size[part]
                few = len(self) <= _FEW_BLOCKS
                self._keep(self._untouched_one_by_one(*columns) if few else self._untouched(*columns))

    def _untouched_one_by_one(
        self, action: NDArray[np.uint8], address: NDArray[np.uint64], size: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Do what `_untouched` does, for a block or two among very many events in a seventh of its time."""
        kept = np.ones(len(self), bool)
        for index, (begin, end) in enumerate(zip(self.address.tolist(), self._ends().tolist(), strict=True)):
            inside = np.flatnonzero((address >= begin) & (address < end))
            kept[index] = not np.isin(action[inside], _TOUCHING).any()
            if kept[index]:
                below = np.flatnonzero((action == Action.ALLOC) & (address < begin))
                length = np.maximum(size[below], 1).astype(np.uint64)
                kept[index] = not np.any(address[below] + length > begin)
        return kept

    def _ends(self) -> NDArray[np.uint64]:
        return self.address + self.size.astype(np.uint64)

    def _untouched(
        self, action: NDArray[np.uint8], address: NDArray[np.uint64], size: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tell of each block whether none of these events touches its place."""
        touching = np.isin(action, _TOUCHING)
        begin = address[touching]
        # A free names the block's first byte; its size may be another's (torch on the CPU).
        is_alloc = action[touching] == Action.ALLOC
        length = np.where(is_alloc, np.maximum(size[touching], 1), 1).astype(np.uint64)
        # Block i reaches into [begin, end) when it ends behind `begin` and begins before `end`.
        first = np.searchsorted(self._ends(), begin, "right")
        last = np.searchsorted(self.address, begin + length, "left")
        hit = last > first
        change = np.zeros(len(self) + 1, np.int64)
        np.add.at(change, first[hit], 1)
        np.add.at(change, last[hit], -1)
        untouched: NDArray[np.bool_] = np.cumsum(change[:-1]) == 0
        return untouched

    def add(
        self,
        address: NDArray[np.uint64],
        size: NDArray[np.int64],
        owner: int,
        line: NDArray[np.int32] | None = None,
    ) -> None:
        """Add what entry number `owner` left behind. Call `apply` with its events first."""
        line = np.full(len(size), -1, np.int32) if line is None else line.astype(np.int32)
        address = np.concatenate([self.address, address])
        order = np.argsort(address, kind="stable")
        self.address = address[order]
        self.owner = np.concatenate([self.owner, np.full(len(size), owner, np.int64)])[order]
        self.size = np.concatenate([self.size, size])[order]
        self.line = np.concatenate([self.line, line])[order]
        if len(self) > self._most:
            self.left_out += len(self) - self._most
            kept = np.zeros(len(self), bool)
            kept[np.argsort(self.size, kind="stable")[-self._most :]] = True
            self._keep(kept)

    def retain(self, address: NDArray[np.uint64], size: NDArray[np.int64]) -> None:
        """Drop every block that is not one of these: same address and size."""
        if not len(address):
            self._keep(np.zeros(len(self), bool))
            return
        order = np.argsort(address)
        at = order[np.minimum(np.searchsorted(address, self.address, sorter=order), len(order) - 1)]
        self._keep((address[at] == self.address) & (size[at] == self.size))

    def drop(self, which: NDArray[np.bool_]) -> None:
        """Drop these blocks; shape ``(n,)``."""
        self._keep(~which)

    def forget(self, owner: int) -> None:
        """Drop the blocks of entry number `owner`."""
        self._keep(self.owner != owner)

    def _keep(self, mask: NDArray[np.bool_]) -> None:
        self.address, self.size = self.address[mask], self.size[mask]
        self.owner, self.line = self.owner[mask], self.line[mask]

    def find(self, address: int) -> int | None:
        """Return the index of the block that begins at `address`, or None."""
        index = int(np.searchsorted(self.address, np.uint64(address)))
        return index if index < len(self) and int(self.address[index]) == address else None
