"""How "one of these lines" reads in a report."""

from __future__ import annotations

import numpy as np

from gpumem_magic.analysis.devices import Placement
from gpumem_magic.analysis.groups import GroupBook, PlaceNamer
from gpumem_magic.recording.model import Cell

CELL = Cell(
    3, None, "for x in xs:\n    f(x)\n    g(x)\n", ("<cell>",), {"<earlier>": (2, "def f(x):\n    a(x)\n    b(x)\n")}
)


def test_a_range_of_lines_is_an_owner_of_its_own() -> None:
    namer, book = PlaceNamer(CELL), GroupBook()
    one = book.number(*namer.line("<cell>", 1, "<module>", last=1))
    some = book.number(*namer.line("<cell>", 1, "<module>", last=3))
    assert one == book.number(*namer.line("<cell>", 1, "<module>"))
    assert one != some
    assert [group.label for group in book.groups] == ["line 1", "lines 1 to 3"]
    assert book.groups[some].source == "for x in xs:"


def test_a_range_in_another_cell() -> None:
    _, group = PlaceNamer(CELL).line("<earlier>", 2, "f", last=3)
    assert group.label == "In [2] lines 2 to 3"


def test_each_entry_of_a_place_has_its_own_last_line() -> None:
    place = (("<earlier>", 2, "f"), ("<cell>", 2, "<module>"))
    placement = Placement(np.zeros(1, np.int32), [place], (), [(3, 2)])
    assert [placement.last_line(0, entry) for entry in place] == [3, 2]
    assert Placement(np.zeros(1, np.int32), [place], ()).last_line(0, place[0]) == 2
