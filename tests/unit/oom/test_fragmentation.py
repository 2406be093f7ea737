"""Free memory that does not fit: what pins it, and the settings against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from by_hand.oom import GIB, MIB, Heap, cell, reading, scattered

from gpumem_magic.analysis.oom import Cause
from gpumem_magic.analysis.oom.cures import suggestions
from gpumem_magic.analysis.oom.evidence import Evidence
from gpumem_magic.analysis.oom.retrial import retry_in
from gpumem_magic.analysis.oom.settings import settings_state
from gpumem_magic.recording.model import Failure
from gpumem_magic.trace.model import Action
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"


def test_fragmentation_has_three_numbers_and_what_pins():
    found = scattered()
    state = found.oom.evidence.state
    assert found.oom.cause is Cause.FRAGMENTATION
    assert (state.free, state.releasable, state.unreleasable) == (768 * MIB, 0, 768 * MIB)
    assert (state.usable, state.largest) == (768 * MIB, 96 * MIB)
    assert [(pin.size, pin.used, pin.blocks, pin.group.line) for pin in state.pins] == [(256 * MIB, 64 * MIB, 1, 3)] * 4
    assert found.oom.sentence == (
        "Out of memory at line 4 `c = torch.empty(n)`: it asked for 128 MiB; torch holds 768 MiB free for it, but the "
        "largest piece is 96.0 MiB; a segment of 256 MiB is pinned by 1 block (64.0 MiB) of line 3 `b = model(a)`."
    )
    assert found.oom.suggestions[0].startswith("free the 64.0 MiB of line 3 `b = model(a)` before this line")
    advice = found.oom.suggestions[1]
    assert 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"' in advice
    # Replayed, not believed; this recording has no event for its segments, so the model cannot repeat it.
    told = (
        "replayed with it, the request fits, with 480 MiB of 1.00 GiB reserved (an estimate: the model does not repeat"
    )
    assert told in advice


def test_a_setting_that_would_not_have_helped_is_not_recommended():
    # In every page of 20 MiB something stays, so that growing segments give nothing back either.
    heap = Heap()
    heap.segment(1 << 40, 1000 * MIB)
    for number in range(100):
        heap.alloc((1 << 40) + number * 10 * MIB, 10 * MIB, 2 + number % 2)
    for number in range(0, 100, 2):
        heap.free((1 << 40) + number * 10 * MIB)
    heap.oom(64 * MIB, 70 * GIB)
    found = cell(heap, after=reading(heap, limit=1010 * MIB))
    assert found.oom.cause is Cause.FRAGMENTATION
    assert not any("os.environ" in line for line in found.oom.suggestions)
    (line,) = [line for line in found.oom.suggestions if line.startswith("segments that grow")]
    assert line.startswith(
        "segments that grow (expandable_segments:True) would not have helped: replayed with it, the program still asks "
        "for more than 0.99 GiB"
    )
    # Under torch's defaults the model would have served this hand-made heap: what it says of others proves nothing.
    assert [one.conf for one in found.oom.evidence.tried] == ["expandable_segments:True"]


def test_where_no_setting_is_shown_to_fit_that_is_said():
    # What stays is large, and live memory and the request together pass the limit: no arrangement has room.
    trace = read_trace(DATA / "oom_fragmented.pickle.xz")
    event = int(np.flatnonzero(trace.devices[0].events.action == Action.OOM)[-1])
    confs = ["expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:4"]
    tried = retry_in(trace)("cuda:0", event, 3 * GIB, collects=True, confs=confs)
    # The third reaches no block of this program, so that it is torch's default.
    assert [(one.conf, one.fits) for one in tried] == [(confs[0], None), (confs[1], None), (confs[3], None)]
    settings = settings_state({"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}, {}, "2.11.0")
    failed = [replace(one, fits=False) for one in tried]
    for known, words in (
        (tried, "before torch is imported: replayed with it, this may or may not have fitted"),
        (failed, "segments that grow (expandable_segments:True) would not have helped: replayed with it"),
    ):
        evidence = Evidence("cuda:0", "cuda", "allocator", settings=settings, retrial=known[0], tried=tuple(known))
        lines = suggestions(Cause.FRAGMENTATION, evidence)
        assert any(words in line for line in lines), lines
        assert f"(no other setting that was replayed is shown to fit: {confs[1]}; {confs[3]})" in lines


def test_settings_that_are_tried_keep_what_somebody_has_chosen():
    conf = "max_split_size_mb:64,garbage_collection_threshold:0.8"
    found = settings_state({"PYTORCH_CUDA_ALLOC_CONF": conf, "expandable_segments": False}, {}, "2.11.0")
    assert found.merged == "expandable_segments:True,garbage_collection_threshold:0.8"
    assert found.alternatives == (
        "roundup_power2_divisions:4,max_split_size_mb:64,garbage_collection_threshold:0.8",
        "expandable_segments:True,roundup_power2_divisions:4,garbage_collection_threshold:0.8",
    )
    plain = settings_state({"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}, {}, "2.11.0")
    # One option before two.
    assert [text.count(",") for text in plain.alternatives] == [0, 0, 0, 0, 1]


def test_expandable_segments_are_not_recommended_where_they_are_on():
    found = scattered({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": True})
    assert not any("os.environ" in line for line in found.oom.suggestions)


@pytest.mark.parametrize(("stream", "pool", "words"), [(7, (0, 0), "other streams"), (0, (0, 5), "private pools")])
def test_free_memory_where_the_request_may_not_go(stream, pool, words):
    heap = Heap()
    heap.segment(1 << 40, 512 * MIB, stream, pool)
    heap.alloc(1 << 40, 16 * MIB, 2, stream)
    heap.oom(256 * MIB, 70 * GIB)
    found = cell(heap, after=reading(heap, limit=600 * MIB))
    assert found.oom.cause is Cause.FRAGMENTATION
    assert words in found.oom.sentence
    assert not any("expandable" in line for line in found.oom.suggestions)


def test_a_setting_that_came_too_late():
    failure = Failure("", environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, torch_version="2.11.0")
    found = scattered(failure=failure)
    assert found.oom.cause is Cause.SETTING
    assert "PYTORCH_CUDA_ALLOC_CONF was set after torch first used the GPU" in found.oom.sentence
    assert found.oom.suggestions[0].startswith("restart the kernel")
    unsupported = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False}
    assert "this build or platform does not support it" in scattered(unsupported, failure).oom.sentence


def test_other_settings_are_kept_in_what_is_recommended():
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8,max_split_size_mb:128"}
    text = next(
        line for line in scattered(conf | {"expandable_segments": False}).oom.suggestions if "os.environ" in line
    )
    assert '"expandable_segments:True,garbage_collection_threshold:0.8"' in text
