"""One segment of a GPU by hand, as torch's snapshots tell of it: first fit, no rounding."""

from __future__ import annotations

from typing import Any

BASE = 0x7F0000000000
SEGMENT = 1 << 30
START = 1_700_000_000_000_000


class OneSegment:
    """Blocks by name, with the events that made them.

    Attributes
    ----------
    now
        Unix microseconds; each event takes one.
    blocks
        Name → (address, bytes).
    events
        As a snapshot's trace has them.
    """

    def __init__(self) -> None:
        self.now = START
        self.blocks: dict[str, tuple[int, int]] = {}
        self.events: list[dict[str, Any]] = []

    @property
    def total(self) -> int:
        return sum(size for _, size in self.blocks.values())

    def take(self, name: str, size: int) -> None:
        """Allocate where there is room first, and bind a name to it; what it held is freed after that."""
        address = BASE
        for start, length in sorted(self.blocks.values()):
            if start - address >= size:
                break
            address = start + length
        self._event("alloc", address, size)
        self.give(name)
        self.blocks[name] = (address, size)

    def give(self, name: str) -> None:
        """Free what a name holds, if anything."""
        if name in self.blocks:
            address, size = self.blocks.pop(name)
            self._event("free_requested", address, size)
            self._event("free_completed", address, size)

    def _event(self, action: str, address: int, size: int) -> None:
        self.now += 1
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now, "frames": []}
        self.events.append(event)

    def snapshot(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the segment as it is now, with these events."""
        blocks: list[dict[str, Any]] = []
        address = BASE

        def add(size: int, state: str) -> None:
            blocks.append({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})

        for start, length in sorted(self.blocks.values()):
            if start > address:
                add(start - address, "inactive")
            address = start
            add(length, "active_allocated")
            address += length
        add(BASE + SEGMENT - address, "inactive")
        segment = {
            **dict.fromkeys(("allocated_size", "active_size", "requested_size"), self.total),
            "device": 0,
            "address": BASE,
            "total_size": SEGMENT,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }
        return {"segments": [segment], "device_traces": [events], "allocator_settings": {}}
