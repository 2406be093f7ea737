"""Lines that other magics compiled, told as lines of the cell."""

from __future__ import annotations

import numpy as np

from gpumem_magic.magics.lines import CellLines
from gpumem_magic.recording.model import Marks
from gpumem_magic.trace.model import Frame, StackTable

CELL = "/home/ipykernel_1/1.py"
BODY = "/home/ipykernel_1/2.py"


def marks(*places, last_lines=()):
    none = np.zeros(0, np.int64)
    return Marks(none, none, none.astype(np.int32), places, last_lines=last_lines)


def test_a_timed_body_counts_from_below_the_magic():
    lines = CellLines(above=2)
    found = lines.marks(CELL, marks((("<timed exec>", 1, "<module>"), (CELL, 1, "<module>")), ((CELL, 1, "<module>"),)))
    assert found.places == (((CELL, 3, "<module>"), (CELL, 2, "<module>")), ((CELL, 2, "<module>"),))


def test_a_statement_timed_within_a_timed_body_stays_at_its_own_line():
    place = (("<timed exec>", 1, "<module>"), ("<timed exec>", 4, "<module>"), (CELL, 1, "<module>"))
    found = CellLines(above=2).marks(CELL, marks(place))
    assert found.places == ((("<timed exec>", 1, "<module>"), (CELL, 6, "<module>"), (CELL, 2, "<module>")),)


def test_a_body_that_ran_as_a_cell_keeps_its_functions():
    lines = CellLines(bodies={BODY: 3})
    place = ((BODY, 2, "f"), (BODY, 5, "<module>"), (CELL, 1, "<module>"))
    found = lines.marks(CELL, marks(place, last_lines=((2, 9, 1),)))
    assert found.places == (((CELL, 5, "f"), (CELL, 8, "<module>"), (CELL, 1, "<module>")),)
    assert found.last_lines == ((5, 12, 1),)


def test_recorded_stacks_too():
    table = StackTable((Frame("model.py", 7, "forward"), Frame(BODY, 2, "<module>")), ((), (0, 1)))
    assert CellLines(bodies={BODY: 3}).stacks(CELL, table).resolve(1) == (
        Frame("model.py", 7, "forward"),
        Frame(CELL, 5, "<module>"),
    )


def test_a_plain_cell_needs_nothing():
    assert not CellLines()
