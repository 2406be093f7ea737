"""Verdicts in their reports, and over real recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from by_hand.oom import GIB, Heap, cell, full_card, reading, scattered

from gpumem_magic.analysis import analyse_trace
from gpumem_magic.analysis.anonymous import without_source
from gpumem_magic.analysis.oom import Cause, diagnose, parse_message
from gpumem_magic.recording.model import Outcome
from gpumem_magic.report.text import report_text
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("oom_growth", Cause.LIMIT, "it asked for 16.0 MiB"),
        ("oom_fragmented", Cause.FRAGMENTATION, "2.12 GiB free for it, but the largest piece is 30.0 MiB"),
    ],
)
def test_real_recordings(name, cause, words):
    trace = read_trace(DATA / "recordings" / f"{name}.pickle.xz")
    found = analyse_trace(trace, name)
    row = next(
        row for row in json.loads((DATA / "oom" / "messages.json").read_text("utf-8")) if row["recording"] == name
    )
    assert found.oom is not None
    assert found.oom.cause is cause
    assert words in found.sentence
    # The replayed moment is what torch itself said of it, to two decimals.
    message: Any = parse_message(row["message"])
    state: Any = found.oom.evidence.state
    assert message.allocated.low <= state.allocated <= message.allocated.high
    assert message.unallocated.low <= state.reserved - state.allocated <= message.unallocated.high
    assert message.tried.low <= state.segment <= message.tried.high
    assert message.free.low <= state.device_free <= message.free.high


def test_the_setting_that_the_replay_shows_to_fit_is_the_one_that_is_named():
    found = analyse_trace(read_trace(DATA / "recordings" / "oom_fragmented.pickle.xz"), "oom_fragmented").oom
    assert found is not None
    (line,) = [line for line in found.suggestions if "os.environ" in line]
    assert line == (
        'or restart the kernel and begin with `import os; os.environ["PYTORCH_CUDA_ALLOC_CONF"] = '
        '"max_split_size_mb:128"`, before torch is imported: replayed with it, the request fits, with 4.00 GiB of '
        "4.00 GiB reserved"
    )
    assert (
        "(expandable_segments:True is not shown to help: replayed with it, this may or may not have fitted: 3.89 GiB "
        "of 4.00 GiB reserved)"
    ) in found.suggestions
    # The first that fits ends the search, so that the smallest change is named.
    assert [(one.conf, one.fits) for one in found.evidence.tried] == [
        ("expandable_segments:True", None),
        ("max_split_size_mb:128", True),
    ]
    assert found.evidence.retrial is found.evidence.tried[1]


def test_a_verdict_that_fails_takes_no_number_with_it():
    heap = full_card()
    whole, found = cell(heap, after=reading(heap)), cell(heap, after=reading(heap), holders=object())
    assert found.oom is None
    assert [note.text for note in found.notes if "verdict failed" in note.text] == [
        "the out-of-memory verdict failed (AttributeError); the numbers below are not affected"
    ]
    assert [device.headline for device in found.devices] == [device.headline for device in whole.devices]
    assert found.sentence


def test_without_a_failure_there_is_no_verdict():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    found = cell(heap, after=reading(heap), outcome=Outcome.OK, error=None)
    assert found.oom is None
    assert diagnose([], None) is None


def test_the_report_shows_numbers_and_suggestions_under_the_sentence():
    found = scattered()
    lines = report_text(found).splitlines()
    assert lines[1] == "  why: asked for 128 MiB, 128 MiB more than could be had"
    assert "free 768 MiB (releasable 0 B, unreleasable 768 MiB), largest piece for this request 96.0 MiB" in lines[2]
    assert next(line for line in lines if line.startswith("  do: ")).startswith("  do: free the 64.0 MiB")
    texts = [note.text for note in found.verdict_notes]
    assert texts[0] == "Why: asked for 128 MiB, 128 MiB more than could be had"
    assert any(text.startswith("Do 1: free the 64.0 MiB") for text in texts)


def test_a_report_to_share_has_no_source():
    shared = report_text(without_source(scattered()))
    assert "model(a)" not in shared
    assert "torch.empty" not in shared
