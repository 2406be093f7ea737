"""Recordings of a torch that recorded no times: everything is placed by the order of the events."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic import read_snapshot
from gpumem_magic.analysis import analyse
from gpumem_magic.recording.model import Cell, Outcome, Recording, Sample, SourceKind
from gpumem_magic.report.interchange import exported
from gpumem_magic.report.report import Report
from gpumem_magic.report.segments import keyframes
from gpumem_magic.report.ticks import order_ticks
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"


def report_of(path):
    report = read_snapshot(path)
    assert isinstance(report, Report)
    return report


def test_markers_peak_reserved_and_maps_stand_where_they_happened(untimed):
    timed = report_of(DATA / "oom_fragmented.pickle.xz")
    report = report_of(untimed("oom_fragmented"))
    (device,), (original,) = report.analysis.devices, timed.analysis.devices
    assert (device.is_timed, original.is_timed) == (False, True)
    assert (device.start_us, device.end_us) == (0, device.events)
    # Events have their number in the place of a time, so the times of the other recording say where all belongs.
    times = read_trace(DATA / "oom_fragmented.pickle.xz").devices[0].events.time_us
    ooms = [marker.time_us for marker in device.markers if marker.kind == "oom"]
    assert ooms
    assert [int(times[at - 1]) for at in ooms] == [m.time_us for m in original.markers if m.kind == "oom"]
    assert int(times[device.headline.peak_us - 1]) == original.headline.peak_us
    np.testing.assert_array_equal(device.timeline.allocated, original.timeline.allocated)
    np.testing.assert_array_equal(device.timeline.group, original.timeline.group)
    assert [lane.name for lane in device.lanes] == ["reserved"]
    (reserved,) = device.lanes
    assert len(np.unique(reserved.time_us)) > 200
    maps, original_maps = keyframes(device, 1_000_000), keyframes(original, 1_000_000)
    assert maps is not None
    assert original_maps is not None
    assert len(maps.moments) > 20
    for name in ("peak", "out of memory"):
        numbers = [m["numbers"] for m in maps.moments if m["name"] == name]
        assert numbers == [m["numbers"] for m in original_maps.moments if m["name"] == name]
        assert len(numbers) == 1


def test_no_length_of_time_is_told_or_written(untimed, tmp_path):
    report = report_of(untimed("oom_fragmented"))
    assert "µs" not in report.to_text()
    assert "986 events" in report.to_text()
    again = tmp_path / "again.pickle"
    report.save(again)
    for entries in pickle.loads(again.read_bytes())["device_traces"]:  # noqa: S301 - ours
        assert not any("time_us" in entry for entry in entries)
    trace = json.loads(exported(report.to_document(), "perfetto"))
    assert trace["otherData"]["units"] == "bytes; ts counts events: no times were recorded"


def test_devices_have_an_order_each(untimed):
    timed = report_of(DATA / "multi_gpu.pickle.xz").analysis
    report = report_of(untimed("multi_gpu")).analysis
    for device, original in zip(report.devices, timed.devices, strict=True):
        assert device.end_us == device.events
        # What has no stack is not given to a line that another device's order would put next to it.
        assert {g.label for g in device.groups} - {g.label for g in original.groups} <= {"no Python stack"}


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ERROR])
def test_a_cell_recorded_without_times(untimed, outcome):
    trace = read_trace(untimed("streams.c0"))
    began = 1_790_000_000_000_000
    samples = tuple(Sample(began + k, "cuda:0", 1, 1, 2, 3) for k in range(3))
    cell = Cell(3, None, "import torch")
    recording = Recording(
        cell, SourceKind.CUDA, outcome, began, began + 5_000_000, trace=trace, samples=samples, error="E: x"
    )
    analysis = analyse(recording)
    (device,) = analysis.devices
    assert (device.start_us, device.end_us) == (0, device.events)
    # What the clock alone could place is left out, and what the cell took is known all the same.
    assert [lane.name for lane in device.lanes] == ["reserved"]
    assert analysis.ended_us - analysis.started_us == 5_000_000
    if outcome is Outcome.ERROR:
        assert [m.time_us for m in device.markers if m.kind == "exception"] == [device.end_us]


def test_ticks_of_an_order():
    assert order_ticks(0, 985) == [(0, "event 0"), (200, "200"), (400, "400"), (600, "600"), (800, "800")]
    assert order_ticks(0, 1) == [(0, "event 0"), (1, "1")]
    assert order_ticks(-1, 0) == [(0, "event 0")]
