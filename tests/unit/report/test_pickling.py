"""A report saved as a torch snapshot: the same recording, with lines where there were no stacks."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import make_documents  # type: ignore[import-not-found]
import numpy as np
import pytest
from test_analyse import WORKLOADS, cell_recording  # type: ignore[import-not-found]

from gpumem_magic._errors import ExportError
from gpumem_magic.analysis import analyse
from gpumem_magic.cli import main
from gpumem_magic.recording.model import Marks
from gpumem_magic.report import Report, build
from gpumem_magic.trace.model import Action, Trace
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"


@pytest.mark.parametrize("name", ["mlp_train.c0", "streams.c1", "multi_gpu", "oom_fragmented", "cuda_graph.c0"])
def test_the_saved_recording_says_the_same(name, tmp_path):
    report = build(read_trace(DATA / f"{name}.pickle.xz"), title=name)
    path = report.save(tmp_path / "saved.pickle")
    assert path.read_bytes()[:2] == b"\x80\x04"
    again = build(read_trace(path), title=name)
    for one, other in zip(report.devices, again.devices, strict=True):
        assert one.headline == other.headline
        assert one.limit == other.limit
        np.testing.assert_array_equal(one.timeline.allocated, other.timeline.allocated)
        rows = {one.groups[row.group].label: row.bytes for row in one.peak if one.groups[row.group].kind == "frame"}
        same = {other.groups[row.group].label: row.bytes for row in other.peak}
        assert {label: same[label] for label in rows} == rows


def test_a_recording_without_stacks_carries_the_cells_lines():
    report = Report(analyse(cell_recording(marks=two_lines(), trace=stackless())))
    snapshot = pickle.loads(report.to_snapshot())  # noqa: S301 - our own
    allocs = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert {tuple(frame["filename"] for frame in entry["frames"]) for entry in allocs} == {("In [4]",)}
    assert {frame["line"] for entry in allocs for frame in entry["frames"]} == {15, 22}
    assert {frame["name"] for entry in allocs for frame in entry["frames"]} == {"line_15()", "line_22()"}
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert all(block["frames"] for block in blocks if block["state"] == "active_allocated")


def stackless() -> Trace:
    trace = cell_recording().trace
    (device,) = trace.devices
    events = replace(device.events, stack=np.zeros_like(device.events.stack))
    segments = tuple(
        replace(segment, stack=0, blocks=tuple(block._replace(stack=0) for block in segment.blocks))
        for segment in device.segments
    )
    return Trace((replace(device, events=events, segments=segments),), settings=trace.settings)


def two_lines() -> Marks:
    plain = cell_recording()
    middle = (plain.started_us + plain.ended_us) // 2
    places = tuple(((WORKLOADS, line, "<module>"),) for line in (15, 22))
    time_us = np.array([plain.started_us, middle], np.int64)
    return Marks(time_us, np.ones(2, np.int64), np.array([0, 1], np.int32), places)


def test_nothing_is_replaced_and_nothing_is_pretended(tmp_path):
    report = build(read_trace(DATA / "streams.c0.pickle.xz"))
    report.save(tmp_path / "a.pkl.gz")
    with pytest.raises(ExportError, match="exists: choose another name"):
        report.save(tmp_path / "a.pkl.gz")
    with pytest.raises(ExportError, match="nothing to save as a torch snapshot"):
        Report(make_documents.counters()).save(tmp_path / "b.pickle")
    assert not (tmp_path / "b.pickle").exists()


def test_the_command_line_writes_one_too_and_leaves_folders_out(tmp_path, capsys):
    source = str(DATA / "mlp_train.c0.pickle.xz")
    assert main(["report", source, "-o", str(tmp_path / "bare.pickle.xz"), "--no-source"]) == 0
    assert "bare.pickle.xz" in capsys.readouterr().out
    trace = read_trace(tmp_path / "bare.pickle.xz")
    assert {"/" in frame.filename for frame in trace.stacks.frames} == {False}
    assert len(trace.devices[0].events) == len(read_trace(source).devices[0].events)
    assert np.count_nonzero(trace.devices[0].events.action == Action.ALLOC) > 1000
