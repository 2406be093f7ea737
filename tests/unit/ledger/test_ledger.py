"""The ledger over recordings as a GPU makes them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic.analysis.model import Group
from gpumem_magic.book import Tensors, ledger_text, summary_line
from gpumem_magic.book.blocks import BlockTable
from gpumem_magic.book.model import Origin
from gpumem_magic.holders.model import Category, Holder, HolderKind, HolderScan, Storage
from gpumem_magic.recording.model import Outcome
from gpumem_magic.trace.model import Action, Events

MIB = 1 << 20


def test_an_entry_has_the_cells_numbers(notebook):
    notebook.alloc("old", 4 * MIB)
    notebook.cell(measured=False)
    notebook.alloc("a", 8 * MIB)
    notebook.alloc("b", 2 * MIB)
    notebook.free("a")
    notebook.free("old")
    entry = notebook.cell(source="%%gpumem\n# train\nstep()\n", cell_id="c2")
    assert (entry.title, entry.cell_id, entry.first_line) == ("In [2]", "c2", "step()")
    assert (entry.peak, entry.stayed, entry.freed) == (14 * MIB, 2 * MIB, 4 * MIB)
    assert summary_line(entry) == "gpumem: peak 14.0 MiB, stayed 2.00 MiB, freed 4.00 MiB"


def test_a_cell_that_moves_nothing_is_no_entry(notebook):
    notebook.alloc("a", MIB)
    notebook.cell()
    assert notebook.cell() is None
    assert len(notebook.ledger.entries) == 1


def test_survivors_of_one_cell_that_another_frees(notebook):
    notebook.alloc("a", 8 * MIB)
    notebook.alloc("b", 4 * MIB)
    notebook.cell()
    notebook.alloc("c", 2 * MIB)
    notebook.cell()
    assert notebook.alive()[0] == {"In [1]": 12 * MIB, "In [2]": 2 * MIB}
    notebook.free("a")
    notebook.alloc("d", 8 * MIB)  # in the place of a
    notebook.cell()
    assert notebook.alive()[0] == {"In [1]": 4 * MIB, "In [2]": 2 * MIB, "In [3]": 8 * MIB}


def test_runs_of_the_same_cell_are_kept_apart(notebook):
    for name in ("a", "b"):
        notebook.alloc(name, MIB)
        notebook.cell(source="model = Net()", cell_id="same")
    assert notebook.alive()[0] == {"In [1]": MIB, "In [2]": MIB}
    assert [entry.cell_id for entry in notebook.ledger.entries] == ["same", "same"]


def test_what_was_not_measured_is_a_row_of_its_own(notebook):
    notebook.alloc("before", 3 * MIB)
    notebook.cell(measured=False)
    notebook.alloc("a", 8 * MIB)
    notebook.cell()
    notebook.free("a")
    notebook.alloc("unmeasured", 5 * MIB)  # where a was, of another size
    notebook.cell(measured=False)
    rows, device = notebook.alive()
    assert rows == {None: 8 * MIB}
    assert device.total == notebook.total


@pytest.mark.parametrize("seed", range(30))
def test_random_notebooks_add_up(new_notebook, seed):
    """With every cell measured each byte has its cell; with some not, the rows still add up to torch's count."""
    for share in (1.0, 0.6):
        dice = random.Random(seed)  # noqa: S311 - a test that can be repeated
        notebook = new_notebook()
        maker = {}
        for number in range(1, 25):
            measured = dice.random() < share
            for step in range(dice.randrange(8)):
                if notebook.blocks and dice.random() < 0.5:
                    notebook.free(dice.choice(sorted(notebook.blocks)))
                else:
                    name = f"{number}.{step}"
                    notebook.alloc(name, 512 * dice.randrange(1, 40))
                    maker[name] = number
            notebook.cell(measured=measured)
            if dice.random() < 0.2:
                notebook.alive()
        rows, device = notebook.alive()
        assert sum(rows.values()) == device.total == notebook.total
        if share == 1.0:
            truth: Counter[str] = Counter()
            for name, (_, size) in notebook.blocks.items():
                truth[f"In [{maker[name]}]"] += size
            assert rows == truth


def test_names_are_the_largest_first_and_last_use_is_told(notebook):
    notebook.alloc("small", MIB)
    notebook.alloc("large", 2 * MIB)
    notebook.cell(source="model = Net()")
    names = {("cuda:0", notebook.blocks["small"][0]): "head.bias", ("cuda:0", notebook.blocks["large"][0]): "emb"}
    _, device = notebook.alive(Tensors(names, complete=True))
    assert device.rows[0].names == ("emb", "head.bias")
    text = ledger_text(notebook.ledger, [device], last_used={"emb": "In [9]"})
    assert "3.00 MiB 100%  In [1]   emb (last used in In [9]), head.bias, 2 blocks" in text


