"""Small recordings written by hand, one rule or one defect each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.allocator.replay import history
from gpumem_magic.allocator.retries import count_retries
from gpumem_magic.trace.convert import from_snapshot

MIB = 2**20
BASE = 0x7F00_0000_0000


def event(action, addr=0, size=0, **more):
    return {"action": action, "addr": BASE + addr, "size": size, "stream": 0, "time_us": 1, **more}


def free(addr, size):
    return [event("free_requested", addr, size), event("free_completed", addr, size)]


def segment(addr, *blocks, **more):
    """Blocks are (size, requested) of what is in use, (size,) of what is not."""
    cursor, listed = BASE + addr, []
    for size, *requested in blocks:
        state = "active_allocated" if requested else "inactive"
        listed.append({"address": cursor, "size": size, "requested_size": sum(requested), "state": state})
        cursor += size
    return {"device": 0, "address": BASE + addr, "total_size": cursor - BASE - addr, "blocks": listed, **more}


def replay(events, *segments, **settings):
    snapshot = {"segments": list(segments), "device_traces": [events], "allocator_settings": settings}
    trace = from_snapshot(snapshot)
    return history(trace.devices[0], trace.settings)


def test_an_unsplit_remainder_belongs_to_the_block():
    # 19.5 MiB of a 20 MiB segment: half a MiB is never split off in the large pool.
    size = 19 * MIB + MIB // 2
    replayed = replay([event("segment_alloc", 0, 20 * MIB), event("alloc", 0, size)], segment(0, (20 * MIB, size)))
    assert replayed.exact
    assert replayed.allocated.tolist() == [0, 0, 20 * MIB]
    assert replayed.requested.tolist() == [0, 0, size]


def test_more_than_a_mib_is_split_off_and_can_be_taken():
    first, second = 18 * MIB, MIB + 512
    replayed = replay(
        [event("segment_alloc", 0, 20 * MIB), event("alloc", 0, first), event("alloc", first, second)],
        segment(0, (first, first), (2 * MIB, second)),
    )
    assert replayed.exact
    assert replayed.allocated.tolist() == [0, 0, 18 * MIB, 20 * MIB]


def test_segments_side_by_side_never_merge():
    events = [event("segment_alloc", 0, 2 * MIB), event("segment_alloc", 2 * MIB, 2 * MIB)]
    events += [event("alloc", 0, MIB), event("alloc", 2 * MIB, MIB), *free(0, MIB), *free(2 * MIB, MIB)]
    events += [event("segment_free", 0, 2 * MIB), event("segment_free", 2 * MIB, 2 * MIB)]
    replayed = replay(events)
    assert replayed.exact
    assert replayed.reserved.tolist() == [0, *[2 * MIB], *[4 * MIB] * 7, 2 * MIB, 0]


def test_a_free_that_waits_for_a_stream_is_active_and_not_allocated():
    events = [event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 100), event("free_requested", 0, 100)]
    events += [event("alloc", 512, 200), event("free_completed", 0, 100)]
    replayed = replay(events, segment(0, (512,), (512, 200), (2 * MIB - 1024,)))
    assert replayed.exact
    assert replayed.allocated.tolist() == [0, 0, 512, 0, 512, 512]
    assert replayed.active.tolist() == [0, 0, 512, 512, 1024, 512]
    assert replayed.requested.tolist() == [0, 0, 100, 100, 300, 200]
    assert replayed.lifetimes.free_event.tolist() == [2, -1]
    assert replayed.lifetimes.release_event.tolist() == [4, -1]


def test_a_free_in_two_halves_around_another_event():
    events = [event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 100), event("free_requested", 0, 100)]
    events += [event("snapshot"), event("free_completed", 0, 100)]
    replayed = replay(events, segment(0, (2 * MIB,)))
    assert replayed.exact
    assert replayed.lifetimes.release_event.tolist() == [4]


def test_pages_of_an_expandable_segment_merge_and_go():
    page = 20 * MIB
    events = [event("segment_map", 0, page), event("segment_map", page, page), event("alloc", 0, 30 * MIB)]
    events += [*free(0, 30 * MIB), event("segment_unmap", page, page), event("alloc", 0, 20 * MIB)]
    replayed = replay(events, segment(0, (20 * MIB, 20 * MIB), is_expandable=True), expandable_segments=True)
    assert replayed.exact
    assert replayed.reserved.tolist() == [0, page, 2 * page, 2 * page, 2 * page, 2 * page, page, page]
    # Nothing is kept unsplit in an expandable segment.
    assert replayed.allocated.tolist() == [0, 0, 0, 30 * MIB, 0, 0, 0, 20 * MIB]


def test_what_was_there_before_and_stays():
    events = [event("alloc", 1024, 100)]
    replayed = replay(events, segment(0, (1024, 700), (512, 100), (2 * MIB - 1536,)))
    assert replayed.exact
    assert replayed.allocated.tolist() == [1024, 1536]
    assert replayed.requested.tolist() == [700, 800]
    assert replayed.reserved.tolist() == [2 * MIB, 2 * MIB]
    assert replayed.lifetimes.alloc_event.tolist() == [-1, 0]


def test_what_was_there_before_and_goes():
    # Before: 3 MiB in use followed by half a MiB that was never split off, and 2 MiB in use.
    first, second = 3 * MIB, 2 * MIB
    events = [*free(0, first), *free(first + MIB // 2, second)]
    replayed = replay(events, segment(0, (5 * MIB + MIB // 2,)))
    assert replayed.exact
    assert replayed.allocated.tolist() == [5 * MIB + MIB // 2, 2 * MIB, 2 * MIB, 0, 0]


def test_a_size_that_cannot_be_known_is_said_and_corrected_by_what_follows():
    # A block of 3 MiB, gone at the end, with 17 MiB behind it: did it own part of them?
    vague = replay(free(0, 3 * MIB), segment(0, (20 * MIB,)))
    assert vague.allocated.tolist() == [3 * MIB, 0, 0]
    assert not vague.exact
    assert vague.warnings == (vague.doubt,)
    assert "1 block was there before the first event and is gone at the end; its size is known to within" in vague.doubt
    confirmed = vague.confirmed()
    assert confirmed.exact
    assert confirmed.warnings == ()
    assert confirmed.allocated.tolist() == [3 * MIB, 0, 0]
    # An allocation half a MiB behind its request shows that it did.
    clear = replay(
        [event("alloc", 3 * MIB + MIB // 2, 4 * MIB), *free(0, 3 * MIB)],
        segment(0, (3 * MIB + MIB // 2,), (4 * MIB, 4 * MIB), (12 * MIB + MIB // 2,)),
    )
    assert clear.exact
    assert clear.allocated[0] == 3 * MIB + MIB // 2


def test_a_recording_that_begins_between_the_halves_of_a_free():
    replayed = replay([event("free_completed", 0, 100)], segment(0, (2 * MIB,)))
    assert replayed.exact
    assert replayed.allocated.tolist() == [0, 0]
    assert replayed.active.tolist() == [512, 0]
    assert replayed.lifetimes.free_event.tolist() == [-2]


def test_skipped_requests_leave_the_completions():
    events = [event("segment_alloc", 0, 2 * MIB)]
    events += [event("alloc", 512 * n, 512) for n in range(4)]
    events += [event("free_completed", 512 * n, 512) for n in range(4)]
    replayed = replay(events, segment(0, (2 * MIB,)))
    assert replayed.exact
    assert replayed.allocated.tolist() == replayed.active.tolist() == [0, 0, 512, 1024, 1536, 2048, 1536, 1024, 512, 0]


def test_skipped_segment_events_leave_the_rounded_requests():
    events = [event("alloc", 0, 100), *free(0, 100), event("alloc", 0, 600)]
    replayed = replay(events, segment(0, (1024, 600), (2 * MIB - 1024,)))
    assert replayed.allocated.tolist() == [0, 512, 0, 0, 1024]
    assert replayed.reserved.tolist() == [2 * MIB] * 5


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (free(0, 100), "a free of nothing"),
        ([event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 1), event("alloc", 0, 1)], "over a block in use"),
        ([event("segment_alloc", 0, 2 * MIB), event("alloc", 512, 1)], "a block at"),
        ([event("alloc", 0, 1)], "an allocation there"),
        ([event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 1), event("segment_free", 0, 2 * MIB)], "its release"),
        ([event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 1)], "not in the snapshot"),
    ],
)
def test_contradictions_are_named_and_the_end_is_the_snapshots(events, words):
    # Nothing is reserved at the end, whatever the events say.
    trace = from_snapshot({"segments": [], "device_traces": [events]})
    device = trace.devices[0]
    if words == "a free of nothing":
        device = replace(device, has_snapshot=True)
        events = [event("segment_alloc", 0, 2 * MIB), event("segment_free", 0, 2 * MIB), event("alloc", 0, 1)]
        trace = from_snapshot({"segments": [], "device_traces": [[*events, *free(0, 1), *free(0, 1)]]})
        device = trace.devices[0]
    replayed = history(device, trace.settings)
    assert not replayed.exact
    (line,) = replayed.warnings
    assert "contradicts itself" in line
    if words not in {"its release", "not in the snapshot", "a free of nothing"}:
        assert words in line
    assert replayed.allocated[-1] == replayed.active[-1] == replayed.reserved[-1] == 0


def test_blocks_that_appear_only_in_the_final_state_are_counted_at_the_end():
    replayed = replay([event("segment_alloc", 0, 2 * MIB), *free(0, 4)], segment(0, (512, 300), (2 * MIB - 512,)))
    assert replayed.allocated[-1] == 512
    assert not replayed.exact


def test_no_events_and_one_event():
    nothing = replay([], segment(0, (512, 300), (2 * MIB - 512,)))
    assert nothing.allocated.tolist() == [512]
    one = replay([event("segment_alloc", 0, 2 * MIB)], segment(0, (2 * MIB,)))
    assert one.reserved.tolist() == [0, 2 * MIB]
    assert one.exact
    assert len(one.lifetimes) == 0


def test_cpu_blocks_are_as_large_as_recorded():
    events = [event("alloc", 0, 100), event("alloc", 64, 7), event("free_completed", 0, 100), event("alloc", 0, 5)]
    trace = from_snapshot({"segments": [], "device_traces": [events]})
    device = replace(trace.devices[0], kind="cpu", has_snapshot=False)
    replayed = history(device, {})
    assert replayed.exact
    assert replayed.allocated.tolist() == replayed.requested.tolist() == [0, 100, 107, 7, 12]
    assert not replayed.reserved.any()
    assert replayed.lifetimes.release_event.tolist() == [2, -1, -1]


def frames(name):
    return {"frames": [{"filename": "a.py", "line": 1, "name": name}]}


@pytest.mark.parametrize(
    ("release", "request_", "retries"),
    [
        (frames("train"), frames("train"), 1),
        (frames("empty_cache"), frames("train"), 0),
        ({}, {}, None),
    ],
)
def test_a_retry_is_told_from_empty_cache_by_the_stack(release, request_, retries):
    events = [event("segment_alloc", 0, 20 * MIB), event("segment_free", 0, 20 * MIB, **release)]
    events += [event("segment_alloc", 0, 40 * MIB, **request_), event("alloc", 0, 40 * MIB, **request_)]
    trace = from_snapshot({"segments": [segment(0, (40 * MIB, 40 * MIB))], "device_traces": [events]})
    device = trace.devices[0]
    assert count_retries(device, history(device, {}), trace.stacks) == retries


def test_a_release_far_below_the_highest_reserved_was_no_retry():
    events = [event("segment_alloc", 0, 200 * MIB), event("segment_free", 0, 200 * MIB), event("snapshot")]
    events += [
        event("segment_alloc", 0, 20 * MIB),
        event("segment_free", 0, 20 * MIB),
        event("segment_alloc", 0, 40 * MIB),
    ]
    trace = from_snapshot({"segments": [segment(0, (40 * MIB,))], "device_traces": [events]})
    device = trace.devices[0]
    assert count_retries(device, history(device, {}), trace.stacks) == 0


def test_every_failed_request_was_retried():
    oom = {"action": "oom", "device_free": 0, "size": 512, "stream": 0, "time_us": 1}
    trace = from_snapshot({"segments": [], "device_traces": [[oom, oom]]})
    device = trace.devices[0]
    assert count_retries(device, history(device, {}), trace.stacks) == 2
