"""Whole recordings from a real H200 against torch's own counters, and cells around them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.analysis import analyse, analyse_trace
from gpumem_magic.analysis.diff import compare, side_of
from gpumem_magic.recording.model import Cell, DeviceReading, Marks, Note, Outcome, Recording, SourceKind
from gpumem_magic.trace.model import Action, Trace
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"
TRUTH = {
    row["recording"]: row for row in json.loads((DATA / "truth.json").read_text("utf-8"))["rows"] if row["recording"]
}
COMPLETE = sorted(
    name for name, row in TRUTH.items() if (DATA / f"{name}.pickle.xz").is_file() and "allocated_peak" in row
)
WORKLOADS = "/home/user/train/workloads.py"


def trace_of(name):
    return read_trace(DATA / f"{name}.pickle.xz")


@pytest.mark.parametrize("name", COMPLETE)
def test_peaks_and_ends_are_torchs_own_and_rows_add_up(name):
    row = TRUTH[name]
    device = analyse_trace(trace_of(name)).devices[0]
    headline = device.headline
    assert headline.allocated_peak == row["allocated_peak"]
    assert headline.allocated_after == row["allocated_end"]
    assert headline.reserved_peak == row["reserved_peak"]
    assert headline.reserved_after == row["reserved_end"]
    assert sum(r.bytes for r in device.peak) == headline.allocated_peak
    assert sum(r.bytes for r in device.end) == headline.allocated_after
    assert headline.allocated_before is not None
    assert headline.stayed is not None
    assert headline.freed is not None
    assert headline.allocated_before + headline.stayed - headline.freed == headline.allocated_after
    unknown = {group.label for group in device.groups if group.kind == "unknown"}
    assert unknown <= {"no Python stack", "no stacks"}


def cell_recording(name="mlp_train.c0", **changes):
    """A cell whose lines are those of the recorded script, known by stacks."""
    trace = trace_of(name)
    device = trace.devices[0]
    row = TRUTH[name]
    times = device.events.time_us
    end = int(times.max()) + 10
    source = "\n".join(f"line_{n}()" for n in range(1, 310))
    fields = {
        "cell": Cell(4, None, source, (WORKLOADS,)),
        "source": SourceKind.CUDA,
        "outcome": Outcome.OK,
        "started_us": int(times.min()) - 10,
        "ended_us": end,
        "before": (DeviceReading("cuda:0", 0, allocated=0, reserved=0, max_allocated=0),),
        "after": (
            DeviceReading(
                "cuda:0",
                end,
                allocated=row["allocated_end"],
                reserved=row["reserved_end"],
                max_allocated=row["allocated_peak"],
                limit=80 << 30,
                name="H200",
            ),
        ),
        "trace": trace,
    } | changes
    return Recording(**fields)


def test_a_cell_with_stacks():
    analysis = analyse(cell_recording())
    assert analysis.title == "In [4]"
    assert analysis.origin == "cell"
    assert analysis.drawable
    (note,) = analysis.notes
    assert note.text.startswith("cuda:0: 721 allocations without a stack (autograd's thread; 160 MiB at the peak)")
    device = analysis.devices[0]
    assert {group.kind for group in device.groups} == {"line", "rounding"}
    top = device.groups[device.peak[0].group]
    assert (top.label, top.source) == ("line 22", "line_22()")
    assert "at line 22 `line_22()`" in analysis.sentence
    assert analysis.sentence.endswith("to the limit.")


def test_marks_win_over_stacks():
    plain = cell_recording()
    times = np.array([plain.started_us], np.int64)
    marks = Marks(times, np.ones(1, np.int64), np.zeros(1, np.int32), (((WORKLOADS, 5, "<module>"),),))
    device = analyse(replace(plain, marks=marks)).devices[0]
    assert {group.label for group in device.groups} == {"line 5", "rounding and unsplit remainders"}
    assert device.peak_group == 0


def test_a_counter_that_disagrees_still_closes_and_is_said():
    plain = cell_recording()
    reading = replace(plain.after[0], allocated=(plain.after[0].allocated or 0) + 12345)
    analysis = analyse(replace(plain, after=(reading,)))
    assert analysis.devices[0].headline.allocated_after == reading.allocated
    assert sum(row.bytes for row in analysis.devices[0].end) == reading.allocated
    assert [note.level for note in analysis.notes] == ["warning", "warning", "info"]


def test_overflow_is_said_once():
    analysis = analyse(cell_recording(truncated=True, notes=(Note("info", "x"),)))
    assert [note.level for note in analysis.notes][-1] == "info"
    assert sum("overflowed" in note.text for note in analysis.notes) == 1
    assert analysis.devices[0].headline.stayed is None


@pytest.mark.parametrize(("outcome", "kinds"), [(Outcome.OK, []), (Outcome.ERROR, ["exception"])])
def test_an_error_is_marked_at_the_end(outcome, kinds):
    source = cell_recording(outcome=outcome, error="ValueError: bad")
    device = analyse(source).devices[0]
    assert [marker.kind for marker in device.markers] == kinds
    if kinds:
        assert device.markers[0].time_us == source.ended_us


def test_labels_and_statements():
    cell = Cell(4, "первый", "%gpumem f()", (WORKLOADS,))
    analysis = analyse(cell_recording(cell=cell))
    assert (analysis.title, analysis.origin) == ("первый", "statement")
    block = analyse(cell_recording(cell=Cell(None, None, "f()", (WORKLOADS,))))
    assert (block.title, block.origin) == ("cell", "block")


def test_a_device_on_which_nothing_moved_never_leads():
    trace = trace_of("mlp_train.c0")
    idle = replace(
        trace.devices[0],
        device=1,
        events=replace(
            trace.devices[0].events,
            **{
                name: getattr(trace.devices[0].events, name)[:0]
                for name in ("action", "addr", "size", "stream", "time_us", "stack", "pool")
            },
        ),
    )
    analysis = analyse(cell_recording(trace=replace(trace, devices=(idle, trace.devices[0]))))
    assert [device.key for device in analysis.devices] == ["cuda:0", "cuda:1"]
    assert "cuda:1" not in analysis.sentence


def test_nothing_recorded():
    quiet = analyse(cell_recording(trace=Trace(())))
    assert not quiet.drawable
    assert quiet.devices == ()
    assert quiet.sentence == "Nothing was allocated or freed on a GPU in this cell; 65.0 MiB is allocated, as before."


def test_a_snapshot_without_events():
    trace = trace_of("mlp_train.c0")
    events = trace.devices[0].events
    none = replace(events, **{name: getattr(events, name)[:0] for name in vars(events)})
    analysis = analyse_trace(replace(trace, devices=(replace(trace.devices[0], events=none),)))
    assert not analysis.drawable
    assert analysis.sentence.startswith("No events: ")
    assert analysis.devices[0].headline.allocated_after == 68157440


def test_an_event_that_the_end_contradicts_is_not_called_none():
    trace = trace_of("mlp_train.c0")
    device = trace.devices[0]
    first = int(np.flatnonzero(device.events.action == Action.ALLOC)[0])
    events = replace(
        device.events, **{name: getattr(device.events, name)[first : first + 1] for name in vars(device.events)}
    )
    analysis = analyse_trace(replace(trace, devices=(replace(device, events=events, segments=()),)))
    assert analysis.devices[0].events == 1
    assert analysis.sentence.startswith("No event changes what is allocated: 0 B are allocated")
    assert any("contradicts itself" in note.text for note in analysis.notes)


def test_two_settings_of_one_run_differ_in_nothing_but_rounding():
    a, b = (side_of(analyse_trace(trace_of(f"mlp_train.{c}"))) for c in ("c0", "c1"))
    diff = compare(a, b)
    assert {row.group.kind for row in diff.rows if row.growth or row.end_growth} <= {"rounding"}
    device = diff.a.devices["cuda:0"]
    assert sum(row.bytes_a for row in diff.rows) == device.peak
    assert sum(row.end_bytes_a for row in diff.rows) == device.end


def test_diff_aligns_by_owner_and_adds_up():
    a = side_of(analyse_trace(trace_of("leak_losses.c0")))
    b = side_of(analyse_trace(trace_of("mlp_train.c0")))
    diff = compare(a, b)
    assert sum(row.bytes_a for row in diff.rows) == a.devices["cuda:0"].peak
    assert sum(row.bytes_b for row in diff.rows) == b.devices["cuda:0"].peak
    assert sum(row.end_growth for row in diff.rows) == (b.devices["cuda:0"].end or 0) - (a.devices["cuda:0"].end or 0)
    growth = [abs(row.growth) for row in diff.rows]
    assert growth == sorted(growth, reverse=True)


def test_diff_knows_a_line_by_its_text_and_function():
    def side(line, source):
        plain = cell_recording(cell=Cell(4, None, "\n" * (line - 1) + source, (WORKLOADS,)))
        marks = Marks(
            np.array([plain.started_us], np.int64),
            np.ones(1, np.int64),
            np.zeros(1, np.int32),
            (((WORKLOADS, line, "<module>"),),),
        )
        return side_of(analyse(replace(plain, marks=marks)))

    moved = compare(side(5, "train()"), side(9, "  train()"))
    assert all(row.growth == 0 for row in moved.rows)
    other = compare(side(5, "train()"), side(5, "infer()"))
    assert any(row.growth for row in other.rows)


def test_a_line_has_one_colour_on_all_devices():
    devices = analyse_trace(trace_of("multi_gpu")).devices
    one, other = ({g.line: g.color for g in device.groups if g.kind == "frame"} for device in devices)
    shared = set(one) & set(other)
    assert len(shared) >= 3
    assert all(one[line] == other[line] for line in shared)
    assert len({one[line] for line in one}) == len(one)
