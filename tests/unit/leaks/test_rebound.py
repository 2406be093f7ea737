"""Lines that bind a name to something made from its old value: at the peak both values are alive."""

from __future__ import annotations

import pytest

from gpumem_magic.analysis.rebound import rebound_notes

MIB = 1 << 20


def notes(run):
    recording = run.recording()
    return [note.text for note in rebound_notes(recording, run.analysis())]


def test_an_old_value_and_its_new_one_are_both_paid_for(script):
    run = script("z = start()\nfor i in range(4):\n    z = layer(z)\n")
    run.at(1).alloc("z", 8 * MIB)
    for turn in range(4):
        run.at(2).at(3).alloc("scratch", MIB).free("scratch").alloc(f"new{turn}", 8 * MIB)
        run.free(f"new{turn - 1}" if turn else "z")
    run.at(2)
    (text,) = notes(run)
    told = "at the peak both values of `z` are alive, 2 × 8.00 MiB: line 3 `z = layer(z)` lets go of the old one only"
    assert text.startswith(told)


@pytest.mark.parametrize(
    ("source", "old", "temporary", "new"),
    [
        ("z = start()\ny = layer(z)\n", 8, 0, 8),  # another name
        ("z = start()\nz = layer()\n", 8, 0, 8),  # not made from the old value
        ("z = start()\nz = layer(z)\n", 2, 8, 8),  # a temporary of the same execution has the size
        ("z = start()\nz = layer(z)\n", 8, 0, 4),  # the new value is smaller
    ],
)
def test_what_only_resembles_it(script, source, old, temporary, new):
    run = script(source)
    run.at(1).alloc("z", old * MIB).at(2)
    if temporary:
        run.alloc("temporary", temporary * MIB)
    run.alloc("new", new * MIB)
    if temporary:
        run.free("temporary")
    run.free("z")
    assert notes(run) == []
