"""`gpumem_magic.record` outside a notebook."""

from __future__ import annotations

import pytest

import gpumem_magic
from gpumem_magic._errors import BadUsageError, RecordingError
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
