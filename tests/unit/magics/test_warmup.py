"""Imports beside the user's cells: what fails there is nobody's traceback."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest

from gpumem_magic.magics import warmup


@pytest.mark.parametrize("error", ["AttributeError('versions')", "TypeError()", "ImportError('x')", "UserWarning('x')"])
def test_a_package_that_does_not_fit_is_left_to_the_report(tmp_path, monkeypatch, error):
    (tmp_path / "gpumem_test_broken.py").write_text(f"raise {error}\n", "utf-8")
    (tmp_path / "gpumem_test_fine.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(warmup, "_OWN", ("gpumem_test_broken", "gpumem_test_fine"))
    warmup._import_own()
    assert "gpumem_test_fine" in sys.modules
    monkeypatch.delitem(sys.modules, "gpumem_test_fine")


def test_where_no_thread_can_start_nothing_is_warmed_up(monkeypatch):
    # As Python answers while it ends; a tick that raises would be a traceback in the terminal.
    def refuse(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(warmup, "_asked", False)
    monkeypatch.setattr(warmup, "finished_torch", lambda: sys)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert warmup._begin() is False
    assert not warmup._turn.locked()


def test_ours_are_imported_by_one_thread_at_a_time(monkeypatch):
    # Two at once, and importlib fails one of them in the middle of a package, which then stays broken.
    begun, leave = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert leave.wait(30)

    monkeypatch.setattr(warmup, "_import_own", slow)
    monkeypatch.setattr(warmup, "_asked", False)
    monkeypatch.setattr(warmup, "finished_torch", lambda: sys)
    monkeypatch.setitem(sys.modules, "torch", sys)
    with warmup.own_imports():
        assert warmup._begin() is True  # later, then
        assert not begun.is_set()
    assert warmup._begin() is False
    assert begun.wait(30)
    waits = threading.Thread(target=warmup.no_warm_up)
    waits.start()
    assert waits.is_alive()
    leave.set()
    waits.join(30)
    assert not waits.is_alive()
    assert not warmup._turn.locked()
    # Once the main thread has had its turn, nothing begins.
    monkeypatch.setattr(warmup, "_asked", False)
    warmup.no_warm_up()
    assert warmup._begin() is False
    assert warmup._asked


def test_nothing_is_imported_beside_torchs_own_import(monkeypatch):
    monkeypatch.setattr(warmup, "_asked", False)
    monkeypatch.setattr(warmup, "finished_torch", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert warmup._begin() is True
    assert not warmup._asked


def test_a_fork_waits_for_an_import_of_ours_and_not_for_ever(monkeypatch):
    monkeypatch.setattr(warmup, "_FORK_SECONDS", 0.01)
    lock, holds, leave = warmup._importing, threading.Event(), threading.Event()

    def hold():
        # As an import that waits for a module which the forking thread is in the middle of importing.
        with lock:
            holds.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(30)
    warmup._before_fork()
    warmup._after_fork()
    # In the child, the one that holds it is gone.
    warmup._before_fork()
    monkeypatch.setattr(warmup, "_importing", lock)  # put back at the end
    warmup._after_fork_in_child()
    assert warmup._importing.acquire(blocking=False)
    warmup._importing.release()
    leave.set()
    thread.join()
    warmup._importing = lock
    warmup._before_fork()
    assert warmup._forks.waited
    warmup._after_fork()
    with pytest.raises(RuntimeError):  # it was let go of as often as it was taken
        lock.release()


def test_loading_imports_no_more_than_its_time_allows(tmp_path, monkeypatch):
    names = ["gpumem_test_first", "gpumem_test_second", "gpumem_test_third"]
    for name in names:
        (tmp_path / f"{name}.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(warmup, "_OWN", tuple(names))
    monkeypatch.setattr(warmup, "_asked", False)
    # Each import begins later than the one before it.
    clock = itertools.count(100.01, 0.01)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(warmup, "finished_torch", lambda: None)
    warmup.warm_up_while_loading(100)
    assert not set(names) & set(sys.modules)
    monkeypatch.setattr(warmup, "finished_torch", lambda: sys)
    warmup.warm_up_while_loading(100)
    assert [name in sys.modules for name in names] == [True, True, False]
    assert not warmup._turn.locked()
    for name in names[:2]:
        monkeypatch.delitem(sys.modules, name)
