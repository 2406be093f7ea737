"""Lines through sys.monitoring, against the frames that were really on the stack."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from by_hand.ways import WAYS, choose_way
from marked_cells import HAS_FUNCTIONS, Enough, Joined, is_cell  # type: ignore[import-not-found]
from random_programs import program  # type: ignore[import-not-found]

from gpumem_magic.analysis.lines import attribute
from gpumem_magic.recording.marks import events, start, store
from gpumem_magic.recording.marks.pace import Pace

if TYPE_CHECKING:
    from types import CodeType

    from marked_cells import Notebook

    from gpumem_magic.recording.marks.stacks import NotebookCode

pytestmark = pytest.mark.skipif(not HAS_FUNCTIONS, reason="needs Python 3.12")

FREE_IDS = (3, 4)


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_way(request.param, monkeypatch)


def run_program(notebook: Notebook, seed: int, *, floods: bool) -> Joined:
    earlier, cell = program(seed, floods=floods)
    notebook.run(earlier)
    notebook.truth.limit = len(notebook.truth.time_us) + 300
    marks = start(is_cell, progress=notebook.truth.count if seed % 2 else None)
    with contextlib.suppress(Exception, Enough):  # programs may well end in one
        notebook.run(cell, marks)
    columns = marks.stop()
    assert columns is not None
    assert marks.notes == ()
    return Joined(columns, notebook.truth, 0, ())


def monitoring() -> Any:
    return sys.monitoring  # type: ignore[attr-defined]


def ranges(joined: Joined) -> list[tuple[int, int]]:
    """Return the innermost entries that are more than one line."""
    marks = joined.marks
    both = [(place[0][1], last[0]) for place, last in zip(marks.places, marks.last_lines, strict=True) if place]
    return [(first, last) for first, last in both if first != last]


@pytest.mark.parametrize("seed", range(60))
def test_every_allocation_of_a_random_program_gets_its_line(notebook: Notebook, seed: int) -> None:
    joined = run_program(notebook, seed, floods=False)
    assert joined.inexact() == []


@pytest.mark.parametrize("seed", range(6))
def test_lines_stay_exact_when_what_was_written_is_read_in_between(
    notebook: Notebook, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_MOST_WAITING", -1)
    monkeypatch.setattr(Pace, "rest", lambda _: 1)
    assert run_program(notebook, seed, floods=False).inexact() == []


@pytest.mark.parametrize("seed", range(30))
def test_places_stay_right_when_lines_run_too_often(notebook: Notebook, seed: int) -> None:
    assert run_program(notebook, seed, floods=True).wrong() == []


def test_a_line_goes_on_after_a_function_returns_in_it(notebook: Notebook) -> None:
    notebook.run("def f():\n    return alloc()")
    joined = notebook.measured("x = f() + alloc()\ny = alloc()")
    assert joined.innermost() == [2, 1, 2]
    assert joined.given(0) == [("<cell 2>", 1, 1, "<module>"), ("<cell 1>", 2, 2, "f")]


def test_top_level_await_and_interleaved_tasks(notebook: Notebook) -> None:
    notebook.run(
        "import asyncio\n"
        "async def work(n):\n"
        "    for _ in range(n):\n"
        "        alloc()\n"
        "        await asyncio.sleep(0)\n"
        "        alloc()\n"
        "    return alloc()\n"
    )
    joined = notebook.measured("x = await work(2) + alloc()\ny = await asyncio.gather(work(3), work(2))\nalloc()")
    assert joined.inexact() == []
    assert joined.innermost()[:6] == [4, 6, 4, 6, 7, 1]


def test_what_is_thrown_into_a_generator_that_delegates(notebook: Notebook) -> None:
    notebook.run("""
import asyncio
def inner():
    while True:
        try:
            yield alloc()
        except ValueError:
            alloc()
def outer():
    yield from inner()
def use():
    g = outer()
    next(g)
    return g.throw(ValueError()) + alloc()
async def deep():
    try:
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        alloc()
        raise
async def middle():
    try:
        await deep()
    finally:
        alloc()
