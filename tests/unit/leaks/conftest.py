"""Cells with loops, as a GPU's events and line marks tell of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpumem_magic.analysis import analyse
from gpumem_magic.recording.model import Cell, DeviceReading, Marks, Outcome, Recording, SourceKind
from gpumem_magic.trace.convert import from_snapshot

BASE = 0x7F0000000000
SEGMENT = 1 << 30
FILE = "cell.py"
START = 1_700_000_000_000_000


class Script:
    """Runs a cell by hand: which line, what it allocates, what it frees. First fit in one segment, units of 512 B."""

    def __init__(self, source: str, *, has_functions: bool = True) -> None:
        self.source = source
        self.now = START
        self.has_functions = has_functions
        self.blocks: dict[str, tuple[int, int]] = {}
        self.events: list[dict[str, Any]] = []
        self.marks: list[tuple[int, int]] = []
        self.lines: list[tuple[tuple[str, int, str], ...]] = []

    def at(self, *lines: int, function: str = "<module>") -> Script:
        """Be at a line; with several, the last ones called the first (innermost first, as marks have it)."""
        place = tuple((FILE, line, function if n < len(lines) - 1 else "<module>") for n, line in enumerate(lines))
        if place not in self.lines:
            self.lines.append(place)
        self.now += 10
        self.marks.append((self.now, self.lines.index(place)))
        return self

    def alloc(self, name: str, size: int) -> Script:
        """Bind a name to new memory; what it held is freed after that, as Python does."""
        address = BASE
        for start, length in sorted(self.blocks.values()):
            if start - address >= size:
                break
            address = start + length
        self._event("alloc", address, size)
        self.free(name)
        self.blocks[name] = (address, size)
        return self

    def free(self, name: str) -> Script:
        if name in self.blocks:
            address, size = self.blocks.pop(name)
            self._event("free_requested", address, size)
            self._event("free_completed", address, size)
        return self

    def address(self, name: str) -> int:
        return self.blocks[name][0]

    def _event(self, action: str, address: int, size: int) -> None:
        self.now += 1
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now, "frames": []}
        self.events.append(event)

    def recording(self, **changes: Any) -> Recording:
        self.now += 10
        marks = Marks(
            time_us=np.array([time for time, _ in self.marks], np.int64),
            thread=np.full(len(self.marks), 7, np.int64),
            place=np.array([place for _, place in self.marks], np.int32),
            places=tuple(self.lines),
            has_functions=self.has_functions,
        )
        total = sum(size for _, size in self.blocks.values())
        fields: dict[str, Any] = {
            "cell": Cell(1, None, self.source, (FILE,)),
            "source": SourceKind.CUDA,
            "outcome": Outcome.OK,
            "started_us": START,
            "ended_us": self.now,
            "before": (DeviceReading("cuda:0", START, 0, SEGMENT, device_total=1 << 34, limit=1 << 34),),
            "after": (DeviceReading("cuda:0", self.now, total, SEGMENT, device_total=1 << 34, limit=1 << 34),),
            "trace": from_snapshot(self._snapshot(total), kind="cuda"),
            "marks": marks,
        }
        return Recording(**fields | changes)

    def _snapshot(self, total: int) -> dict[str, Any]:
        blocks, address = [], BASE

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
            **dict.fromkeys(("allocated_size", "active_size", "requested_size"), total),
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
        return {"segments": [segment], "device_traces": [self.events], "allocator_settings": {}}

    def growth(self, **changes: Any) -> Any:
        """Analyse, and return the device's growth."""
        return self.analysis(**changes).devices[0].growth

    def analysis(self, *, holders: Any = None, **changes: Any) -> Any:
        return analyse(self.recording(**changes), holders=holders)


@pytest.fixture
def script() -> type[Script]:
    return Script
