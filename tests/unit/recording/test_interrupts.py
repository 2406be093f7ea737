"""The stop button, pressed while hooks are put in or taken out, and when IPython cannot be told of it."""

from __future__ import annotations

import _imp
import importlib
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpumem_magic.recording import interrupts, main_thread
from gpumem_magic.recording.interrupts import free_import_lock, interrupt_between_imports, interrupt_deferred
from gpumem_magic.recording.main_thread import run_on_main_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_however_often_it_is_pressed_the_block_ends_and_one_interrupt_follows() -> None:
    done = []

    @interrupt_deferred()
    def block() -> None:
        press()
        done.append("taken out")
        press()
        done.append("put back")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["taken out", "put back"]
    with pytest.raises(KeyboardInterrupt):  # and the button works as before
        press()


def test_nothing_follows_when_it_was_not_pressed() -> None:
    with interrupt_deferred():
        during = signal.getsignal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert during is not signal.default_int_handler


def test_blocks_within_blocks_wait_for_the_outermost() -> None:
    done = []

    @interrupt_deferred()
    def block() -> None:
        with interrupt_deferred():
            press()
            done.append("inner")
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["inner", "outer"]


def test_a_handler_of_the_users_own_is_called_in_its_place() -> None:
    seen: list[tuple[int, bool]] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append((number, frame is not None)))
    with interrupt_deferred():
        press()
        assert seen == []
    assert seen == [(signal.SIGINT, True)]


def test_a_button_that_does_nothing_still_does_nothing() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_deferred():
        press()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_error_of_the_block_is_told_and_the_button_works_again() -> None:
    @interrupt_deferred()
    def block() -> None:
        press()
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        block()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_have_nothing_to_put_off() -> None:
    seen: list[Any] = []

    def work() -> None:
        with interrupt_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_work_between_two_bytecodes_within_a_block_leaves_the_press_to_it() -> None:
    done = []

    def job() -> None:
        press()
        done.append("job")

    @interrupt_deferred()
    def block() -> None:
        run_on_main_thread(job)
        while not done:
            pass
        done.append("block")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["job", "block"]


def test_a_press_while_another_is_put_off_raises_nothing_into_the_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_off = []

    def press_again() -> None:
        put_off.append("press")
        if len(put_off) == 1:
            press()

    monkeypatch.setattr(main_thread, "press_again", press_again)
    done = []

    def job() -> None:
        press()
        done.append("job")

    run_on_main_thread(job)
    while not done:
        pass
    assert put_off == ["press", "press"]
    assert "ignored" not in capsys.readouterr().err


# Pressing again: in a process whose main module is a notebook's namespace, as in a kernel.
_PRELUDE = """
import sys, time, types
notebook = sys.modules["__main__"] = types.ModuleType("__main__")
from gpumem_magic.recording import interrupts, ticker
def cell(text):
    exec(compile(text, "<cell>", "exec"), vars(notebook))
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_press_comes_once_the_users_code_runs_and_ends_what_it_waits_for() -> None:
    told = output_of(
        """
interrupts.press_again()
time.sleep(0.3)
print("IPython goes on to the cell")
try:
    cell("import time; time.sleep(100); print('the cell was not stopped')")
except KeyboardInterrupt:
    print("stopped")
time.sleep(0.1)
print("once")
"""
    )
    assert told.splitlines() == ["IPython goes on to the cell", "stopped", "once"]


def test_a_cell_that_is_over_is_not_stopped_nor_the_next_one() -> None:
    told = output_of(
        """
interrupts._MOST_LOOKS = 2
made = []
interrupts.call_every = lambda *arguments, **more: made.append(ticker.call_every(*arguments, **more))
interrupts.press_again()
while not made[0].cancelled:
    time.sleep(0.01)
cell("import time; time.sleep(0.2); print('the next cell ran')")
"""
    )
    assert told.splitlines() == ["the next cell ran"]


def test_a_press_is_taken_back_when_its_cell_has_ended() -> None:
    told = output_of(
        """
interrupts.press_again()
interrupts.press_again()
print(interrupts.take_press_back(), interrupts.take_press_back())
cell("import time; time.sleep(0.2); print('the next cell ran')")
"""
    )
    assert told.splitlines() == ["True False", "the next cell ran"]


def test_two_presses_that_could_not_be_told_stop_a_cell_once() -> None:
    told = output_of(
        """
interrupts.press_again()
interrupts.press_again()
try:
    cell("import time; time.sleep(100)")
except KeyboardInterrupt:
    print("stopped")
cell("import time; time.sleep(0.2); print('once')")
print(interrupts.take_press_back())
"""
    )
    assert told.splitlines() == ["stopped", "once", "False"]


def test_an_interrupt_waits_for_the_end_of_an_import_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slowly_imported.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nsignal.raise_signal(signal.SIGINT)\nIS_WHOLE = True\n",
        "ascii",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    done = []

    @interrupt_between_imports()
    def block() -> None:
        done.append(importlib.import_module("slowly_imported").IS_WHOLE)
        while True:  # as a report that takes its time
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_of_the_last_import_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_last.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n", "ascii")
    monkeypatch.syspath_prepend(str(tmp_path))

    @interrupt_between_imports()
    def block() -> None:
        importlib.import_module("imported_last")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert "imported_last" in sys.modules


def test_an_interrupt_outside_of_imports_comes_at_once() -> None:
    done = []

    @interrupt_between_imports()
    def block() -> None:
        press()
        done.append("later")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_press_of_a_cell_that_was_stopped_is_dropped_and_a_later_one_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = []
    monkeypatch.setattr(interrupts, "_SAME_PRESS_SECONDS", 60.0)
    with interrupt_between_imports(once_more=True):
        press()
        done.append("report")
    assert done == ["report"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(interrupts, "_SAME_PRESS_SECONDS", 0.0)

    @interrupt_between_imports(once_more=True)
    def block() -> None:
        press()
        done.append("later")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["report"]


def test_a_second_press_that_was_held_back_for_long_is_still_the_same_press(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    done = []
    with interrupt_between_imports(once_more=True):
        with interrupt_deferred():
            press()  # at once
            now[0] += 60.0
        done.append("report")
    assert done == ["report"]

    @interrupt_between_imports(once_more=True)
    def block() -> None:
        with interrupt_deferred():
            now[0] += 60.0
            press()  # a minute later
        done.append("later")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["report"]


def test_importlibs_lock_is_given_back_where_an_interrupt_left_it_taken() -> None:
    _imp.acquire_lock()
    _imp.acquire_lock()
    free_import_lock()
    assert not _imp.lock_held()


def test_importlibs_lock_is_left_to_the_thread_that_took_it() -> None:
    is_taken, may_go = threading.Event(), threading.Event()

    def import_something() -> None:
        _imp.acquire_lock()
        is_taken.set()
        may_go.wait()
        _imp.release_lock()

    thread = threading.Thread(target=import_something)
    thread.start()
    is_taken.wait()
    free_import_lock()
    still = _imp.lock_held()
    may_go.set()
    thread.join()
    assert still
