"""Replay against an allocator written as plainly as possible: lists, no cleverness, its own counters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.allocator.addresses import BumpUp
from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.replay import history
from gpumem_magic.allocator.settings_model import AllocatorSettings, from_torch
from gpumem_magic.trace.convert import from_snapshot

MIB = 2**20


@dataclass
class Block:
    start: int
    size: int
    segment: int
    stream: int
    small: bool
    state: str = "inactive"
    requested: int = 0


@dataclass
class Naive:
    """torch's allocator on lists of blocks. `divisions` for all sizes alike; `max_split` in bytes or 0."""

    divisions: int = 0
    max_split: int = 0
    expandable: bool = False
    blocks: list[Block] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)
    counters: list[tuple[int, int, int, int]] = field(default_factory=list)
    cursor: int = 0x7F00_0000_0000

    def settings(self):
        return {
            "max_split_size": self.max_split or -1,
            "expandable_segments": self.expandable,
            "roundup_power2_divisions": {str(2**power): self.divisions for power in range(16)},
        }

    def event(self, action, addr, size, stream):
        self.events.append(
            {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1000 + len(self.events)}
        )
        allocated = sum(b.size for b in self.blocks if b.state == "active_allocated")
        active = sum(b.size for b in self.blocks if b.state != "inactive")
        requested = sum(b.requested for b in self.blocks if b.state != "inactive")
        self.counters.append((allocated, active, requested, sum(b.size for b in self.blocks)))

    def round(self, size):
        if self.divisions > 1 and size > 512 * self.divisions:
            step = 2 ** (size.bit_length() - 1) // self.divisions
            return size if size & (size - 1) == 0 else -(-size // step) * step
        return max(512, -(-size // 512) * 512)

    def fits(self, block, size):
        if block.state != "inactive" or block.size < size:
            return False
        if self.max_split and not block.small:
            if size < self.max_split <= block.size:
                return False
            if size >= self.max_split and block.size >= size + 20 * MIB:
                return False
        return True

    def alloc(self, requested, stream):
        size = self.round(requested)
        small = size <= MIB
        pool = [b for b in self.blocks if b.small == small and b.stream == stream and self.fits(b, size)]
        if not pool:
            pool = [self.grow(size, stream, small=small)]
        block = min(pool, key=lambda b: (b.size, b.start))
        rest = block.size - size
        splits = (
            rest >= 512 if small or self.expandable else rest > MIB and (not self.max_split or size < self.max_split)
        )
        if splits:
            block.size = size
            self.blocks.append(Block(block.start + size, rest, block.segment, stream, small))
        block.state, block.requested = "active_allocated", requested
        self.event("alloc", block.start, requested, stream)

    def grow(self, size, stream, *, small):
        need = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.expandable:
            need = -(-size // (2 * MIB if small else 20 * MIB)) * (2 * MIB if small else 20 * MIB)
        # Neighbours in the address space, as the driver places them; blocks of two segments must not merge.
        block = Block(self.cursor, need, self.cursor, stream, small)
        self.cursor += need + (64 * MIB if self.expandable else 0)
        self.blocks.append(block)
        self.event("segment_map" if self.expandable else "segment_alloc", block.start, need, stream)
        return block

    def free(self, block, *, later):
        block.state = "active_pending_free"
        self.event("free_requested", block.start, block.requested, block.stream)
        if not later:
            self.complete(block)

    def complete(self, block):
        start, requested = block.start, block.requested
        block.state, block.requested = "inactive", 0
        self.merge()
        self.event("free_completed", start, requested, block.stream)

    def merge(self):
        self.blocks.sort(key=lambda b: b.start)
        merged: list[Block] = []
        for block in self.blocks:
            last = merged[-1] if merged else None
            if last and last.segment == block.segment and last.state == block.state == "inactive":
                last.size += block.size
            else:
                merged.append(block)
        self.blocks = merged

    def empty_cache(self):
        # torch waits for the other streams first.
        for block in [b for b in self.blocks if b.state == "active_pending_free"]:
            self.complete(block)
        for segment in sorted({b.segment for b in self.blocks}):
            inside = [b for b in self.blocks if b.segment == segment]
            if len(inside) == 1 and inside[0].state == "inactive":
                self.blocks.remove(inside[0])
                action = "segment_unmap" if self.expandable else "segment_free"
                self.event(action, segment, inside[0].size, inside[0].stream)

    def snapshot(self, drop=0):
        self.blocks.sort(key=lambda b: b.start)
        segments = []
        for segment in sorted({b.segment for b in self.blocks}):
            inside = [b for b in self.blocks if b.segment == segment]
            segments.append(
                {
                    "device": 0,
                    "address": segment,
                    "total_size": sum(b.size for b in inside),
                    "stream": inside[0].stream,
                    "segment_type": "small" if inside[0].small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": self.expandable,
                    "blocks": [
                        {"address": b.start, "size": b.size, "requested_size": b.requested, "state": b.state}
                        for b in inside
                    ],
                }
            )
        return {"segments": segments, "device_traces": [self.events[drop:]], "allocator_settings": self.settings()}


SIZES = st.one_of(
    st.integers(1, 4 * 1024),
    st.integers(1, 2 * MIB),
    st.integers(MIB - 1024, 24 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 20 * MIB, 32 * MIB]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.booleans()),
        st.tuples(st.just("complete"), st.integers(0, 10**6), st.none()),
        st.tuples(st.just("empty"), st.none(), st.none()),
    ),
    min_size=1,
    max_size=120,
)
ALLOCATORS = st.builds(
    Naive,
    divisions=st.sampled_from([0, 4, 8]),
    max_split=st.sampled_from([0, 20 * MIB, 32 * MIB]),
    expandable=st.booleans(),
)


def play(allocator, steps):
    for name, value, extra in steps:
        live = [b for b in allocator.blocks if b.state == "active_allocated"]
        pending = [b for b in allocator.blocks if b.state == "active_pending_free"]
        if name == "alloc":
            allocator.alloc(value, extra)
        elif name == "free" and live:
            allocator.free(live[value % len(live)], later=extra)
        elif name == "complete" and pending:
            allocator.complete(pending[value % len(pending)])
        elif name == "empty":
            allocator.empty_cache()


def columns(replayed):
    return np.stack([replayed.allocated, replayed.active, replayed.requested, replayed.reserved], axis=1)


@settings(deadline=None, max_examples=150)
@given(ALLOCATORS, STEPS)
def test_counters_after_every_event(allocator, steps):
    play(allocator, steps)
    trace = from_snapshot(allocator.snapshot())
    if not trace.devices:
        assert allocator.events == []
        return
    replayed = history(trace.devices[0], trace.settings)
    assert replayed.exact, replayed.first_deviation
    assert columns(replayed)[1:].tolist() == [list(counters) for counters in allocator.counters]
    assert columns(replayed)[0].tolist() == [0, 0, 0, 0]


@settings(deadline=None, max_examples=150)
@given(ALLOCATORS, STEPS, st.integers(0, 10**6))
def test_a_recording_that_begins_late_ends_right(allocator, steps, where):
    play(allocator, steps)
    drop = where % (len(allocator.events) + 1)
    trace = from_snapshot(allocator.snapshot(drop))
    if not trace.devices:
        return
    replayed = history(trace.devices[0], trace.settings)
    assert replayed.first_deviation is None
    expected = np.array([(0, 0, 0, 0), *allocator.counters])[drop:]
    got = columns(replayed)
    assert got[-1].tolist() == expected[-1].tolist()
    # Requests and segments are recorded; block sizes are only known within 1 MiB when that is said.
    assert got[:, 2:].tolist() == expected[:, 2:].tolist()
    if replayed.exact:
        assert got.tolist() == expected.tolist()
    else:
        assert np.all(got[:, :2] <= expected[:, :2])
        assert replayed.warnings


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(
                [
                    "alloc",
                    "free_requested",
                    "free_completed",
                    "segment_alloc",
                    "segment_free",
                    "segment_map",
                    "segment_unmap",
                    "oom",
                    "snapshot",
                    "made_up",
                ]
            ),
            "addr": st.sampled_from([0, 512, 1024, 2 * MIB, 4 * MIB, 2**64 - 512]),
            "size": st.sampled_from([0, 1, 512, 1024, 2 * MIB, 20 * MIB]),
        }
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200)
@given(EVENTS, ALLOCATORS, STEPS)
def test_contradictory_recordings_are_followed_and_still_end_right(events, allocator, steps):
    play(allocator, steps[:10])
    snapshot = allocator.snapshot()
    snapshot["device_traces"] = [[*events, *allocator.events]]
    trace = from_snapshot(snapshot)
    for device in trace.devices:
        replayed = history(device, trace.settings)
        blocks = [block for segment in device.segments for block in segment.blocks if block.state]
        assert int(replayed.active[-1]) == sum(block.size for block in blocks)
        assert int(replayed.reserved[-1]) == sum(segment.size for segment in device.segments)
        assert replayed.exact == (not replayed.warnings)
        assert (replayed.allocated >= 0).all()
        assert (replayed.active >= replayed.allocated).all()


