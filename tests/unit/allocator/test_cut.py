from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from gpumem_magic.allocator.cut import cut
from gpumem_magic.allocator.replay import history
from gpumem_magic.trace.model import Events

COUNTERS = ("allocated", "active", "requested", "reserved")


@pytest.mark.parametrize("name", ["streams.c0", "random_mix.c1", "oom_fragmented", "cuda_graph.c1", "leak_losses.c0"])
@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (0.3, 0.7), (0.5, 1.0), (0.9, 0.91)])
def test_a_stretch_has_the_counters_of_the_whole(name, low, high, load):
    trace = load(name)
    device = trace.devices[0]
    times = device.events.time_us
    start, end = (int(times[int((len(times) - 1) * share)]) for share in (low, high))
    inside = np.flatnonzero((times >= start) & (times <= end))
    (part,) = cut(trace, start, end).devices
    assert part.events.time_us.tolist() == times[inside].tolist()
    full, cutout = history(device, trace.settings), history(part, trace.settings)
    assert cutout.first_deviation is None
    for counter in COUNTERS:
        expected = getattr(full, counter)[inside[0] : inside[-1] + 2]
        assert np.array_equal(getattr(cutout, counter), expected), counter


def test_the_whole_is_itself(load):
    trace = load("streams.c0")
    times = trace.devices[0].events.time_us
    (part,) = cut(trace, int(times[0]), int(times[-1])).devices
    assert part.segments == trace.devices[0].segments
    for field in fields(Events):
        assert np.array_equal(getattr(part.events, field.name), getattr(trace.devices[0].events, field.name))


def test_an_empty_stretch_keeps_the_state_at_its_time(load):
    trace = load("random_mix.c0")
    device = trace.devices[0]
    times = device.events.time_us
    gap = int(np.argmax(np.diff(times)))
    (part,) = cut(trace, int(times[gap]) + 1, int(times[gap]) + 1).devices
    assert len(part.events) == 0
    full, cutout = history(device, trace.settings), history(part, trace.settings)
    for counter in COUNTERS:
        assert getattr(cutout, counter).tolist() == [getattr(full, counter)[gap + 1]], counter
