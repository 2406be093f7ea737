"""What interrupts, failures and the end of the watch leave of the lines."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from by_hand.ways import WAYS, choose_way
from marked_cells import HAS_FUNCTIONS, Joined, is_cell  # type: ignore[import-not-found]

from gpumem_magic.recording.marks import events, start

if TYPE_CHECKING:
    from marked_cells import Notebook

pytestmark = pytest.mark.skipif(not HAS_FUNCTIONS, reason="needs Python 3.12")


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_way(request.param, monkeypatch)


def test_what_a_signals_handler_raises_in_the_middle_of_our_work_is_the_cells(notebook: Notebook) -> None:
    presses = iter([True])

    def progress() -> int:
        if notebook.namespace.get("armed") and threading.current_thread() is threading.main_thread():
            for _ in presses:
                signal.raise_signal(signal.SIGALRM)
        return 0

    def handler(number: int, frame: object) -> None:
        raise TimeoutError(number, frame is None)

    former = signal.signal(signal.SIGALRM, handler)
    try:
        source = "try:\n    for i in range(100_000):\n        x = i\nexcept TimeoutError:\n    alloc()\nalloc()"
        joined = notebook.measured("armed = True\n" + source, progress=progress)
    finally:
        signal.signal(signal.SIGALRM, former)
    assert joined.notes == ()
    assert joined.inexact() == []
    assert joined.innermost() == [6, 7]


def test_lines_are_unknown_from_where_marking_ended_early(notebook: Notebook) -> None:
    marks = start(is_cell, progress=lambda: 1 // (not notebook.namespace.get("is_late")))
    source = "alloc()\nis_late = True\nfor i in range(100_000):\n    x = i\nalloc()\nalloc()"
    joined = notebook.measured(source, marks=marks)
    assert joined.innermost() == [1, None, None]
    assert len(joined.notes) == 1
    assert "line marks ended early (ZeroDivisionError" in joined.notes[0]


def test_an_ended_watch_goes_without_the_collector(notebook: Notebook) -> None:
    marks = start(is_cell)
    notebook.run("for i in range(50_000):\n    x = i\nalloc()", marks)
    gone = weakref.ref(marks)
    gc.collect()
    gc.disable()
    try:
        marks.stop()
        assert marks.stop() is not None
        del marks
        assert gone() is None
    finally:
        gc.enable()


def test_what_another_thread_sends_into_what_our_work_calls_is_the_cells(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The moment is forced: such an exception comes between any two instructions, those of numpy's Python code too.
    class SentError(Exception):
        pass

    presses = [SentError()]

    def flatnonzero(numbers: Any) -> Any:
        if notebook.namespace.get("armed") and presses:
            exec(compile("raise sent", np.__file__, "exec"), {"sent": presses.pop()})  # noqa: S102
        return np.nonzero(np.ravel(numbers))[0]

    monkeypatch.setattr(events, "np", SimpleNamespace(**{**vars(np), "flatnonzero": flatnonzero}))
    notebook.namespace["SentError"] = SentError
    source = "armed = True\ntry:\n    for i in range(100_000):\n        x = i\nexcept SentError:\n    alloc()\nalloc()"
    joined = notebook.measured(source)
    assert presses == []
    assert joined.notes == ()
    assert joined.innermost() == [6, 7]


def test_an_interrupt_as_the_tape_is_taken_loses_nothing_of_it(notebook: Notebook) -> None:
    class SentError(Exception):
        pass

    send = ctypes.pythonapi.PyThreadState_SetAsyncExc
    here, error = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(SentError)
    # An operator, after which Python does not look for interrupts, as it does after a call.
    sender = type("Sender", (), {"__neg__": staticmethod(partial(send, here, error))})()
    marks: Any = start(is_cell)
    notebook.run("alloc()\nalloc()", marks)
    tape = marks._tape

    def take() -> bytes:
        taken: bytes = tape.take()
        _ = -sender
        return taken

    marks._tape = tape._replace(take=partial(take))  # written in C, as the tape's own may be
    with pytest.raises(SentError):
        marks._settle()
    marks._tape = tape
    columns = marks.stop()
    assert marks.notes == ()
    assert Joined(columns, notebook.truth, 0, ()).innermost() == [1, 2]
