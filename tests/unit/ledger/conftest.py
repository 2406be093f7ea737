"""A notebook on a GPU, as torch's snapshots tell of it: one segment, first fit, sizes in multiples of 512."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpumem_magic.analysis import analyse
from gpumem_magic.book import Ledger, LiveBlocks
from gpumem_magic.recording.model import Cell, DeviceReading, Outcome, Recording, SourceKind
from gpumem_magic.trace.convert import from_snapshot

BASE = 0x7F0000000000
SEGMENT = 1 << 30


class Notebook:
    """Allocates and frees by name, in cells that are measured or not."""

    def __init__(self, *, most_entries: int = 1000):
        self.ledger = Ledger(most_entries)
        self.now = 1_700_000_000_000_000
        self.blocks: dict[str, tuple[int, int]] = {}
        self.events: list[dict[str, Any]] = []
        self.number = 0

    def alloc(self, name, size):
        address = BASE
        for start, length in sorted(self.blocks.values()):
            if start - address >= size:
                break
            address = start + length
        self.blocks[name] = (address, size)
        self._event("alloc", address, size)

    def free(self, name):
        address, size = self.blocks.pop(name)
        self._event("free_requested", address, size)
        self._event("free_completed", address, size)

    def _event(self, action, address, size):
        self.now += 1
        self.events.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now, "frames": []}
        )

    def cell(self, *, source="x = 1", measured=True, outcome=Outcome.OK, label=None, cell_id=None):
        """End a cell that did what was done since the last one."""
        self.number += 1
        events, self.events = self.events, []
        if not measured:
            return None
        start, self.now = (events[0]["time_us"] - 1 if events else self.now), self.now + 10
        held = self.total
        grown = sum(event["size"] * {"alloc": 1, "free_requested": -1}.get(event["action"], 0) for event in events)
        recording = Recording(
            cell=Cell(self.number, label, source),
            source=SourceKind.CUDA,
            outcome=outcome,
            started_us=start,
            ended_us=self.now,
            before=(self._reading(start, held - grown),),
            after=(self._reading(self.now, held),),
            trace=from_snapshot(self._snapshot(events), kind="cuda"),
        )
        return self.ledger.add(recording, analyse(recording), cell_id)

    @property
    def total(self):
        return sum(size for _, size in self.blocks.values())

    def _reading(self, time_us, allocated):
        return DeviceReading("cuda:0", time_us, allocated, SEGMENT, device_total=2 * SEGMENT, limit=2 * SEGMENT)

    def _snapshot(self, events):
        blocks, address = [], BASE

        def add(size, state):
            blocks.append({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})

        for start, length in sorted(self.blocks.values()):
            if start > address:
                add(start - address, "inactive")
            address = start
            add(length, "active_allocated")
            address += length
        add(BASE + SEGMENT - address, "inactive")
        segment = {
            "device": 0,
            "address": BASE,
            "total_size": SEGMENT,
            "allocated_size": self.total,
            "active_size": self.total,
            "requested_size": self.total,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }
        return {"segments": [segment], "device_traces": [events], "allocator_settings": {}}

    def live(self):
        pairs = sorted(self.blocks.values())
        return {
            "cuda:0": LiveBlocks(
                np.array([pair[0] for pair in pairs], np.uint64), np.array([pair[1] for pair in pairs], np.int64)
            )
        }

    def alive(self, tensors=None):
        """Title (None: not seen) → bytes, and the device."""
        (device,) = self.ledger.alive(self.live(), tensors)
        return {row.entry.title if row.entry else None: row.bytes for row in device.rows}, device


@pytest.fixture
def notebook():
    return Notebook()


@pytest.fixture
def new_notebook():
    return Notebook
