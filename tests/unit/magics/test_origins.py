"""Which cell made a storage is only said where nothing else can have put it there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.book import LiveBlocks, Origin  # noqa: E402
from gpumem_magic.holders import HolderScan, who_holds  # noqa: E402
from gpumem_magic.magics.origins import Origins, unowned_blocks  # noqa: E402
from gpumem_magic.recording.readings import now_us  # noqa: E402


class Ledger:
    """Knows one block, which the run that started at `started` left at an address."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], Origin] = {}

    def left(self, tensor, title):
        entry: Any = SimpleNamespace(title=title, started_us=now_us())
        self.blocks["cpu", tensor.data_ptr()] = Origin(entry, None)

    def origin(self, device, address):
        return self.blocks.get((device, address))


@pytest.fixture
def ledger():
    return Ledger()


def look(**names):
    return who_holds(SimpleNamespace(user_ns=names), quick=True, budget=60)


def unmeasured(origins):
    origins.cell_ended()


def measured(origins):
    origins.measured()
    origins.cell_ended()


MEMORY = bytearray(256)


def lying_there():
    """Make a tensor whose storage is new, and lies always in the same place."""
    return torch.frombuffer(MEMORY, dtype=torch.float32)


def test_what_was_seen_after_its_cell_keeps_its_maker(ledger):
    origins, x = Origins(), lying_there()
    ledger.left(x, "In [1]")
    origins.see(look(x=x), ledger)
    measured(origins)
    unmeasured(origins)
    assert origins.of(look(x=x), ledger) == {("cpu", x.data_ptr()): "In [1]"}


def test_what_an_unmeasured_cell_put_in_a_blocks_place_has_no_maker(ledger):
    """The next measured cell sees it there, and must not take it for the former one."""
    origins, x = Origins(), lying_there()
    ledger.left(x, "In [1]")
    measured(origins)
    unmeasured(origins)
    origins.see(look(x=x), ledger)  # after a measured cell that never touched it
    measured(origins)
    assert origins.of(look(x=x), ledger) == {}


def test_another_storage_under_the_same_object_at_the_same_place_has_no_maker(ledger):
    origins, x = Origins(), lying_there()
    ledger.left(x, "In [1]")
    origins.see(look(x=x), ledger)
    measured(origins)
    x.data = lying_there()
    unmeasured(origins)
    assert origins.of(look(x=x), ledger) == {}


def test_a_witness_that_moved_makes_room_for_the_one_that_lies_there_now(ledger):
    origins, x = Origins(), lying_there()
    address = x.data_ptr()
    ledger.left(x, "In [1]")
    origins.see(look(x=x), ledger)
    measured(origins)
    # A measured cell moves x, and makes y where it was.
    x.data = torch.zeros(1024)
    y = lying_there()
    ledger.left(y, "In [2]")
    origins.see(look(x=x, y=y), ledger)
    measured(origins)
    unmeasured(origins)
    assert origins.of(look(x=x, y=y), ledger) == {("cpu", address): "In [2]"}


def test_blocks_without_a_tensor_are_named_by_place_and_size(ledger):
    mib = 1 << 20
    blocks = LiveBlocks(
        np.array([0x1000, 0x8000_0000, 0x9000_0000, 0xB000_0000], np.uint64),
        np.array([4 * mib, 32 * mib, 32 * mib, 3 * mib], np.int64),
    )
    scan = HolderScan((), 9, 0.1, None, foreign={0x2000: "features (cupy array)"})
    rows = unowned_blocks(scan, {"cuda:0": blocks}, ledger)
    assert [(row.bytes // mib, row.blocks) for row in rows] == [(64, 2), (4, 1), (3, 1)]
    assert rows[0].what.startswith("workspaces of 32.0 MiB of cuBLAS or cuBLASLt, one for each thread and stream that")
    assert rows[1].what == "memory that features (cupy array) shows"
    assert rows[2].what.startswith("a library's workspace, a captured graph's pool")
    # A search that was cut short says nothing about owners.
    assert unowned_blocks(replace(scan, cut="stopped"), {"cuda:0": blocks}, ledger) == []
