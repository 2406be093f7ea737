"""`record_function` regions of CPU recordings: kept where the code has some, and no allocation is lost by it."""

from __future__ import annotations

import pytest

from gpumem_magic.recording.cpu.regions import Span, has_regions, regions_of
from gpumem_magic.recording.model import Cell
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.recording.ticker import shut_down
from gpumem_magic.trace.model import Action, Region

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    shut_down()


def record(run, regions):
    recorder = Recorder(RecordOptions(), regions=lambda _: regions)
    recorder.start()
    run()
    return recorder.stop(Cell(None, None, ""))


def steps():
    kept = []
    with torch.profiler.record_function("outer"):
        kept.append(torch.empty(256))
        with torch.profiler.record_function("inner"):
            lost = torch.empty(512)
            kept.append(torch.empty(1024))
        del lost
    kept.append(torch.empty(2048))
    return kept


def test_regions_hold_what_was_allocated_in_them():
    trace = record(steps, regions=True).trace
    outer, inner = sorted(trace.regions, key=lambda region: region.start_us)
    assert (outer.name, inner.name) == ("outer", "inner")
    assert outer.start_us <= inner.start_us <= inner.end_us <= outer.end_us
    (device,) = trace.devices
    events = device.events
    allocated = {
        int(size): int(time)
        for size, time, action in zip(events.size, events.time_us, events.action, strict=True)
        if action == Action.ALLOC
    }
    assert outer.start_us <= allocated[1024] <= inner.start_us
    assert inner.start_us <= allocated[2048] <= inner.end_us
    assert outer.end_us <= allocated[8192]


def test_the_allocations_are_those_that_are_seen_without_regions():
    seen = [
        [size for size in events.size.tolist() if size in {1024, 2048, 4096, 8192}]
        for events in (record(steps, regions=wanted).trace.devices[0].events for wanted in (False, True))
    ]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 12  # four come, and each is freed: asked for and done
    assert record(steps, regions=False).trace.regions == ()


class Plain:
    def forward(self):
        return 1


class Marked:
    def forward(self):
        with torch.profiler.record_function("part"):
            return 1


def marked_inside():
    return [torch.profiler.record_function(name) for name in "ab"]


@pytest.mark.parametrize(
    ("text", "space", "has"),
    [
        ("x = 1", {"Plain": Plain, "torch": torch, "n": 3}, False),
        ("with torch.profiler.record_function('a'): pass", {}, True),
        ("train()", {"train": marked_inside}, True),
        ("net()", {"Net": Marked}, True),
        ("with rf('a'): pass", {"rf": torch.profiler.record_function}, True),
    ],
)
def test_which_code_has_regions(text, space, has):
    assert has_regions(torch, text, space) is has


def test_regions_are_cut_to_the_time_of_the_recording():
    spans = [
        Span("before", 1_000, 5_000),
        Span("into", 5_000, 15_000),
        Span("open", 12_000, 0),
        Span("after", 31_000, 40_000),
    ]
    assert regions_of(spans, 10, 30) == (Region("into", 0, 10, 15), Region("open", 0, 12, None))
