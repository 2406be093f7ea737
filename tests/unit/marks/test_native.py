"""What is written in C: the same as in Python, event for event, and nothing kept."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from by_hand.ways import choose_way
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.recording.marks import compiled
from gpumem_magic.recording.marks.call_log import Slow as SlowCalls
from gpumem_magic.recording.marks.call_log import make_call_log
from gpumem_magic.recording.marks.call_tree import Node
from gpumem_magic.recording.marks.stacks import monitoring
from gpumem_magic.recording.marks.tape import Slow, make_tape, read_tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks.tape import Tape

pytestmark = pytest.mark.skipif(compiled.native() is None, reason="the C part was not built here")

FOREVER = 10**15
MINE = [compile("x = 1", f"<cell {number}>", "exec") for number in range(4)]
LIBRARY = compile("x = 1", "library.py", "exec")
CODES = [*MINE, LIBRARY]


class Driven:
    """A tape, and all that it asks for."""

    def __init__(self, way: str, pause: Callable[[int, int], int] = lambda _written, _now: FOREVER) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.codes: dict[int, Any] = {id(code): code for code in MINE}
        # The last is known, and its beginning no longer heard; the one before is not known yet.
        self.numbers = {id(code): -1 - index for index, code in enumerate(MINE[:2])}
        self.resumes = {(id(MINE[0]), 2): 7}
        self.failures: list[BaseException] = []
        asks: dict[str, Any] = {name: self.ask(name) for name in ("line", "start", "resume", "leave", "unwind")}
        slow = Slow(
            **asks,
            hear=self.hear,
            pause=pause,
            alone=lambda act: act(),
            fail=self.failures.append,
        )
        with pytest.MonkeyPatch.context() as patch:
            choose_way(way, patch)
            self.tape: Tape = make_tape(
                threading.get_ident(),
                codes=self.codes,
                numbers=self.numbers,
                resumes=self.resumes,
                files={"library.py": False},
                slow=slow,
            )

    def ask(self, name: str) -> Callable[..., str]:
        def asked(code: CodeType, *rest: Any) -> str:
            frame: FrameType = rest[-1]
            self.asked.append((name, CODES.index(code), *rest[:-1], frame.f_code.co_name))
            return f"{name} answered"

        return asked

    def hear(self, code: CodeType, offset: int | None) -> int | None:
        self.asked.append(("hear", CODES.index(code), offset))
        if code is MINE[3]:
            return None
        number = self.numbers.setdefault(id(code), -1 - CODES.index(code))
        if offset is not None:
            self.resumes[id(code), offset] = 40 + offset
        return number

    def play(self, event: tuple[Any, ...]) -> object:
        """Let an event come."""
        name, code = event[0], CODES[event[1]] if len(event) > 1 else None
        assert code is not None
        if name == "line":
            return self.tape.on_line(code, event[2])
        if name == "start":
            return self.tape.on_start(code, 0)
        if name == "resume":
            return self.tape.on_resume(code, event[2])
        if name == "leave":
            return self.tape.on_leave(code, 0, None)
        if name == "unwind":
            return self.tape.on_unwind(code, 0, KeyError() if event[2] else KeyboardInterrupt())
        self.taken()
        return self.tape.load(tuple(CODES[index] if index < len(MINE) else None for index in event[1:]))

    def taken(self) -> list[int]:
        """Return what is written, without its times."""
        return [int(kind) for kind in read_tape(self.tape.take())[1]]


CODE = st.integers(0, len(CODES) - 1)
EVENTS = st.one_of(
    st.tuples(st.just("line"), CODE, st.integers(1, 99)),
    st.tuples(st.just("start"), CODE),
    st.tuples(st.just("resume"), CODE, st.sampled_from([2, 4])),
    st.tuples(st.just("leave"), CODE),
    st.tuples(st.just("unwind"), CODE, st.just(1)),
    st.builds(lambda stack: ("load", *stack), st.lists(CODE, min_size=1, max_size=4)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_both_write_and_ask_the_same(events: list[tuple[Any, ...]]) -> None:
    python, c = Driven("python"), Driven("c")
    for event in [("load", 0), *events]:
        assert python.play(event) == c.play(event), event
        assert python.asked == c.asked
    assert python.tape.size() == c.tape.size()
    assert python.taken() == c.taken()
    assert python.failures == c.failures == []


def test_what_is_written_lies_in_the_order_of_its_times() -> None:
    driven = Driven("c")
    driven.play(("load", 0))
    for line in range(1, 50_001):
        driven.tape.on_line(MINE[0], line % 97 + 1)
    times, kinds = read_tape(driven.tape.take())
    assert kinds.tolist() == [line % 97 + 1 for line in range(1, 50_001)]
    assert (np.diff(times) >= 0).all()
    assert driven.tape.take() == b""


def test_the_pace_is_asked_in_time_however_fast_lines_run() -> None:
    asked: list[int] = []

    def pause(written: int, _now: int) -> int:
        asked.append(written)
        return FOREVER

    driven = Driven("c", pause)
    driven.play(("load", 0))
    for _ in range(100_000):
        driven.tape.on_line(MINE[0], 1)
    assert max(asked) <= 4_096
    assert sum(asked) <= 100_000


def test_without_leave_from_the_pace_the_line_is_taken_in_full() -> None:
    driven = Driven("c", lambda _written, _now: 0)
    driven.play(("load", 0))
    answers = {driven.tape.on_line(MINE[0], 1) for _ in range(10_000)}
    assert answers == {None, "line answered"}


def test_a_failure_is_told_and_an_interrupt_is_the_cells() -> None:
    broken = ValueError("pace")

    def pause(_written: int, _now: int) -> int:
        raise broken

    driven = Driven("c", pause)
    driven.play(("load", 0))
    for _ in range(10_000):
        driven.tape.on_line(MINE[0], 1)
    assert set(driven.failures) == {broken}

    def fail(error: BaseException) -> None:
        raise KeyboardInterrupt from error

    tape = compiled.native()
    assert tape is not None
    nothing = dict.fromkeys(("line", "start", "resume", "leave", "unwind", "hear"), print)
    stopping = tape.tape(threading.get_ident(), {}, {}, {}, {}, None, **nothing, pause=pause, fail=fail)
    stopping.load((MINE[0],))

    def run() -> None:
        for _ in range(10_000):
            stopping.on_line(MINE[0], 1)

    with pytest.raises(KeyboardInterrupt) as caught:
        run()
    assert caught.value.__cause__ is broken


def test_another_threads_events_are_not_written() -> None:
    driven = Driven("c")
    driven.play(("load", 0))

    def others() -> None:
        driven.play(("line", 0, 3))
        driven.play(("start", 1))
        driven.play(("leave", 0))

    thread = threading.Thread(target=others)
    thread.start()
    thread.join()
    assert driven.taken() == []
    assert [name for name, *_ in driven.asked] == ["line", "start", "leave"]


def test_no_code_is_kept_and_a_cycle_is_collected() -> None:
    code = compile("x = 1", "<cell 9>", "exec")
    driven = Driven("c")
    driven.numbers[id(code)] = -9
    before = sys.getrefcount(code)
    driven.tape.load((code, None, code))
    for _ in range(1_000):
        driven.tape.on_start(code, 0)
    assert sys.getrefcount(code) == before + 1_002
    for _ in range(10):
        driven.tape.on_leave(code, 0, None)
    assert sys.getrefcount(code) == before + 992
    driven.tape.take()
    assert sys.getrefcount(code) == before
    driven.tape.load((code,))
    gone = weakref.ref(driven)
    del driven
    gc.collect()
    assert gone() is None
    assert sys.getrefcount(code) == before


def test_what_is_no_event_is_refused() -> None:
    tape: Any = Driven("c").tape
    for call in (
        lambda: tape.on_line(MINE[0]),
        lambda: tape.on_start(MINE[0]),
        lambda: tape.on_resume(MINE[0], 0, 0),
        lambda: tape.on_leave(MINE[0], 0),
        lambda: tape.on_unwind(MINE[0]),
        lambda: tape.load([MINE[0]]),
    ):
        with pytest.raises(TypeError):
            call()


# Modules

NO_LOOKS = SimpleNamespace(next_ns=1 << 80)


def watch(looks: Any = NO_LOOKS, limit: int = 1_000_000) -> tuple[Any, Node, Node, list[Any]]:
    root = Node(0, None, None, "")
    inner = Node(1, root, MINE[0], "backward")
    root.kin = {id(MINE[0]): inner}
    asked: list[Any] = []

    def ask(name: str) -> Callable[[CodeType, FrameType], None]:
        return lambda code, _frame: asked.append((name, code))

    slow = SlowCalls(*map(ask, SlowCalls._fields))
    log = make_call_log(root, MINE[1], (MINE[0], MINE[1]), looks=looks, slow=slow, limit=limit)
    return log, root, inner, asked


def test_calls_are_written_where_thread_and_node_are_known() -> None:
    log, root, inner, asked = watch()
    ident = threading.get_ident()
    assert log.top(ident) is None
    log.on_begin(MINE[0], 0)
    assert asked == [("begin", MINE[0])]
    log.move(ident, root)
    log.on_begin(MINE[0], 0)
    assert log.top(ident) is inner
    log.on_end(MINE[0], 0, None)
    assert log.top(ident) is root
    log.on_end(MINE[0], 0, None)
    log.on_unwind(LIBRARY, 0, KeyError())
    log.on_unwind(MINE[1], 0, KeyError())
    assert asked[1:] == [("end", MINE[0]), ("unwind", MINE[1])]
    (written,) = log.written()
    assert written.ident == ident
    assert written.number.tolist() == [0, 1, 0]
    assert (np.diff(written.time_ns) >= 0).all()
    assert written.dropped == 0


def test_looks_are_asked_for_when_they_are_due() -> None:
    looks = SimpleNamespace(next_ns=0)
    log, root, _, asked = watch(looks)
    log.move(threading.get_ident(), root)
    log.on_begin(MINE[0], 0)
    assert asked == [("look", MINE[0])]


def test_the_newest_calls_are_kept() -> None:
    log, root, _, _ = watch(limit=10_000)
    log.move(threading.get_ident(), root)
    for _ in range(50_000):
        log.on_begin(MINE[0], 0)
        log.on_end(MINE[0], 0, None)
    (written,) = log.written()
    assert 5_000 <= len(written.number) <= 20_000
    assert written.dropped + len(written.number) == 100_001
    assert written.number.tolist()[-4:] == [1, 0, 1, 0]
    assert (written.number[1:] != written.number[:-1]).all()


def test_a_node_of_another_class_is_refused() -> None:
    log, _, _, _ = watch()
    with pytest.raises(TypeError):
        log.move(threading.get_ident(), object())
    built = compiled.native()
    assert built is not None
    with pytest.raises((TypeError, AttributeError)):
        built.watch(SimpleNamespace(), MINE[0], (), None, print, print, print, print, 1)


def test_other_sources_binary_and_the_switch_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "INTERFACE", 0)
    assert compiled.native() is None
    monkeypatch.undo()
    monkeypatch.setenv(compiled.SWITCH, "1")
    assert compiled.native() is None
    monkeypatch.delenv(compiled.SWITCH)
    assert compiled.native() is not None
    assert monitoring is not None


# What Python does while a slow event waits for it


@pytest.fixture
def tool() -> Iterator[int]:
    monitoring.use_tool_id(3, "test")
    yield 3
    monitoring.set_events(3, 0)
    for event in (monitoring.events.LINE, monitoring.events.PY_START, monitoring.events.PY_RESUME):
        monitoring.register_callback(3, event, None)
    monitoring.free_tool_id(3)


def test_a_watch_that_ends_within_its_own_event_lives_until_that_has_returned(tool: int) -> None:
    alive: list[bool] = []

    def pause(_written: int, _now: int) -> int:
        monitoring.register_callback(tool, monitoring.events.LINE, None)
        held.clear()
        gc.collect()
        alive.append(gone() is not None)
        return FOREVER

    held = [Driven("c", pause)]
    gone = weakref.ref(held[0])
    code = compile("x = 1\n" * 20_000, "<cell 9>", "exec")
    held[0].tape.load((code,))
    monitoring.register_callback(tool, monitoring.events.LINE, held[0].tape.on_line)
    monitoring.set_local_events(tool, code, monitoring.events.LINE)
    exec(code, {})  # noqa: S102 - the test's own code
    monitoring.set_local_events(tool, code, 0)
    assert alive == [True]
    gc.collect()
    assert gone() is None


def test_a_line_that_is_told_anew_while_the_pace_is_asked_is_the_one_that_was_found() -> None:
    def pause(_written: int, _now: int) -> int:
        driven.resumes[id(MINE[0]), 2] = int("987654")
        others.extend(range(100_000, 100_100))  # one of them takes the former one's place in memory
        return FOREVER

    others: list[int] = []
    driven = Driven("c", pause)
    driven.resumes[id(MINE[0]), 2] = int("123456")
    driven.play(("load", 0))
    time.sleep(0.001)  # until the pace is to be asked
    driven.play(("resume", 0, 2))
    assert others
    assert driven.taken() == [-1, 123_456]


HOSTILE = MINE[0].replace(co_filename=type("Name", (str,), {"__hash__": lambda _: 1 // 0})("hostile.py"))


def test_a_name_that_cannot_be_looked_up_becomes_a_note() -> None:
    driven = Driven("c")
    driven.play(("load", 0))
    CODES.append(HOSTILE)
    try:
        answers = [driven.play(event) for event in (("start", 5), ("resume", 5, 2))]
    finally:
        CODES.remove(HOSTILE)
    assert answers == ["start answered", "resume answered"]
    assert [type(error) for error in driven.failures] == [ZeroDivisionError, ZeroDivisionError]


@contextlib.contextmanager
def no_memory() -> Iterator[None]:
    """Have every allocation fail."""
    testcapi = pytest.importorskip("_testcapi")
    testcapi.set_nomemory(0)
    try:
        yield
    finally:
        testcapi.remove_mem_hooks()


def test_without_memory_the_newest_calls_are_kept_and_the_cell_goes_on() -> None:
    log, root, _, asked = watch()
    ident, code = threading.get_ident(), MINE[0]
    for _ in range(4_094):
        log.move(ident, root)
    begin, end = log.on_begin, log.on_end
    begin(code, 0)
    with no_memory():
        end(code, 0, None)
    assert asked == []
    assert log.top(ident) is root
    (written,) = log.written()
    assert (written.dropped, len(written.number)) == (2_048, 2_048)
    assert written.number.tolist()[-3:] == [0, 1, 0]
