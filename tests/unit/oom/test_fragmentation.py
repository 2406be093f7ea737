"""Free memory that does not fit: what pins it, and the settings against it."""

from __future__ import annotations

import pytest
from by_hand.oom import GIB, MIB, Heap, cell, reading, scattered

from gpumem_magic.analysis.oom import Cause
from gpumem_magic.recording.model import Failure


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
