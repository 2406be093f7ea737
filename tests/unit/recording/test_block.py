"""`gpumem_magic.record` outside a notebook."""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import weakref
from collections import deque

import pytest

import gpumem_magic
from gpumem_magic import blocks as blocks_module
from gpumem_magic._errors import BadUsageError, RecordingError
from gpumem_magic.holders import Bound
from gpumem_magic.recording.ticker import shut_down

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    shut_down()


def test_the_report_is_there_afterwards_and_is_the_last():
    with gpumem_magic.record(label="step") as r:
        assert r.report is None
        kept = torch.empty(1024)
    assert r.report is gpumem_magic.last
    assert r.report.title == "step"
    assert "4.00 KiB" in r.report.sentence
    assert r.report.devices[0].headline.stayed == kept.untyped_storage().nbytes()


def test_an_error_passes_and_is_reported():
    def fail():
        with gpumem_magic.record() as recorded:
            blocks.append(recorded)
            raise ValueError("boom")

    blocks: list[gpumem_magic.record] = []
    with pytest.raises(ValueError, match="boom"):
        fail()
    assert "ValueError" in blocks[0].report.sentence


def test_an_error_that_cannot_be_written_ends_the_recording_all_the_same():
    class BrokenError(Exception):
        def __str__(self):
            raise ValueError("a mistake in the message")

    recorded = gpumem_magic.record()
    with pytest.raises(BrokenError), recorded:
        raise BrokenError
    assert recorded.report is not None
    assert recorded.report.analysis.error == "BrokenError"


@pytest.mark.parametrize("wrong", [{"device": "gpu"}, {"device": 99}, {"stacks": "all"}, {"max_entries": -1}])
def test_bad_usage_is_said_before_anything_runs(wrong):
    with pytest.raises(BadUsageError):
        gpumem_magic.record(**wrong)


def test_a_block_is_used_once():
    block = gpumem_magic.record()
    with block:
        pass
    with pytest.raises(RecordingError, match="make a new one"):
        block.__enter__()


def test_a_block_that_is_never_entered_costs_nothing():
    gpumem_magic.record()
    assert not torch._C._autograd._profiler_enabled()


def test_a_promise_that_could_not_be_checked_is_said(capsys):
    with gpumem_magic.record(assert_no_leak=True):
        kept = torch.empty(3)
    assert len(kept) == 3
    assert capsys.readouterr().err.startswith("gpumem: assert-no-leak had nothing to judge")


def test_what_a_function_keeps_is_named_with_the_function():
    def train():
        with gpumem_magic.record() as recorded:
            losses = [torch.ones(30_000) for _ in range(3)]
        return recorded.report, len(losses)

    report, count = train()
    assert count == 3
    (row,) = report.devices[0].held
    assert row.path.startswith("losses")
    assert row.path.endswith(" in function train")


def test_a_block_that_an_exit_stack_ends_sees_its_function_too():
    def keeps():
        stack = contextlib.ExitStack()
        recorded = stack.enter_context(gpumem_magic.record())
        batch = torch.ones(31_000)
        stack.close()
        return recorded.report, batch

    report, _ = keeps()
    assert [row.path for row in report.devices[0].held] == ["batch in function keeps"]


def test_a_search_for_holders_that_is_cut_is_said(monkeypatch):
    monkeypatch.setattr(blocks_module, "_GLANCE_SECONDS", 0.0)
    with gpumem_magic.record() as recorded:
        kept = torch.ones(30_000)
    assert kept.numel() == 30_000
    (note,) = [note.text for note in recorded.report.analysis.notes if note.text.startswith("who holds what stayed")]
    assert note == "who holds what stayed: stopped after 0 s: holders found so far are right, others may be missing"


def test_containers_with_bounds_are_known_among_a_functions_variables():
    def collect():
        recorded = gpumem_magic.record()
        with recorded:
            replay = deque([torch.ones(30_000)], maxlen=100)
            scan, _ = recorded_holders(recorded, inspect.currentframe())
        return scan.bounds, len(replay)

    def recorded_holders(recorded, frame):
        recorded._names = {**frame.f_globals, **frame.f_locals}
        return recorded._holders(frame)

    assert collect() == ({"replay": Bound(1, 100)}, 1)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="loops of a script are known from Python 3.12 on")
def test_a_buffer_that_fills_up_is_no_leak():
    def collect():
        with gpumem_magic.record(assert_no_leak=True) as recorded:
            replay: deque[object] = deque(maxlen=100)
            for _ in range(8):
                replay.append(torch.ones(30_000))
        return recorded.report, len(replay)

    report, count = collect()
    assert count == 8
    assert report.leaks == ()
    assert report.devices[0].growth is not None
    (filling,) = report.devices[0].growth.small
    assert "fills `replay`" in filling.sentence
    assert "8 of the 100" in filling.sentence


def test_a_block_that_has_ended_keeps_nothing_of_its_function():
    def work():
        with gpumem_magic.record() as recorded:
            batch = torch.ones(30_000)
        return recorded, weakref.ref(batch)

    recorded, witness = work()
    assert recorded.report is not None
    assert witness() is None


@pytest.fixture
def usual_handler():
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def nothing_is_left():
    with gpumem_magic.record() as r:
        kept = torch.empty(1024)
    return r.report.devices[0].headline.stayed == kept.untyped_storage().nbytes()


@pytest.mark.usefixtures("usual_handler")
def test_an_interrupt_as_the_block_ends_leaves_nothing_running():
    class PressingError(Exception):
        def __str__(self):
            signal.raise_signal(signal.SIGINT)
            return "pressed"

    with pytest.raises(KeyboardInterrupt), gpumem_magic.record():
        raise PressingError
    assert not torch._C._autograd._profiler_enabled()
    assert nothing_is_left()


@pytest.mark.usefixtures("usual_handler")
def test_an_interrupt_as_the_block_begins_leaves_nothing_running(monkeypatch):
    storage = torch.UntypedStorage

    def pressing(cls, size):
        signal.raise_signal(signal.SIGINT)
        return storage.__new__(cls, size)

    presses = type("PressingStorage", (storage,), {"__new__": pressing})
    entered = []
    with monkeypatch.context() as patch:
        patch.setattr(torch, "UntypedStorage", presses)
        with pytest.raises(KeyboardInterrupt), gpumem_magic.record():
            entered.append("block")
    assert entered == []
    assert not torch._C._autograd._profiler_enabled()
    assert nothing_is_left()