@settings(deadline=None, max_examples=100)
@given(ALLOCATORS, STEPS, st.integers(0, 10**6), EVENTS)
def test_the_lab_survives_every_recording(allocator, steps, where, events):
    play(allocator, steps)
    snapshot = allocator.snapshot(where % (len(allocator.events) + 1))
    for count in (0, 5):
        snapshot["device_traces"][0] = [*snapshot["device_traces"][0], *events[:count]]
        trace = from_snapshot(snapshot)
        for device in trace.devices:
            lab = Lab(trace, device, limit=200 * MIB)
            assert lab.exact == (lab.history.exact and lab.first_deviation is None)
            assert lab.bound.live_peak <= lab.bound.packed_peak
            for chosen in (AllocatorSettings(), AllocatorSettings(expandable_segments=True)):
                prediction = lab.predict(chosen)
                assert prediction.low <= prediction.expected <= prediction.high <= 200 * MIB


@settings(deadline=None, max_examples=100)
@given(STEPS, st.sampled_from([0, 4]), st.sampled_from([0, 32 * MIB]))
def test_the_model_reserves_what_the_plain_allocator_does(steps, divisions, max_split):
    allocator = Naive(divisions=divisions, max_split=max_split)
    play(allocator, steps)
    trace = from_snapshot(allocator.snapshot())
    for device in trace.devices:
        lab = Lab(trace, device)
        model = Model(lab.program, from_torch(trace.settings), BumpUp())
        model.run()
        assert model.reserved_peak == lab.reserved_peak
        assert model.reserved == int(lab.history.reserved[-1])
