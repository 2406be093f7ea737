"""The map of segments against torch's own counters, at many moments of every recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.allocator.replay import history
from gpumem_magic.analysis import analyse_trace
from gpumem_magic.analysis.segments import NOBODY, SpanKind
from gpumem_magic.trace.model import Action, BlockState
from gpumem_magic.trace.reader import read_trace

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings"
NAMES = sorted(path.name for path in RECORDINGS.glob("*.pickle.xz"))


@pytest.fixture(scope="module")
def devices():
    known = {}

    def load(name):
        if name not in known:
            known[name] = analyse_trace(read_trace(RECORDINGS / name)).devices
        return known[name]

    return load


@pytest.mark.parametrize("name", NAMES)
def test_every_moment_adds_up_to_the_counters(devices, name):
    for device in devices(name):
        memory = device.memory
        past = history(memory.device, memory.settings)
        last = len(memory.device.events) - 1
        for event in np.unique(np.linspace(-1, last, 9).astype(int)).tolist():
            found = memory.at(event).fragmentation()
            assert found.reserved == past.reserved[event + 1]
            assert found.active == past.active[event + 1]
            assert found.requested == past.requested[event + 1]
            assert found.free == found.pinned + found.returnable == found.reserved - found.active
            assert 0 <= found.largest_free <= found.free
            assert 0 <= found.scattered <= 1


@pytest.mark.parametrize("name", NAMES)
def test_the_end_is_the_snapshot_block_by_block(devices, name):
    for device in devices(name):
        memory = device.memory
        state = memory.at(len(memory.device.events) - 1)
        blocks = {
            (segment.address + span.offset, span.size, span.kind)
            for segment in state.segments
            for span in segment.spans
            if span.kind != SpanKind.UNMAPPED
        }
        kinds = {BlockState.ACTIVE_ALLOCATED: SpanKind.LIVE, BlockState.ACTIVE_PENDING_FREE: SpanKind.PENDING}
        assert blocks == {
            (block.address, block.size, kinds[block.state])
            for segment in memory.device.segments
            for block in segment.blocks
            if block.state != BlockState.INACTIVE
        }
        streams = {segment.address: segment.stream for segment in memory.device.segments}
        assert all(segment.stream == streams[segment.address] for segment in state.segments)
        private = {segment.address for segment in memory.device.segments if segment.pool_id != (0, 0)}
        assert {segment.address for segment in state.segments if segment.is_private} == private


@pytest.mark.parametrize("name", NAMES)
def test_what_is_alive_at_the_peak_belongs_to_the_owners_of_the_tables(devices, name):
    for device in devices(name):
        memory, change = device.memory, device.timeline.peak_change
        state = memory.at(int(device.timeline.event[change]) if change >= 0 else -1)
        owned: dict[int, int] = {}
        for segment in state.segments:
            for span in segment.spans:
                if span.kind == SpanKind.LIVE:
                    assert span.group != NOBODY
                    owned[span.group] = owned.get(span.group, 0) + span.requested
        # The tables count what was asked for; rounding and remainders are a row of their own there.
        rows = {row.group: row.bytes for row in device.peak if device.groups[row.group].kind != "rounding"}
        assert owned == rows


def _bursts(memory):
    """Releases of the program, each as (event before, last event)."""
    action = memory.device.events.action
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    edges = np.diff(np.concatenate([[False], released, [False]]).astype(int))
    return [
        (first - 1, last - 1)
        for first, last in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
        if last == len(action) or action[last] not in {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM}
    ]


@pytest.mark.parametrize("name", ["random_mix.c0.pickle.xz", "random_mix.c1.pickle.xz", "fuzz1.c0.pickle.xz"])
def test_returnable_is_what_empty_cache_gave_back(devices, name):
    (device,) = devices(name)
    memory = device.memory
    bursts = _bursts(memory)
    assert bursts
    sizes = memory.device.events.size
    for before, last in bursts:
        given = int(sizes[before + 1 : last + 1].sum())
        assert memory.at(before).fragmentation().returnable == given
        assert memory.at(last).fragmentation().returnable == 0


def test_holes_of_expandable_segments_are_not_memory(devices):
    (device,) = devices("random_mix.c1.pickle.xz")
    memory = device.memory
    for _, last in _bursts(memory):
        state = memory.at(last)
        holes = [s for segment in state.segments for s in segment.spans if s.kind == SpanKind.UNMAPPED]
        if holes:
            break
    assert holes
    assert all(hole.size % (2 << 20) == 0 for hole in holes)
    for segment in state.segments:
        assert segment.is_expandable
        assert sum(size for _, size in segment.gaps()) == segment.free
        unmapped = sum(span.size for span in segment.spans if span.kind == SpanKind.UNMAPPED)
        assert segment.extent == segment.mapped + unmapped


def test_a_time_means_what_the_timeline_shows_then(devices):
    (device,) = devices("load_swap.c0.pickle.xz")
    memory, timeline = device.memory, device.timeline
    for change in range(0, timeline.changes, 17):
        event = memory.event_at(timeline, int(timeline.time_us[change]))
        found = memory.at(event).fragmentation()
        # Several changes may share a microsecond: the last of them counts.
        last = int(np.searchsorted(timeline.time_us, timeline.time_us[change], "right"))
        assert found.active == timeline.allocated[last]
    assert memory.event_at(timeline, device.end_us + 1) == len(memory.device.events) - 1
    assert memory.at(memory.event_at(timeline, device.start_us - 1)).segments == ()
