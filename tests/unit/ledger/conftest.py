"""A notebook on a GPU, as torch's snapshots tell of it: one segment, first fit, sizes in multiples of 512."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand.segment import SEGMENT, OneSegment

from gpumem_magic.analysis import analyse
from gpumem_magic.book import Ledger, LiveBlocks
from gpumem_magic.recording.model import Cell, DeviceReading, Outcome, Recording, SourceKind
from gpumem_magic.trace.convert import from_snapshot


class Notebook(OneSegment):
    """Allocates and frees by name, in cells that are measured or not."""

    now: int
    events: list[dict[str, Any]]

    def __init__(self, *, most_entries: int = 1000):
        super().__init__()
        self.ledger = Ledger(most_entries)
        self.number = 0

    alloc = OneSegment.take
    free = OneSegment.give

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
            trace=from_snapshot(self.snapshot(events), kind="cuda"),
        )
        return self.ledger.add(recording, analyse(recording), cell_id)

    def _reading(self, time_us, allocated):
        return DeviceReading("cuda:0", time_us, allocated, SEGMENT, device_total=2 * SEGMENT, limit=2 * SEGMENT)

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
