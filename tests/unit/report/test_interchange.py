"""Exports for other tools hold what their formats document, and add up to the report's own numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import make_documents  # type: ignore[import-not-found]
import pytest

from gpumem_magic import read_snapshot
from gpumem_magic._errors import BadUsageError, ExportError
from gpumem_magic.cli import main
from gpumem_magic.report.container import decode
from gpumem_magic.report.interchange import exported
from gpumem_magic.report.interchange.lives import read_lives
from gpumem_magic.report.interchange.perfetto import _nested, trace_events
from gpumem_magic.report.questions import Questions
from gpumem_magic.report.report import Report

DATA = Path(make_documents.HERE)
RECORDINGS = DATA.parent / "recordings"
FIXTURES = ("complete", "aggregated", "gap", "empty", "counters")
# What the Trace Event Format asks of each phase that is used, beside ph, pid and tid.
NEEDED = {
    "M": {"name", "args"},
    "C": {"name", "ts", "args"},
    "X": {"name", "ts", "dur"},
    "i": {"name", "ts", "s"},
    "b": {"name", "ts", "cat", "id2"},
    "e": {"name", "ts", "cat", "id2"},
}


def document(name):
    if name in FIXTURES:
        return (DATA / f"{name}.bin").read_bytes()
    return read_snapshot(RECORDINGS / f"{name}.pickle.xz").to_document()


@pytest.mark.parametrize("name", [*FIXTURES, "lm_growing.c1", "multi_gpu", "oom_growth", "streams.c0"])
def test_speedscope_profiles_have_the_documented_form_and_add_up(name):
    data = document(name)
    made = json.loads(exported(data, "speedscope"))
    header, _ = decode(data)
    assert made["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert {"shared", "profiles"} <= set(made)
    frames = made["shared"]["frames"]
    assert all(isinstance(frame["name"], str) and frame.get("line", 1) > 0 for frame in frames)
    assert len(made["profiles"]) == 2 * len(header["devices"])
    for index, profile in enumerate(made["profiles"]):
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "bytes", 0)
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"]
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)
        headline = header["devices"][index // 2]["headline"]
        # Counters know no owner at the peak, which may lie between two samples.
        if index % 2 or name != "counters":
            expected = headline["allocatedAfter"] if index % 2 else headline["allocatedPeak"]
            assert profile["endValue"] == expected
    if header["devices"]:
        peaks = [device["headline"]["allocatedPeak"] for device in header["devices"]]
        assert made["activeProfileIndex"] == 2 * peaks.index(max(peaks))


def test_speedscope_stacks_begin_with_the_outermost_frame():
    made = json.loads(exported(document("lm_growing.c1"), "speedscope"))
    names = [frame["name"] for frame in made["shared"]["frames"]]
    samples = [[names[frame] for frame in sample] for sample in made["profiles"][0]["samples"]]
    with_stack = [sample for sample in samples if len(sample) > 1]
    assert len(with_stack) > 5
    assert {sample[0] for sample in with_stack} == {"<module>"}


@pytest.mark.parametrize("name", [*FIXTURES, "lm_growing.c1", "oom_growth"])
def test_traces_have_the_documented_form_and_the_peak(name):
    data = document(name)
    made = json.loads(exported(data, "perfetto"))
    header, _ = decode(data)
    events = made["traceEvents"]
    for event in events:
        assert event["ph"] in NEEDED
        assert set(event) >= NEEDED[event["ph"]] | {"pid", "tid"}
        assert event.get("dur", 0) >= 0
    for index, device in enumerate(header["devices"]):
        own = [event for event in events if event["pid"] == index + 1]
        counters = [event for event in own if event["ph"] == "C" and event["name"] == "allocated"]
        values = [event["args"]["bytes"] for event in counters]
        times = [event["ts"] for event in counters]
        assert times == sorted(times)
        assert device["startUs"] <= times[0] <= times[-1] <= device["endUs"]
        if name != "counters":
            assert max(values) == device["headline"]["allocatedPeak"]
            assert values[-1] == device["headline"]["allocatedAfter"]
        beside = [event for event in events if event["pid"] == len(header["devices"]) + index + 1]
        assert {event["ph"] for event in beside} <= {"M", "b", "e"}
        begun = {event["id2"]["local"]: event for event in beside if event["ph"] == "b"}
        ended = {event["id2"]["local"]: event for event in beside if event["ph"] == "e"}
        assert len(begun) + len(ended) + 1 == len(beside) or not beside
        assert set(begun) == set(ended)
        assert all(begun[key]["ts"] <= ended[key]["ts"] for key in begun)
        assert {event["name"] for event in own if event["ph"] == "C"} >= {lane["name"] for lane in device["lanes"]}


@pytest.mark.parametrize("name", [*FIXTURES, "lm_growing.c1", "oom_growth"])
def test_what_each_owner_held_most_is_the_top_of_its_curve(name):
    header, arrays = decode(document(name))
    for index, device in enumerate(header["devices"]):
        lives = read_lives(header, arrays, index)
        count = len(device["groups"])
        tops = [int(max(lives.curve(number)[1], default=0)) for number in range(count)]
        assert lives.peaks(count).tolist() == tops
        assert any(tops) or name in {"empty", "counters"}


def test_what_a_trace_leaves_out_it_says():
    made = json.loads(exported(document("lm_growing.c1"), "perfetto"))
    assert sum(event["ph"] == "b" for event in made["traceEvents"]) == 5_000
    assert made["otherData"]["left_out"] == ["cuda:0: 5,874 smaller allocations are in the counters only"]
    summed = json.loads(exported(document("aggregated"), "perfetto"))["otherData"]["left_out"]
    rest = decode(document("aggregated"))[0]["devices"][0]["timeline"]["rest"]["lifetimes"]
    assert rest > 0
    assert summed == [f"cuda:0: {rest:,} smaller allocations are in the counters only"]


def test_the_command_writes_both_from_a_snapshot_and_from_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recording = RECORDINGS / "streams.c0.pickle.xz"
    assert main(["export", str(recording), "--to", "perfetto"]) == 0
    assert capsys.readouterr().out.startswith("wrote streams.c0.perfetto.json (")
    assert json.loads((tmp_path / "streams.c0.perfetto.json").read_text("utf-8"))["traceEvents"]
    assert main(["report", str(recording), "-o", "r.html"]) == 0
    assert main(["export", "r.html", "--to", "speedscope", "-o", "s.json"]) == 0
    from_report = json.loads((tmp_path / "s.json").read_text("utf-8"))
    from_file = json.loads(exported(document("streams.c0"), "speedscope"))
    assert from_report["profiles"] == from_file["profiles"]
    capsys.readouterr()
    assert main(["export", "r.html", "--to", "speedscope", "-o", "s.json"]) == 1
    assert "exists: choose another name" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["export", "r.html", "--to", "pprof"])
    assert stopped.value.code == 2


def test_a_report_saves_by_the_name_and_a_view_may_ask(tmp_path):
    report = read_snapshot(RECORDINGS / "streams.c0.pickle.xz")
    assert isinstance(report, Report)
    target = report.save(tmp_path / "a.speedscope.json")
    assert json.loads(target.read_text("utf-8"))["profiles"]
    with pytest.raises(ExportError, match="exists"):
        report.save(target)
    replies = []
    questions = Questions(report)
    questions.answer({"kind": "export", "id": 1, "what": "perfetto"}, lambda *reply: replies.append(reply))
    ((reply, buffers),) = replies
    assert reply == {"kind": "export", "id": 1, "error": None}
    assert json.loads(buffers[0])["traceEvents"]


def test_an_unknown_format_is_told_which_there_are():
    with pytest.raises(BadUsageError, match="there are perfetto and speedscope"):
        exported(document("gap"), "pprof")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit for a file's size there")
@pytest.mark.parametrize("name", ["a.speedscope.json", "a.perfetto.json", "a.pickle"])
def test_a_disk_that_is_full_leaves_no_part_of_a_file(tmp_path, name):
    import resource

    report = read_snapshot(RECORDINGS / "streams.c0.pickle.xz")
    assert isinstance(report, Report)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ExportError, match="File too large"):
            report.save(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    assert report.save(tmp_path / name).stat().st_size > 100


def test_slices_of_a_thread_nest_and_threads_have_numbers_of_their_own():
    spans: list[tuple[str, int, int, dict[str, str]]] = [
        ("b", 5, 15, {}),
        ("a", 0, 10, {}),
        ("inner", 0, 4, {}),
        ("in b", 6, 15, {}),
        ("after", 10, 12, {}),
        ("x", 11, 9, {}),
    ]
    first, second = _nested(spans)
    assert first == [("a", 0, 10, {}), ("inner", 0, 4, {}), ("after", 10, 12, {}), ("x", 11, 11, {})]
    assert second == [("b", 5, 15, {}), ("in b", 6, 15, {})]
    made = json.loads(exported(document("multi_gpu"), "perfetto"))["traceEvents"]
    process_of: dict[int, set[int]] = {}
    for event in made:
        process_of.setdefault(event["tid"], set()).add(event["pid"])
    assert {frozenset(pids) for pids in process_of.values()} == {frozenset({pid}) for pid in (1, 2, 3, 4)}
    assert 0 not in process_of


def test_overlapping_regions_of_two_threads_are_drawn_in_two():
    header, arrays = decode(document("complete"))
    start = header["devices"][0]["startUs"]
    header["devices"][0]["regions"] = [
        {"name": name, "startUs": start + a, "endUs": start + b} for name, a, b in (("load", 0, 60), ("train", 30, 90))
    ]
    events = trace_events(header, arrays)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = [
        (names[event["tid"]], event["name"]) for event in events if event["ph"] == "X" and event["cat"] == "regions"
    ]
    assert slices == [("regions", "load"), ("regions 2", "train")]