def test_the_ranking_and_the_newest_first(notebook):
    for size in (1, 9, 3):
        notebook.alloc("x", size * MIB)
        notebook.free("x")
        notebook.cell(source=f"use({size})", outcome=Outcome.ERROR if size == 3 else Outcome.OK)
    ranked = ledger_text(notebook.ledger, [], top=2).splitlines()
    assert [line.split("`")[1] for line in ranked if "`" in line] == ["use(9)", "use(3)"]
    assert ranked[-1] == "  … 1 more: --top 3 shows all"
    assert "(error)" in ranked[3]
    assert "run" not in ranked[3]
    newest = ledger_text(notebook.ledger, [], newest_first=True).splitlines()
    assert [line.split("`")[1] for line in newest if "`" in line] == ["use(3)", "use(9)", "use(1)"]


def test_the_ledger_is_bounded_and_keeps_what_is_alive(new_notebook):
    notebook = new_notebook(most_entries=3)
    notebook.alloc("kept", MIB)
    notebook.cell()
    for number in range(6):
        notebook.alloc("x", MIB)
        notebook.free("x")
        notebook.cell(source=f"{number}")
    assert [entry.title for entry in notebook.ledger.entries] == ["In [1]", "In [6]", "In [7]"]
    assert notebook.ledger.entries_left_out == 4
    assert notebook.alive()[0] == {"In [1]": MIB}
    assert "4 older runs were left out" in ledger_text(notebook.ledger, [])


def events(*rows):
    action, address, size = zip(*rows, strict=True)
    zeros = np.zeros(len(rows), np.int64)
    return Events(
        np.array(action, np.uint8),
        np.array(address, np.uint64),
        np.array(size, np.int64),
        zeros,
        zeros,
        zeros.astype(np.int32),
        zeros.astype(np.int32),
    )


def test_any_event_in_a_blocks_place_proves_it_gone():
    def left(*rows):
        table = BlockTable()
        table.add(np.array([100, 200, 300], np.uint64), np.array([50, 50, 50], np.int64), 0)
        table.apply(events(*rows))
        return table.address.tolist()

    assert left((Action.FREE_COMPLETED, 200, 50)) == [100, 300]
    # The size of a free may be another block's.
    assert left((Action.FREE_REQUESTED, 100, 500)) == [200, 300]
    assert left((Action.ALLOC, 149, 1)) == [200, 300]
    assert left((Action.ALLOC, 150, 50)) == [100, 200, 300]
    assert left((Action.ALLOC, 90, 10)) == [100, 200, 300]
    assert left((Action.ALLOC, 90, 11)) == [200, 300]
    assert left((Action.ALLOC, 0, 1000)) == []
    assert left((Action.SEGMENT_ALLOC, 0, 1000)) == [100, 200, 300]
    assert left((Action.ALLOC, 210, 5), (Action.ALLOC, 340, 100)) == [100]
    # The first thousands of events are looked at first, the rest for what these left.
    elsewhere = [(Action.ALLOC, 5000, 512), (Action.FREE_REQUESTED, 5000, 512), (Action.FREE_COMPLETED, 5000, 512)]
    assert left(*elsewhere * 3000) == [100, 200, 300]
    assert left((Action.FREE_REQUESTED, 200, 50), *elsewhere * 3000, (Action.FREE_REQUESTED, 300, 50)) == [100]


def test_a_few_blocks_are_held_against_events_as_many_are():
    random = np.random.default_rng(0)
    for _ in range(300):
        count, rows = random.integers(1, 12), random.integers(1, 6)
        table = BlockTable()
        table.add(
            np.sort(random.choice(200, count, replace=False)).astype(np.uint64) * 5, random.integers(0, 6, count), 0
        )
        columns = random.integers(0, 8, rows).astype(np.uint8), random.integers(0, 1000, rows).astype(np.uint64)
        size = random.integers(0, 20, rows)
        one_by_one = table._untouched_one_by_one(*columns, size)
        assert one_by_one.tolist() == table._untouched(*columns, size).tolist()


def test_a_full_table_keeps_the_largest_blocks():
    table = BlockTable(most=2)
    table.add(np.array([100, 200, 300], np.uint64), np.array([50, 10, 70], np.int64), 0)
    assert table.address.tolist() == [100, 300]
    assert table.left_out == 1


def held(notebook, names, device="cuda:0"):
    """A scan that finds each of these blocks by its own name."""
    storages = tuple(
        Storage(
            device,
            notebook.blocks[name][0],
            notebook.blocks[name][1],
            1,
            (1,),
            "float32",
            Category.OTHER,
            (Holder(HolderKind.VARIABLE, f"kept[{name!r}]", "kept"),),
        )
        for name in names
    )
    return HolderScan(storages, 1, 0.0, None)


