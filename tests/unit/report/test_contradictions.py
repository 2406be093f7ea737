"""Recordings that contradict themselves: what is known is drawn, totals close, nothing fails."""

from __future__ import annotations

import random

import pytest
from view_reader import Reader, assert_shape  # type: ignore[import-not-found]

from gpumem_magic.analysis import analyse, analyse_trace
from gpumem_magic.recording.model import Cell, DeviceReading, Outcome, Recording, SourceKind
from gpumem_magic.report import Report
from gpumem_magic.trace.convert import from_snapshot

BASE = 0x7F00_0000_0000
ACTIONS = {
    "alloc": 30,
    "free_requested": 20,
    "free_completed": 20,
    "segment_alloc": 5,
    "segment_free": 3,
    "segment_map": 3,
    "segment_unmap": 2,
    "oom": 1,
    "snapshot": 1,
    "never heard of": 1,
}


def entry(choose, time_us):
    action = choose.choices(list(ACTIONS), list(ACTIONS.values()))[0]
    size = choose.choice([0, 1, 512, 4096, 3 << 20, choose.randrange(1 << 30)])
    place = {"device_free": 5} if action == "oom" else {"addr": BASE + 512 * choose.randrange(40)}
    frames = {"frames": [{"filename": "a.py", "line": choose.randrange(4), "name": "f"}]}
    stream = choose.choice([0, 0, 7])
    return {"action": action, "size": size, "stream": stream, "time_us": time_us} | place | choose.choice([{}, frames])


def segment(choose):
    address, blocks = BASE, []
    for _ in range(choose.randrange(1, 5)):
        size = 512 * choose.randrange(1, 20)
        state = choose.choice(["active_allocated", "inactive", "active_pending_free"])
        requested = size - choose.randrange(300)
        blocks.append({"address": address, "size": size, "requested_size": requested, "state": state, "frames": []})
        address += size
    return {
        "device": 0,
        "address": BASE,
        "total_size": address - BASE,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": choose.random() < 0.3,
        "frames": [],
        "blocks": blocks,
    }


def nonsense(choose):
    """A snapshot whose events fit neither each other nor its end; the clock runs backwards now and then."""
    now, events = 1_700_000_000_000_000, []
    for _ in range(choose.choice([0, 1, 2, 5, 30, 100])):
        now += choose.choice([0, 0, 1, 5, 1000, -50, 10_000_000])
        events.append(entry(choose, now))
    segments = [segment(choose)] if choose.random() < 0.6 else []
    snapshot = {"segments": segments, "device_traces": [events], "allocator_settings": {}, "external_annotations": []}
    return from_snapshot(snapshot), [event["time_us"] for event in events] or [now]


def cell_around(choose, trace, times):
    def reading():
        return DeviceReading(
            "cuda:0",
            0,
            allocated=choose.choice([None, 0, 4096, 1 << 20]),
            max_allocated=choose.choice([None, 0, 1 << 31]),
            limit=choose.choice([None, 1 << 33]),
        )

    return Recording(
        Cell(1, None, "x\ny", ("a.py",)),
        SourceKind.CUDA,
        choose.choice(list(Outcome)),
        min(times) - choose.randrange(5),
        max(times) + choose.randrange(5),
        (reading(),),
        (reading(),),
        trace,
        truncated=choose.random() < 0.3,
        error="E: x",
    )


def assert_closes(analysis):
    report = Report(analysis)
    assert report.to_text().startswith("gpumem: ")
    data, small = report.to_document(), report.to_document(800)
    for index, device in enumerate(analysis.devices):
        headline, timeline = device.headline, device.timeline
        assert sum(row.bytes for row in device.peak) == headline.allocated_peak
        assert sum(row.bytes for row in device.end) == headline.allocated_after == timeline.allocated[-1]
        assert (timeline.size >= timeline.requested).all()
        assert (timeline.requested >= 0).all()
        assert (timeline.allocated >= 0).all()
        for document in (data, small):
            reader = Reader(document, index)
            assert_shape(reader)
            assert int(reader.state(device.end_us).sum()) == headline.allocated_after
        if headline.peak_us is not None:
            assert int(Reader(data, index).state(headline.peak_us).sum()) == headline.allocated_peak


@pytest.mark.parametrize("seed", range(40))
def test_nonsense_is_shown_and_adds_up(seed):
    choose = random.Random(seed)  # noqa: S311 - test data
    trace, times = nonsense(choose)
    assert_closes(analyse_trace(trace))
    analysis = analyse(cell_around(choose, trace, times))
    assert_closes(analysis)
    if seed % 8 == 0 and analysis.drawable:
        assert Report(analysis).to_png()
