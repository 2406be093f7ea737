"""One device: totals that close, owners, what could not be known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from story import START, Story, rounded  # type: ignore[import-not-found]

from gpumem_magic.analysis.devices import CPU_BEFORE, CPU_OVERFLOW, OVERFLOW, DeviceContext, Placement, analyse_device
from gpumem_magic.analysis.groups import PlaceNamer
from gpumem_magic.recording.model import Cell, Counts, DeviceReading, Sample
from gpumem_magic.trace.model import Frame, StackTable

MIB = 1 << 20
HERE = "/home/me/ipykernel_1/99.py"
THERE = "/home/me/ipykernel_1/11.py"
CELL = Cell(
    3,
    None,
    "%%gpumem\na = make()\nb = net(a)\nloss.backward()\n",
    (HERE,),
    others={THERE: (2, "def net(x):\n    h = x @ w\n    return h.relu()\n")},
)


def context(*, cell=CELL, end=1000, **fields):
    return DeviceContext(PlaceNamer(cell), fields.pop("stacks", StackTable()), START, START + end, **fields)


def placed(story, lines, reasons=("line unknown: two threads",)):
    """`lines`: event number → line stack; each holds until the next."""
    places = tuple(dict.fromkeys(place for place in lines.values() if isinstance(place, tuple)))
    column = np.zeros(len(story.events), np.int32)
    for event, place in lines.items():
        column[event:] = places.index(place) if isinstance(place, tuple) else place
    return Placement(column, places, reasons)


def labels(device, rows):
    return {device.groups[row.group].label: row.bytes for row in rows}


def here(line):
    return ((HERE, line, "<module>"),)


def test_totals_close_and_lines_own_what_they_allocated():
    story = Story()
    story.old(1000)
    first = story.alloc(3 * MIB)
    second_event = len(story.events)
    story.at(10).alloc(5000)
    story.at(20).free(first)
    device = analyse_device(
        story.device(), story.history(), context(placement=placed(story, {0: here(2), second_event: here(3)}))
    )
    assert labels(device, device.peak) == {
        "line 2": 3 * MIB,
        "line 3": 5000,
        "before the cell": 1000,
        "rounding and unsplit remainders": 24 + 120,
    }
    assert sum(row.bytes for row in device.peak) == device.headline.allocated_peak == 1024 + 3 * MIB + 5120
    assert sum(row.bytes for row in device.end) == device.headline.allocated_after == 1024 + 5120
    assert device.headline.stayed == 5120
    assert device.headline.freed == 0
    assert device.headline.peak_us == START + 10
    assert device.peak_group is not None
    assert device.groups[device.peak_group].source == "b = net(a)"
    assert [row.blocks for row in device.peak] == [1, 1, 1, 0]


def test_what_was_there_before_and_went_is_freed_not_stayed():
    story = Story()
    goes, _ = story.old(2 * MIB), story.old(MIB)
    story.at(5).free(goes)
    device = analyse_device(story.device(), story.history(), context())
    assert (device.headline.freed, device.headline.stayed) == (2 * MIB, 0)
    assert device.headline.allocated_peak == device.headline.allocated_before == 3 * MIB
    assert device.peak_group is None
    assert device.headline.peak_us == START


def test_a_line_that_owns_the_peak_is_split_by_what_it_called_elsewhere():
    story = Story()
    deep = ((THERE, 2, "net"), (HERE, 3, "<module>"))
    deeper = ((THERE, 3, "net"), (HERE, 3, "<module>"))
    story.alloc(MIB)
    story.alloc(40 * MIB)
    story.alloc(20 * MIB)
    device = analyse_device(
        story.device(), story.history(), context(placement=placed(story, {0: here(2), 1: deep, 2: deeper}))
    )
    assert labels(device, device.peak) == {"In [2] line 2": 40 * MIB, "In [2] line 3": 20 * MIB, "line 2": MIB}
    assert [group.source for group in device.groups if group.cell == "In [2]"] == ["h = x @ w", "return h.relu()"]


def test_a_line_without_dominance_stays_whole():
    story = Story()
    story.alloc(40 * MIB)
    story.alloc(20 * MIB)
    story.alloc(20 * MIB)
    lines = {0: here(2), 1: ((THERE, 2, "net"), (HERE, 3, "<module>")), 2: ((THERE, 3, "net"), (HERE, 3, "<module>"))}
    device = analyse_device(story.device(), story.history(), context(placement=placed(story, lines)))
    assert labels(device, device.peak) == {"line 2": 40 * MIB, "line 3": 40 * MIB}


def test_an_unknown_line_keeps_its_reason_once():
    story = Story()
    story.alloc(MIB)
    device = analyse_device(story.device(), story.history(), context(placement=placed(story, {0: -1})))
    (group,) = [group for group in device.groups if group.kind == "unknown"]
    assert (group.label, group.reason) == ("line unknown", "two threads")


def test_older_memory_is_named_by_the_cell_that_made_it_when_a_stack_tells():
    stacks = StackTable((Frame(THERE, 2, "net"), Frame(HERE, 2, "<module>")), ((), (0,), (1,)))
    story = Story()
    story.old(MIB, stack=1)
    story.old(2 * MIB, stack=2)
    story.old(4 * MIB)
    story.alloc(512)
    device = analyse_device(story.device(), story.history(), context(stacks=stacks))
    named = labels(device, device.end)
    assert named["In [2], before this cell"] == MIB
    assert named["an earlier run of this cell"] == 2 * MIB
    assert named["before the cell"] == 4 * MIB
    assert all(g.kind == "before" for g in device.groups if "cell" in g.label and "line" not in g.label)


def test_file_groups_are_the_innermost_frame_that_is_not_library_code():
    frames = (
        Frame("??", 0, "at::native::empty"),
        Frame("/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "forward"),
        Frame("/home/me/train.py", 67, "step"),
        Frame("/home/me/train.py", 90, "<module>"),
        Frame("C:\\work\\run.py", 5, "<module>"),
    )
    stacks = StackTable(frames, ((), (0, 1, 2, 3), (4,), (0, 1)))
    story = Story()
    for stack in range(4):
        story.alloc((stack + 1) * MIB, stack=stack)
    device = analyse_device(story.device(), story.history(), context(cell=None, stacks=stacks, is_cell=False))
    assert labels(device, device.peak) == {
        "no Python stack": MIB,
        "train.py:67 step": 2 * MIB,
        "run.py:5": 3 * MIB,
        "linear.py:134 forward": 4 * MIB,
    }
    unknown = next(group for group in device.groups if group.kind == "unknown")
    assert unknown.reason == "backward thread or C++"


@pytest.mark.parametrize("extra", [7 * MIB, -3 * MIB, -3 * MIB - 700])
def test_the_end_is_always_torchs_own_counter(extra):
    story = Story()
    story.old(2 * MIB)
    story.alloc(4 * MIB)
    gone = story.alloc(MIB)
    story.free(gone)
    counter = 6 * MIB + extra
    device = analyse_device(
        story.device(), story.history(), context(after=DeviceReading("cuda:0", START + 1000, allocated=counter))
    )
    assert device.headline.allocated_after == counter
    assert sum(row.bytes for row in device.end) == counter
    assert sum(row.bytes for row in device.peak) == device.headline.allocated_peak
    assert int(device.timeline.allocated[-1]) == counter
    alive = device.timeline.end == -1
    assert int(device.timeline.size[alive].sum()) == counter
    assert np.all(device.timeline.size >= 0)


def test_a_gap_to_the_counter_is_said():
    story = Story()
    story.alloc(MIB)
    told = context(after=DeviceReading("cuda:0", START + 1000, allocated=3 * MIB))
    device = analyse_device(story.device(), story.history(), told)
    assert labels(device, device.end)["not in the recording"] == 2 * MIB
    assert told.notes[0].level == "warning"
    assert "2.00 MiB more than the recorded events explain" in told.notes[0].text


def test_agreement_leaves_no_note():
    story = Story(reserved=20 * MIB)
    story.old(512)
    story.alloc(MIB)
    silent = context(
        before=DeviceReading("cuda:0", START, allocated=512),
        after=DeviceReading("cuda:0", START + 1000, allocated=MIB + 512, limit=100 * MIB),
    )
    device = analyse_device(story.device(), story.history(), silent)
    assert silent.notes == []
    assert device.headline.headroom == 80 * MIB
    assert device.exact


def test_a_start_that_differs_from_the_counter_is_said():
    story = Story()
    story.alloc(MIB)
    told = context(before=DeviceReading("cuda:0", START, allocated=4 * MIB))
    device = analyse_device(story.device(), story.history(), told)
    assert device.headline.allocated_before == 4 * MIB
    assert "the recorded events lead back to 0 B" in told.notes[0].text


def test_calls_of_empty_cache_are_placed_where_torch_counted_as_many():
    story = Story(reserved=20 * MIB)
    for moment in (100, 200, 300):
        story.at(moment).alloc(MIB)
    # One before the recording began, and one in the microsecond of an allocation, which came first.
    times = (START - 5, START + 50, START + 200, START + 900)

    def analysed(flushes):
        return analyse_device(
            story.device(),
            story.history(),
            context(
                before=DeviceReading("cuda:0", START, allocated=0, counts=Counts(0, 0, 0)),
                after=DeviceReading("cuda:0", START + 1000, allocated=3 * MIB, counts=Counts(3, flushes, 0)),
                emptied_us=times,
            ),
        )

    actions = story.device().events.action.tolist()
    allocs = [number for number, action in enumerate(actions) if action == 0]
    memory = analysed(3).memory
    assert memory is not None
    assert memory.emptied == 3
    assert memory.calls == (0, allocs[1] + 1, len(actions))
    other = analysed(4).memory
    assert other is not None
    assert (other.emptied, other.calls) == (4, None)


@pytest.mark.parametrize("counted", [8 * MIB, 9 * MIB, None])
def test_a_size_that_had_to_be_assumed_is_certain_once_the_counter_agrees(counted):
    line = "cuda:0: 1 block was there before the first event and is gone at the end; its size is known to within 1 MiB"
    story = Story()
    story.free(story.old(8 * MIB))
    replayed = replace(story.history(), exact=False, warnings=(line, "another"), doubt=line)
    before = None if counted is None else DeviceReading("cuda:0", START, allocated=counted)
    told = context(before=before)
    device = analyse_device(story.device(), replayed, told)
    texts = [note.text for note in told.notes]
    assert "cuda:0: another" in texts
    assert (line in texts) == (counted != 8 * MIB)
    assert device.exact == (counted == 8 * MIB)


def test_overflow_claims_only_what_is_known():
    story = Story()
    story.old(8 * MIB)
    story.alloc(MIB)
    before = DeviceReading("cuda:0", START, allocated=2 * MIB, max_allocated=5 * MIB)
    after = DeviceReading("cuda:0", START + 1000, allocated=9 * MIB, max_allocated=30 * MIB)
    device = analyse_device(story.device(), story.history(), context(before=before, after=after, truncated=True))
    assert device.headline.stayed is None
    assert device.headline.freed is None
    assert device.missing["stayed"] == OVERFLOW
    # torch's own peak counter rose in the cell, so the peak is known though its moment is not.
    assert device.headline.allocated_peak == 30 * MIB
    assert device.headline.peak_us is None
    assert labels(device, device.peak) == {"in the lost part of the recording": 30 * MIB}
    assert labels(device, device.end)["before the recorded part"] == 8 * MIB
    assert device.markers[0].kind == "overflow"
    assert not device.exact


def test_cpu_counts_what_the_cell_made():
    story = Story(kind="cpu", has_snapshot=False)
    old = story.old(5 * MIB)
    story.alloc(MIB)
    story.free(old)
    device = analyse_device(story.device(), story.history(), context())
    assert device.key == "cpu"
    assert device.headline.allocated_before is None
    assert device.missing["allocated_before"] == CPU_BEFORE
    assert (device.headline.allocated_peak, device.headline.stayed, device.headline.freed) == (MIB, MIB, 5 * MIB)
    assert device.headline.reserved_peak is None
    assert device.lanes == ()


def test_a_cut_recording_of_the_cpu_lacks_its_end():
    story = Story(kind="cpu", has_snapshot=False)
    story.at(10).alloc(MIB)
    story.at(20).alloc(MIB)
    device = analyse_device(story.device(), story.history(), context(truncated=True))
    assert device.headline.allocated_peak == 2 * MIB
    assert (device.headline.allocated_after, device.headline.stayed, device.headline.freed) == (None, None, None)
    assert device.missing["allocated_after"] == device.missing["stayed"] == CPU_OVERFLOW
    assert (device.markers[0].kind, device.markers[0].time_us) == ("overflow", START + 20)
    assert "after this point" in device.markers[0].text


def test_out_of_memory_names_the_line_and_what_it_asked_for():
    story = Story(reserved=64 * MIB)
    story.alloc(40 * MIB)
    story.at(7).oom(100 * MIB, 30 * MIB)
    device = analyse_device(story.device(), story.history(), context(placement=placed(story, {0: here(2), 1: here(4)})))
    assert (device.oom_request, device.oom_held) == (100 * MIB, 40 * MIB)
    assert device.oom_group is not None
    assert device.oom_group.label == "line 4"
    assert device.oom_group.source == "loss.backward()"
    (marker,) = device.markers
    assert (marker.time_us, marker.kind) == (START + 7, "oom")
    assert marker.text == "out of memory: 100 MiB asked for, the driver had 30.0 MiB free"


def test_returned_segments_are_a_retry_only_before_a_new_segment():
    story = Story(reserved=100 * MIB)
    story.segment(-20 * MIB)
    story.segment(-20 * MIB)
    story.segment(60 * MIB)
    story.alloc(MIB)
    story.segment(-60 * MIB)
    story.alloc(512)
    device = analyse_device(story.device(), story.history(), context())
    assert [marker.kind for marker in device.markers] == ["retry", "segment_free"]
    assert device.markers[0].text.startswith("40.0 MiB of cached segments returned")
    assert device.markers[1].text.startswith("60.0 MiB")


def test_lanes_hold_readings_and_samples_in_time_order():
    story = Story(reserved=MIB)
    story.at(100).segment(3 * MIB)
    story.alloc(MIB)
    samples = [Sample(START + 50, "cuda:0", None, None, 9 * MIB, None), Sample(START + 60, "cuda:1", None, None, 1, 1)]
    device = analyse_device(
        story.device(),
        story.history(),
        context(
            before=DeviceReading("cuda:0", START, device_used=8 * MIB),
            after=DeviceReading("cuda:0", START + 1000, allocated=MIB, device_used=12 * MIB),
            samples=samples,
        ),
    )
    reserved, used = device.lanes
    assert (reserved.name, reserved.shape) == ("reserved", "step")
    assert reserved.value.tolist() == [MIB, 4 * MIB, 4 * MIB]
    assert (reserved.time_us - START).tolist() == [0, 100, 1000]
    assert (used.name, used.shape, used.value.tolist()) == ("device used", "sample", [8 * MIB, 9 * MIB, 12 * MIB])


def test_a_clock_that_runs_backwards_stands_still():
    story = Story()
    story.at(100).alloc(MIB)
    story.at(40).alloc(MIB)
    story.at(120).alloc(MIB)
    timeline = analyse_device(story.device(), story.history(), context()).timeline
    assert (timeline.time_us - START).tolist() == [100, 100, 120]


def test_the_state_at_the_peaks_time_is_the_peak():
    story = Story()
    big = story.at(10).alloc(4 * MIB)
    story.free(big)
    story.alloc(MIB)
    device = analyse_device(story.device(), story.history(), context())
    timeline = device.timeline
    assert device.headline.peak_us is not None
    state = int(np.searchsorted(timeline.time_us, device.headline.peak_us, "right"))
    assert int(timeline.allocated[state]) == device.headline.allocated_peak == 4 * MIB


def test_history_warnings_reach_the_reader():
    story = Story()
    story.alloc(MIB)
    told = context()
    device = analyse_device(story.device(), story.history(exact=False, warnings=("allocated is not exact",)), told)
    assert told.notes[0].text == "cuda:0: allocated is not exact"
    assert not device.exact


def test_no_events_and_a_final_state():
    story = Story(reserved=2 * MIB)
    story.old(MIB)
    device = analyse_device(story.device(), story.history(), context())
    assert device.headline.allocated_peak == device.headline.allocated_after == MIB
    assert device.timeline.changes == 0


def test_colours_follow_the_code_not_the_size():
    story = Story()
    lines = {}
    for number, line in enumerate((4, 2, 3)):
        lines[number] = here(line)
        story.alloc((number + 1) * MIB)
    device = analyse_device(story.device(), story.history(), context(placement=placed(story, lines)))
    assert {g.line: g.color for g in device.groups if g.kind == "line"} == {2: 0, 3: 1, 4: 2}


def test_owners_beyond_counting_are_one(monkeypatch):
    monkeypatch.setattr("gpumem_magic.analysis.owners._MOST_GROUPS", 4)
    story = Story()
    lines = {}
    for line in range(1, 8):
        lines[len(story.events)] = here(line)
        story.alloc(line * MIB)
    device = analyse_device(story.device(), story.history(), context(placement=placed(story, lines)))
    assert labels(device, device.peak) == {
        "line 7": 7 * MIB,
        "line 6": 6 * MIB,
        "line 5": 5 * MIB,
        "4 smaller owners": 10 * MIB,
    }


def test_analysis_columns_cannot_be_written():
    story = Story()
    story.alloc(rounded(5))
    device = analyse_device(story.device(), story.history(), context())
    with pytest.raises(ValueError, match="read-only"):
        device.timeline.size[0] = 1
    assert replace(device).timeline is device.timeline


@pytest.mark.parametrize(
    ("before", "after", "calls"),
    [
        # Of nine flushes four were for requests that found no room.
        (Counts(10, 5, 1), Counts(13, 14, 5), 5),
        (Counts(0, 0, 0), Counts(3, 0, 0), 0),
        # Counters that were reset, or that saw other allocations than the recording.
        (Counts(10, 5, 1), Counts(3, 0, 0), None),
        (Counts(10, 5, 1), Counts(14, 14, 5), None),
        (None, Counts(3, 0, 0), None),
    ],
)
def test_calls_of_empty_cache_are_what_flushed_the_cache_for_no_request(before, after, calls):
    story = Story()
    story.old(1000)
    for size in (MIB, 2 * MIB, 512):
        story.alloc(size)
    reading = DeviceReading("cuda:0", START)
    known = {"before": replace(reading, counts=before), "after": replace(reading, counts=after)}
    device = analyse_device(story.device(), story.history(), context(**known))
    assert device.memory is not None
    assert device.memory.emptied == calls
    truncated = analyse_device(story.device(), story.history(), context(truncated=True, **known))
    assert truncated.memory is not None
    assert truncated.memory.emptied is None
