"""Loops of a cell, and when their iterations begin: sequences of lines as both kinds of marks write them."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.analysis.leaks.loops import (
    Loop,
    ends_a_run,
    find_loops,
    iteration_starts,
    lines_in_scope,
    loops_on_one_line,
)
from gpumem_magic.recording.model import Marks


def marks(lines, *, has_functions):
    """`lines`: the line at each mark, 0 for nowhere; two digits and more: a function's line over the cell's line."""
    places = sorted({line for line in lines if line})
    stacks = tuple(
        (("c", line, "<module>"),) if line < 100 else (("c", line // 100, "f"), ("c", line % 100, "<module>"))
        for line in places
    )
    return Marks(
        time_us=np.arange(len(lines), dtype=np.int64) * 10,
        thread=np.full(len(lines), 1, np.int64),
        place=np.array([places.index(line) if line else -1 for line in lines], np.int32),
        places=stacks,
        has_functions=has_functions,
    )


def starts(source, lines, *, has_functions, number=0):
    noted = marks(lines, has_functions=has_functions)
    loop = find_loops("c", source)[number]
    return (iteration_starts(noted, loop, lines_in_scope(noted.places, "c", loop.scope)) // 10).tolist()


TWO = "x = 0\nfor i in y:\n    a\n    b\n"
NESTED = "for i in y:\n    for j in z:\n        a\n    b\n"


def test_a_header_is_noted_before_each_iteration():
    assert starts(TWO, [1, 0, 2, 3, 4, 2, 3, 4, 2, 0], has_functions=True) == [2, 5]
    # A line is noted again after the function that it called.
    assert starts(TWO, [2, 3, 903, 3, 4, 2, 3, 903, 3, 4, 2, 0], has_functions=True) == [0, 5]


def test_a_header_that_does_nothing_is_noted_once():
    assert starts(TWO, [1, 2, 3, 4, 3, 4, 3, 4], has_functions=False) == [1, 4, 6]
    assert starts("for i in y:\n    a\n", [1, 2, 2, 2], has_functions=False) == [0, 2, 3]


def test_statements_that_share_the_bodys_first_line():
    source = "for i in y:\n    a; b; c\n    d\n"
    assert starts(source, [1, 2, 2, 2, 3, 2, 2, 2, 3], has_functions=False) == [0, 5]
    # sys.monitoring notes the line once.
    assert starts(source, [1, 2, 3, 1, 2, 3, 1], has_functions=True) == [0, 3]
    within = "for i in y:\n    with a: b; c\n    d\n"
    assert starts(within, [1, 2, 2, 2, 2, 3, 2, 2, 2, 2, 3], has_functions=False) == [0, 6]
    tried = "for i in y:\n    try: a\n    except E: b\n"
    assert starts(tried, [1, 2, 2, 3, 2, 2, 3, 2, 2, 3], has_functions=False) == [0, 4, 7]
    # How often a branch is taken is not known: another line comes in between.
    asked = "for i in y:\n    if a: b\n    c\n"
    assert starts(asked, [1, 2, 2, 3, 2, 3, 2, 2, 3], has_functions=False) == [0, 4, 6]


@pytest.mark.parametrize(
    ("line", "is_loop"),
    [
        ("for x in xs: kept.append(f(x))", True),
        ("while next(xs): kept.append(f(xs)); n += 1", True),
        ("async for x in xs: kept.append(x)", True),
        ("kept = [f(x) for x in xs]", False),
        ("for x in xs:", False),
        ("", False),
    ],
)
def test_a_whole_loop_on_one_line(line, is_loop):
    assert loops_on_one_line(line) is is_loop


def test_inner_and_outer_loops_are_told_apart():
    lines = [1, 2, 3, 2, 3, 2, 4, 1, 2, 3, 2, 3, 2, 4, 1, 0]
    assert starts(NESTED, lines, has_functions=True) == [0, 7]
    assert starts(NESTED, lines, has_functions=True, number=1) == [1, 3, 8, 10]
    lines = [1, 2, 3, 3, 4, 2, 3, 3, 4]
    assert starts(NESTED, lines, has_functions=False) == [0, 5]
    assert starts(NESTED, lines, has_functions=False, number=1) == [1, 3, 5, 7]


def test_a_body_that_is_one_try_statement():
    source = "for i in y:\n    try:\n        a\n    except E:\n        b\n"
    assert starts(source, [1, 2, 3, 5, 2, 3, 5, 2, 3], has_functions=False) == [0, 4, 7]


def test_a_loop_in_a_function():
    source = "def f():\n    for i in y:\n        a\n        b\nf()\n"
    lines = [1, 5, 205, 305, 405, 205, 305, 405, 205, 5, 0]
    assert starts(source, lines, has_functions=True) == [2, 5]


@pytest.mark.parametrize(
    ("source", "headers"),
    [
        ("%%gpumem\nfor i in x:\n    y\n", [2]),
        ("files = !ls\nwhile True:\n    %time f()\n    break\n", [2]),
        ("%%time\n\nasync for a in b:\n    await c\n", [3]),
        ("for i in x: y\n", []),
        ("x = [i for i in y]\n", []),
        ("for i in x:\n  y\n print('no Python'", []),
        ("", []),
    ],
)
def test_loops_of_cells_as_typed(source, headers):
    assert [loop.header for loop in find_loops("c", source)] == headers


def test_the_lines_of_a_loop():
    loop = Loop("c", "<module>", 3, 4, 4, 9)
    assert loop.holds(np.array([2, 3, 9, 10, 0])).tolist() == [False, True, True, False, False]


def test_the_last_iteration_of_each_run():
    noted = marks([1, 2, 3, 2, 3, 2, 4, 1, 2, 3, 2, 3, 2, 4, 1, 0], has_functions=True)
    for number, expected in ((0, [False, True]), (1, [False, True, False, True])):
        loop = find_loops("c", NESTED)[number]
        lines = lines_in_scope(noted.places, "c", "<module>")
        begun = iteration_starts(noted, loop, lines)
        assert ends_a_run(noted, loop, lines, begun).tolist() == expected


WAITING = """\
async def work(q):
    kept = []
    while True:
        x = await q.get()
        kept.append(x * 2)
for i in y:
    q.put(i)
"""


def test_a_coroutine_that_waits_does_not_leave_its_loop():
    work, cell = find_loops("c", WAITING)
    assert (work.scope, work.can_wait, cell.can_wait) == ("work", True, False)
    ran = [2, 3, 4, 0, 4, 5, 4, 0, 4, 5, 4, 0, 4, 5, 4]
    noted = marks(ran, has_functions=True)
    lines = np.array([2, 3, 4, 5, 0], np.int32)  # of each place
    begun = np.array([40, 80, 120], np.int64)
    assert ends_a_run(noted, work, lines, begun).tolist() == [False, False, True]
    # A function's loop is left when the function is: its next run begins with it.
    assert ends_a_run(noted, work._replace(can_wait=False), lines, begun).tolist() == [True, True, True]
