"""Replay against what torch itself counted on the GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from gpumem_magic.allocator.replay import history
from gpumem_magic.allocator.retries import count_retries
from gpumem_magic.analysis.alive import alive_at, peak_event
from gpumem_magic.trace.model import Action, BlockState, Events

COUNTERS = ("allocated", "active", "requested", "reserved")


def rows(name, truth):
    if name == "multi_gpu":
        return {int(device): row for device, row in truth["multi_gpu"].items()}
    return {0: next(row for row in truth["rows"] if row["recording"] == name)}


def dropped(device, count):
    """The recording as a ring that overflowed would have kept it."""
    columns = {field.name: getattr(device.events, field.name)[count:] for field in fields(Events)}
    return replace(device, events=Events(**columns))


def test_every_counter_equals_torchs_to_the_byte(recording, load, truth):
    trace = load(recording)
    for number, row in rows(recording, truth).items():
        device = trace.devices[number]
        replayed = history(device, trace.settings)
        assert replayed.exact
        assert replayed.first_deviation is None
        assert replayed.warnings == ()
        for counter in COUNTERS:
            assert int(getattr(replayed, counter).max()) == row[f"{counter}_peak"], counter
            assert int(getattr(replayed, counter)[0]) == 0, counter
        assert int(replayed.allocated[-1]) == row["allocated_end"]
        assert int(replayed.reserved[-1]) == row["reserved_end"]
        if "num_alloc_retries" in row:
            assert np.count_nonzero(device.events.action == Action.OOM) == row["num_ooms"]
            assert count_retries(device, replayed, trace.stacks) == row["num_alloc_retries"]


def test_lifetimes_never_share_an_address(recording, load):
    trace = load(recording)
    lives = history(trace.devices[0], trace.settings).lifetimes
    # At moments spread over the recording, and at its end, blocks in use must not overlap.
    count = len(trace.devices[0].events)
    for event in np.linspace(0, count - 1, 40).astype(int).tolist():
        alive = (lives.alloc_event <= event) & ((lives.release_event < 0) | (lives.release_event > event))
        start = lives.address[alive].astype(np.int64)
        order = np.argsort(start)
        end = start + lives.size[alive]
        assert (end[order][:-1] <= start[order][1:]).all()


def test_the_living_at_the_peak_add_up(recording, load):
    trace = load(recording)
    for device in trace.devices:
        replayed = history(device, trace.settings)
        event = peak_event(replayed)
        alive = alive_at(replayed, trace.stacks, event)
        assert alive.allocated == int(replayed.allocated.max())
        assert sum(group.requested for group in alive.groups) == alive.requested
        assert sum(group.size for group in alive.groups) == alive.allocated == alive.requested + alive.rounding
        assert alive.rounding >= 0


@pytest.mark.parametrize("share", [0.25, 0.6, 0.95])
def test_after_overflow_the_end_is_exact_and_the_rest_close(recording, share, load):
    trace = load(recording)
    device = trace.devices[0]
    full = history(device, trace.settings)
    count = int(len(device.events) * share)
    replayed = history(dropped(device, count), trace.settings)
    assert replayed.first_deviation is None
    for counter in COUNTERS:
        column, expected = getattr(replayed, counter), getattr(full, counter)[count:]
        assert column[-1] == expected[-1]
        if replayed.exact or counter in {"requested", "reserved"}:
            assert np.array_equal(column, expected), counter
    # Without being flagged nothing may be off, and what is flagged is off by less than a thousandth.
    assert np.abs(replayed.allocated - full.allocated[count:]).max() <= full.allocated.max() // 1000
    assert replayed.exact == (not replayed.warnings)


def test_the_final_state_is_met_block_by_block(recording, load):
    trace = load(recording)
    for device in trace.devices:
        lives = history(device, trace.settings).lifetimes
        alive = lives.release_event < 0
        ours = sorted(zip(lives.address[alive].tolist(), lives.size[alive].tolist(), strict=True))
        blocks = [block for segment in device.segments for block in segment.blocks]
        assert ours == [(block.address, block.size) for block in blocks if block.state != BlockState.INACTIVE]