async def main():
    task = asyncio.ensure_future(middle())
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        alloc()
""")
    joined = notebook.measured("use()\nawait main()\nalloc()")
    assert joined.inexact() == []
    assert joined.innermost() == [6, 8, 6, 14, 19, 25, 33, 3]


def test_unwinding_leaves_the_right_line(notebook: Notebook) -> None:
    notebook.run("def f():\n    alloc()\n    raise ValueError")
    joined = notebook.measured("try:\n    f()\nexcept ValueError: alloc()\nx = alloc()")
    assert joined.innermost() == [2, 3, 4]
    assert joined.inexact() == []


def test_an_error_that_ends_the_cell(notebook: Notebook) -> None:
    notebook.run("def f():\n    alloc()\n    raise MemoryError")
    joined = notebook.measured("alloc()\nf()\nalloc()", error=MemoryError)
    assert joined.innermost() == [1, 2]


def test_a_generator_of_an_earlier_cell_goes_on_in_mid_line(notebook: Notebook) -> None:
    notebook.run("def g():\n    while True:\n        x = (yield 1) or alloc()\n        alloc()\ng = g()\nnext(g)")
    joined = notebook.measured("next(g)\nx = next(g) + alloc()")
    assert joined.innermost() == [3, 4, 3, 4, 2]


def test_code_that_runs_already_when_the_watch_begins(notebook: Notebook) -> None:
    result: dict[str, Any] = {}

    def begin() -> None:
        result["marks"] = start(is_cell)

    def end() -> None:
        result["columns"] = result["marks"].stop()

    notebook.namespace |= {"begin": begin, "end": end}
    notebook.run("def f():\n    begin()\n    alloc()\nf()\nalloc()\nend()")
    joined = Joined(result["columns"], notebook.truth, 0, ())
    assert joined.innermost() == [3, 5]
    assert joined.given(0)[0][1] == 4


def test_two_threads_are_told_apart_or_not_told(notebook: Notebook) -> None:
    notebook.namespace["threading"] = threading
    notebook.run("def work():\n    alloc()\n")
    joined = notebook.measured("alloc()\nt = threading.Thread(target=work)\nt.start(); t.join()\nalloc()")
    assert joined.innermost() == [1, None, 4]
    assert joined.reason(1) == "line unknown: two threads"


def test_a_worker_alone_is_known(notebook: Notebook) -> None:
    gc.collect()  # a former notebook's generators, whose end is an event of this thread
    notebook.run("def work():\n    alloc()\n")
    marks = start(is_cell)
    thread = threading.Thread(target=notebook.namespace["work"])
    thread.start()
    thread.join()
    columns = marks.stop()
    assert columns is not None
    joined = Joined(columns, notebook.truth, 0, ())
    assert joined.innermost() == [2]
    assert set(columns.thread.tolist()) == {notebook.truth.threads[0]}


def test_a_plain_loop_goes_quiet_and_the_next_statement_is_exact(notebook: Notebook) -> None:
    joined = notebook.measured("x = 0\nfor i in range(300_000):\n    x += i\n    if i == 250_000: alloc()\ny = alloc()")
    # 1.2 M events; 8,192 marks are free, and 100,000 a second come on top.
    assert len(joined.marks.place) < 100_000
    assert joined.wrong() == []
    assert joined.innermost()[1] == 5


@pytest.mark.parametrize(
    "source",
    [
        "x = sum(1 for i in range(300_000))",
        "def g():\n    while True: yield\nfor n in range(1):\n    x = list(islice(g(), 300_000))",
        "def g():\n    i = 0\n    while i < 300_000: i += 1; yield i\nfor v in g(): pass",
        "x = list(map(lambda v: v, range(300_000)))",
    ],
)
def test_what_never_comes_to_another_line_goes_quiet_too(notebook: Notebook, source: str) -> None:
    notebook.namespace["islice"] = itertools.islice
    joined = notebook.measured(f"{source}\ny = alloc()")
    assert len(joined.marks.place) < 100_000
    assert joined.wrong() == []
    assert joined.innermost() == [source.count("\n") + 2]


def test_a_flood_that_allocates_on_a_hot_line_says_which_lines(notebook: Notebook) -> None:
    joined = notebook.measured(
        "for i in range(200_000):\n    x = i\n    y = alloc() if i == 150_000 else 0\nz = alloc()"
    )
    assert joined.innermost() == [(1, 3), 4]
    assert (1, 3) in ranges(joined)


def test_a_thread_that_comes_to_lines_that_another_runs_too_often(notebook: Notebook) -> None:
    notebook.run("def f(n, first, at, then):\n    first()\n    for i in range(n):\n        if i == at: then()\n")
    gate = threading.Event()
    other = threading.Thread(target=notebook.namespace["f"], args=(1, gate.wait, 0, notebook.truth.alloc))

    def let_it_go_on() -> None:
        gate.set()
        other.join()

    notebook.namespace |= {"start": other.start, "then": let_it_go_on}
    joined = notebook.measured("start()\nf(200_000, int, 150_000, then)", progress=lambda: 0)
    assert len(joined) == 1
    thread = np.array(notebook.truth.threads)
    joined.lines = attribute(joined.marks, np.array(notebook.truth.time_us), thread=thread)
    assert joined.wrong() == []


def test_lines_that_allocate_stay_exact_however_often_they_run(notebook: Notebook) -> None:
    # 4 lines an allocation and 40,000 lines in all; without the counter the watch would go quiet.
    source = "for i in range(8_000):\n    a = i\n    b = a\n    c = b\n    if i % 2: made()\nalloc()"
    count = [0]

    def made() -> None:
        count[0] += 1

    notebook.namespace["made"] = made
    joined = notebook.measured(source, progress=lambda: count[0])
    assert ranges(joined) == []


def test_recursion_without_end_keeps_few_places(notebook: Notebook) -> None:
    notebook.run(
        "def f(n):\n    if n == 0:\n        return alloc()\n"
        "    a = f(n - 1)\n    b = f(n - 1) if n > 8 else 0\n    return a"
    )
    joined = notebook.measured("f(12)")
    assert joined.wrong() == []
    assert len(joined.marks.places) < 20


def test_the_recursion_limit_is_the_cells_own_affair(notebook: Notebook) -> None:
    source = "def f():\n    f()\ntry:\n    f()\nexcept RecursionError as error:\n    caught = error\nalloc()"
    joined = notebook.measured(source)
    caught = notebook.namespace["caught"]
    assert caught.__context__ is None
    assert {frame.name for frame in traceback.extract_tb(caught.__traceback__)} == {"<module>", "f"}
    assert joined.innermost() == [7]


def test_the_recursion_limit_while_lines_run_too_often_is_the_cells_own_affair_too(notebook: Notebook) -> None:
    source = """