def test_runs_of_a_cell_that_each_leave_something(notebook):
    for run in range(1, 5):
        notebook.alloc(f"b{run}", MIB)
        entry = notebook.cell(source="%%gpumem\nkept.append(make())", cell_id="same")
        assert (entry.run, entry.cell_key) == (run, "same")
        scan = held(notebook, notebook.blocks)
        leaks = notebook.ledger.reruns(entry, notebook.live(), scan)
        assert len(leaks) == (run >= 3)
    (leak,) = leaks
    assert (leak.kind, leak.iterations, leak.grown, leak.bytes_per_iteration, leak.bytes) == (
        "reruns",
        4,
        4,
        MIB,
        4 * MIB,
    )
    # One that is let go breaks the series.
    notebook.free("b3")
    notebook.cell()
    assert notebook.ledger.reruns(entry, notebook.live(), None) == ()


def test_a_device_that_nothing_counts_needs_a_holder(notebook):
    for run in range(1, 4):
        notebook.alloc(f"b{run}", MIB)
        entry = notebook.cell(source="kept.append(make())")
    assert notebook.ledger.reruns(entry, {}, None) == ()
    assert notebook.ledger.reruns(entry, {}, held(notebook, ["b3"])) == ()
    assert len(notebook.ledger.reruns(entry, {}, held(notebook, ["b1", "b2", "b3"]))) == 1


def test_what_a_rerun_replaces_is_no_leak(notebook):
    for run in range(1, 6):
        notebook.alloc("new", MIB)
        if run > 1:
            notebook.free("x")
        notebook.blocks["x"] = notebook.blocks.pop("new")
        entry = notebook.cell(source="x = make()")
        assert entry.run == run
        assert notebook.ledger.reruns(entry, notebook.live(), None) == ()


def test_a_cell_without_an_id_is_known_by_its_text(notebook):
    notebook.alloc("a", MIB)
    first = notebook.cell(source="%%gpumem --quiet\nx = make()")
    notebook.alloc("b", MIB)
    second = notebook.cell(source="x = make()\n")
    notebook.alloc("c", MIB)
    other = notebook.cell(source="y = make()")
    assert (first.run, second.run, other.run) == (1, 2, 1)


def test_where_a_block_was_made(notebook):
    notebook.alloc("a", MIB)
    notebook.cell()
    notebook.alloc("b", 2 * MIB)
    notebook.cell(label="second")
    origins = {name: notebook.ledger.origin("cuda:0", address) for name, (address, _) in notebook.blocks.items()}
    assert [origins[name].entry.title for name in "ab"] == ["In [1]", "second"]
    assert notebook.ledger.origin("cuda:1", notebook.blocks["a"][0]) is None
    assert notebook.ledger.origin("cuda:0", notebook.blocks["a"][0] + 512) is None


def test_a_line_of_another_cells_function_stands_beside_the_run_that_called_it(notebook):
    notebook.alloc("a", MIB)
    entry = notebook.cell()
    assert str(Origin(entry, Group("line", "line 2"))) == "In [1] line 2"
    assert str(Origin(entry, Group("line", "In [7] line 4"))) == "In [1] (In [7] line 4)"
    assert str(Origin(entry, None)) == "In [1]"


@pytest.mark.parametrize("counts", [True, False])
def test_what_a_scratch_cell_gave_back_did_not_stay(notebook, counts):
    """A GPU's allocator says what is gone; of other devices, a complete search for holders does."""
    notebook.alloc("before", MIB)
    notebook.cell()
    notebook.alloc("a", 2 * MIB)
    notebook.alloc("b", 4 * MIB)
    assert notebook.cell().stayed == 6 * MIB
    scan = held(notebook, ["b"])
    now = notebook.live()
    if counts:
        notebook.free("a")
        now, scan = notebook.live(), held(notebook, [])
    notebook.ledger.cleared(now if counts else {}, scan)
    first, second = notebook.ledger.entries
    assert (first.stayed, second.stayed, second.peak) == (MIB, 4 * MIB, 7 * MIB)
    # A search that was cut short proves nothing.
    if not counts:
        notebook.ledger.cleared({}, replace(held(notebook, []), cut="stopped"))
        assert notebook.ledger.entries[1].stayed == 4 * MIB


def test_the_line_under_a_cell_that_leaks(notebook):
    notebook.alloc("a", MIB)
    entry = notebook.cell()
    assert "leak" not in summary_line(entry)
    told = notebook.ledger.told(entry, "line 3 keeps 1 KiB more each iteration")
    assert summary_line(told).endswith("; leak: line 3 keeps 1 KiB more each iteration")
    assert notebook.ledger.entries == (told,)


def test_what_the_newest_run_alone_still_has_is_no_growth(notebook):
    for number in range(4):
        notebook.alloc(f"kept{number}", 2 * MIB)
        notebook.alloc("own", MIB)
        entry = notebook.cell(source="kept.append(make()); own = small()")
    (leak,) = notebook.ledger.reruns(entry, notebook.live(), None)
    assert (leak.grown, leak.bytes_per_iteration, leak.bytes) == (4, 2 * MIB, 8 * MIB)
    assert leak.left == (2 * MIB,) * 4
    assert "each of the last 4 runs of this cell left 2.00 MiB of " in leak.sentence
    assert leak.sentence.endswith(": 8.00 MiB")
