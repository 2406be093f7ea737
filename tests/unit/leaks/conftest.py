"""Cells with loops, as a GPU's events and line marks tell of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand.segment import SEGMENT, START, OneSegment

from gpumem_magic.analysis import analyse
from gpumem_magic.recording.model import Cell, DeviceReading, Marks, Outcome, Recording, SourceKind
from gpumem_magic.trace.convert import from_snapshot

FILE = "cell.py"


class Script(OneSegment):
    """Runs a cell by hand: which line, what it allocates, what it frees. Binding a name anew frees what it held."""

    def __init__(self, source: str, *, has_functions: bool = True) -> None:
        super().__init__()
        self.source = source
        self.has_functions = has_functions
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
        self.take(name, size)
        return self

    def free(self, name: str) -> Script:
        self.give(name)
        return self

    def address(self, name: str) -> int:
        address: int = self.blocks[name][0]
        return address

    def recording(self, **changes: Any) -> Recording:
        self.now += 10
        marks = Marks(
            time_us=np.array([time for time, _ in self.marks], np.int64),
            thread=np.full(len(self.marks), 7, np.int64),
            place=np.array([place for _, place in self.marks], np.int32),
            places=tuple(self.lines),
            has_functions=self.has_functions,
        )
        total = self.total
        fields: dict[str, Any] = {
            "cell": Cell(1, None, self.source, (FILE,)),
            "source": SourceKind.CUDA,
            "outcome": Outcome.OK,
            "started_us": START,
            "ended_us": self.now,
            "before": (DeviceReading("cuda:0", START, 0, SEGMENT, device_total=1 << 34, limit=1 << 34),),
            "after": (DeviceReading("cuda:0", self.now, total, SEGMENT, device_total=1 << 34, limit=1 << 34),),
            "trace": from_snapshot(self.snapshot(self.events), kind="cuda"),
            "marks": marks,
        }
        return Recording(**fields | changes)

    def growth(self, **changes: Any) -> Any:
        """Analyse, and return the device's growth."""
        return self.analysis(**changes).devices[0].growth

    def analysis(self, *, holders: Any = None, **changes: Any) -> Any:
        return analyse(self.recording(**changes), holders=holders)


@pytest.fixture
def script() -> type[Script]:
    return Script