def f():
    f()
for i in range(300_000):
    x = i
    if i == 290_000:
        try:
            f()
        except RecursionError as error:
            caught = error
alloc()"""
    joined = notebook.measured(source)
    assert joined.notes == ()
    assert {frame.name for frame in traceback.extract_tb(notebook.namespace["caught"].__traceback__)} == {
        "<module>",
        "f",
    }
    assert joined.innermost() == [11]


@pytest.mark.parametrize(
    ("earlier", "hot", "later"),
    [
        (
            "def f(x):\n    return alloc() if x is None else x",
            "for i in range(300_000): f(i)",
            "for i in range(3_000):\n    f(None)\n    if i % 100 == 99: look()",
        ),
        (
            "def f(n, x):\n    for i in range(n):\n        yield alloc() if x is None else x",
            "for v in f(300_000, 1): pass",
            "for v in f(3_000, None):\n    if v % 100 == 99: look()",
        ),
    ],
)
def test_beginnings_that_were_not_heard_are_brought_back(
    notebook: Notebook, earlier: str, hot: str, later: str
) -> None:
    notebook.run(earlier)
    marks = start(is_cell, progress=notebook.truth.count)
    seen: list[bool] = []

    def look() -> None:
        infos: list[NotebookCode] = list(marks._codes.values())  # type: ignore[attr-defined]
        seen.append(any(info.deaf for info in infos if info.key[1] == "f"))

    notebook.namespace["look"] = look
    joined = notebook.measured(f"{hot}\nlook()\n{later}\nalloc()", marks=marks)
    # A generator's beginning is brought back with the first line that is heard again.
    assert seen[0] == ("yield" not in earlier)
    assert not all(seen)
    assert joined.wrong() == []
    assert joined.notes == ()
    assert joined.given(len(joined) - 1)[-1][1] == 3 + later.count("\n") + 1


def test_nothing_stays_hooked(notebook: Notebook) -> None:
    mon = monitoring()
    notebook.run("def f():\n    return alloc()")
    before = threading.active_count()
    notebook.measured("for i in range(100_000):\n    x = i\nf()")
    assert [mon.get_tool(tool) for tool in FREE_IDS] == [None, None]
    assert threading.active_count() == before
    mon.use_tool_id(FREE_IDS[0], "test")
    try:
        assert mon.get_events(FREE_IDS[0]) == 0
        assert mon.get_local_events(FREE_IDS[0], notebook.namespace["f"].__code__) == 0
    finally:
        mon.free_tool_id(FREE_IDS[0])


def test_no_free_tool_id_is_said(notebook: Notebook) -> None:
    mon = monitoring()
    for tool in FREE_IDS:
        mon.use_tool_id(tool, f"other {tool}")
    try:
        marks = start(is_cell)
        notebook.run("alloc()", marks)
        assert marks.stop() is None
        assert "other 3 and other 4" in marks.notes[0].text
        assert [mon.get_tool(tool) for tool in FREE_IDS] == ["other 3", "other 4"]
    finally:
        for tool in FREE_IDS:
            mon.free_tool_id(tool)


def test_another_tools_disabled_lines_stay_disabled(notebook: Notebook) -> None:
    mon = monitoring()
    seen: list[int] = []

    def on_line(code: CodeType, line: int) -> object:
        if is_cell(code.co_filename):
            seen.append(line)
        return mon.DISABLE

    mon.use_tool_id(mon.COVERAGE_ID, "coverage")
    mon.register_callback(mon.COVERAGE_ID, mon.events.LINE, on_line)
    mon.set_events(mon.COVERAGE_ID, mon.events.LINE)
    try:
        joined = notebook.measured("for i in range(100_000):\n    x = i\n    if i == 90_000: alloc()\nalloc()")
    finally:
        mon.set_events(mon.COVERAGE_ID, 0)
        mon.register_callback(mon.COVERAGE_ID, mon.events.LINE, None)
        mon.free_tool_id(mon.COVERAGE_ID)
    assert joined.wrong() == []
    # Line 1 begins at two places, before the loop and in it.
    assert sorted(seen) == [1, 1, 2, 3, 4]


def test_a_failing_file_test_becomes_a_note_and_the_cell_goes_on(notebook: Notebook) -> None:
    def broken(filename: str) -> bool:
        raise RuntimeError(f"no idea about {filename[:0]}files")

    marks = start(broken)
    notebook.run("x = alloc()", marks)
    marks.stop()
    assert notebook.namespace["x"] == 1
    assert "RuntimeError: no idea about files" in marks.notes[0].text


def test_overflow_keeps_the_newest_and_says_so(notebook: Notebook) -> None:
    marks = start(is_cell, max_marks=1024)
    notebook.run("alloc()\nfor i in range(1_500):\n    x = i\ny = alloc()", marks)
    columns = marks.stop()
    assert columns is not None
    assert columns.dropped > 1000
    assert len(columns.place) <= 1024 + 256
    joined = Joined(columns, notebook.truth, 0, ())
    assert joined.innermost() == [None, 4]
    assert joined.reason(0) == "line unknown: its line marks were dropped, the newest ones are kept"


def test_a_module_within_another_of_the_same_file_name_is_no_recursion(notebook: Notebook) -> None:
    notebook.namespace["inner"] = compile("x = 1\nalloc()", "<timed exec>", "exec")
    marks = start(is_cell)
    notebook.run("y = 1\nz = 1\nexec(inner)\nalloc()", marks, "<timed exec>")
    columns = marks.stop()
    assert columns is not None
    joined = Joined(columns, notebook.truth, 0, ())
    outer, inner = ("<timed exec>", 3, 3, "<module>"), ("<timed exec>", 2, 2, "<module>")
    assert [joined.given(0), joined.given(1)] == [[outer, inner], [("<timed exec>", 4, 4, "<module>")]]


@pytest.mark.parametrize("dense", [1, store._DENSE])  # numbers too far apart for a table, and near enough
def test_lines_far_down_a_file_are_told(notebook: Notebook, dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_DENSE", dense)
    notebook.run("\n" * 70_000 + "def f():\n    x = alloc()\n    return x\n")
    notebook.run("\n" * 32_766 + "def g():\n    x = f()\n    return alloc()")
    joined = notebook.measured("g()")
    assert joined.inexact() == []
    assert joined.innermost() == [70_002, 32_769]


def test_lines_of_a_cell_that_is_longer_than_a_block_of_numbers_are_told(notebook: Notebook) -> None:
    joined = notebook.measured("alloc()" + "\n" * 70_000 + "alloc()" + "\n" * 140_000 + "def f():\n    alloc()\nf()\n")
    assert joined.inexact() == []
    assert joined.innermost() == [1, 70_001, 210_002]
    assert [line for _, line, _, _ in joined.given(2)] == [210_003, 210_002]


def test_without_room_for_more_functions_the_caller_counts(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_BLOCKS", 3)
    notebook.run("def f():\n    alloc()\n    g()\n    alloc()\ndef g():\n    alloc()\n    return alloc()")
    joined = notebook.measured("f()\nalloc()")
    # One block is "nowhere"; those of the first statement and of f are the last that there is room for.
    assert joined.innermost() == [2, 3, 3, 4, None]
    assert [joined.given(index)[0][1] for index in range(4)] == [1, 1, 1, 1]


def test_a_thread_that_goes_quiet_as_the_watch_ends_costs_no_line(notebook: Notebook) -> None:
    marks: Any = start(is_cell)
    marks._looks = threading.Thread(target=marks._look)  # made, and not started yet
    joined = notebook.measured("x = 1\nalloc()", marks=marks)
    assert joined.notes == ()
    assert joined.innermost() == [2]


def test_stop_twice_gives_the_same(notebook: Notebook) -> None:
    marks = start(is_cell)
    notebook.run("alloc()", marks)
    assert marks.stop() is marks.stop()
