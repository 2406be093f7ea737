"""Frees that wait for another stream: the point keeps the recorded moments, the range has others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.program import Op, Program
from gpumem_magic.allocator.settings_model import MIB, AllocatorSettings
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.allocator.timing import waits, with_delays, with_disturbed_delays
from gpumem_magic.allocator.whatif import Explorer


def program(steps, sizes, *, group=None):
    codes, arguments = zip(*steps, strict=True)
    return Program(
        codes=np.array(codes, np.uint8),
        arguments=np.array(arguments, np.int32),
        events=np.arange(len(codes), dtype=np.int32),
        requested=np.array(sizes, np.int64),
        group=np.array(group or [0] * len(sizes), np.int32),
        groups=(((0, 0), 0),),
    )


def one_waiting_free():
    """A block is found complete one request too late to serve the next one of its size."""
    steps = [
        (Op.ALLOC, 0),
        (Op.FREE_LATER, 0),
        (Op.ALLOC, 1),
        (Op.COMPLETE, 0),
        (Op.ALLOC, 2),
        (Op.FREE, 1),
        (Op.FREE, 2),
    ]
    return program(steps, [24 * MIB, 24 * MIB, MIB])


def test_a_free_that_completes_sooner_serves_the_next_request():
    found = Explorer(one_waiting_free()).predict(AllocatorSettings())
    assert (found.low, found.expected, found.high) == (26 * MIB, 50 * MIB, 50 * MIB)
    assert found.doubts == ("streams",)
    assert not found.is_firm


def test_without_such_frees_there_is_one_timing():
    steps = [(Op.ALLOC, 0), (Op.FREE, 0), (Op.ALLOC, 1)]
    plain = program(steps, [24 * MIB, 24 * MIB])
    assert not waits(plain)
    found = Explorer(plain).predict(AllocatorSettings())
    assert (found.low, found.expected, found.high, found.doubts) == (24 * MIB, 24 * MIB, 24 * MIB, ())
    assert found.is_firm


@pytest.mark.parametrize("name", ["fuzz2.c1", "fuzz14.c0", "fuzz7.c0"])
def test_other_timings_are_the_same_program(load, name):
    trace = load(name)
    recorded = Lab(trace, trace.devices[0]).program
    assert with_delays(recorded, 1.0).steps() == recorded.steps()
    for changed in (with_delays(recorded, 0.0), with_delays(recorded, 2.0), with_disturbed_delays(recorded, 3)):
        # Every request and free keeps its place; what completes does so once, after its free was requested.
        asked = {int(Op.ALLOC), int(Op.FREE), int(Op.FREE_LATER), int(Op.EMPTY_CACHE)}
        alike = {int(Op.FREE): int(Op.FREE_LATER)}
        before, after = (
            [(alike.get(code, code), number) for code, number in one.steps() if code in asked]
            for one in (recorded, changed)
        )
        assert before == after
        waiting: set[int] = set()
        for code, number in changed.steps():
            if code == Op.FREE_LATER:
                waiting.add(number)
            elif code == Op.COMPLETE:
                waiting.remove(number)
    assert with_disturbed_delays(recorded, 3).steps() == with_disturbed_delays(recorded, 3).steps()
    assert with_disturbed_delays(recorded, 3).steps() != with_disturbed_delays(recorded, 4).steps()
    counts = Counter(code for code, _ in with_disturbed_delays(recorded, 3).steps())
    assert counts[Op.FREE_LATER] >= np.count_nonzero(recorded.codes == Op.FREE_LATER)


def test_the_recorded_setting_stays_a_point_that_lies_in_its_range(load):
    trace = load("fuzz7.c0")
    lab = Lab(trace, trace.devices[0])
    found = lab.predict(parse_settings(""))
    assert found.expected == lab.reserved_peak
    assert found.low <= found.expected <= found.high


def test_what_fits_only_as_it_was_timed_is_hedged():
    # Complete by the second request, block 0 would be split for it, and its segment would not serve the third.
    steps = [(Op.ALLOC, 0), (Op.FREE_LATER, 0), (Op.ALLOC, 1), (Op.COMPLETE, 0), (Op.ALLOC, 2)]
    tight = program(steps, [24 * MIB, 12 * MIB, 24 * MIB])
    found = Explorer(tight, limit=40 * MIB).predict(AllocatorSettings())
    assert (found.verdict, found.expected, found.unanimous) == ("fits_unless_delayed", 36 * MIB, False)
    assert found.dies_at is not None
    assert (found.dies_at.lifetime, found.dies_at.event, found.dies_at.size) == (2, 4, 24 * MIB)
    assert not found.is_firm
    # What dies as it was timed is out of memory; what no timing needs so much for fits.
    sooner = program([*steps[:2], steps[3], steps[2], steps[4]], [24 * MIB, 12 * MIB, 24 * MIB])
    assert Explorer(sooner, limit=40 * MIB).predict(AllocatorSettings()).verdict == "oom"
    assert Explorer(tight, limit=48 * MIB).predict(AllocatorSettings()).verdict == "fits"
