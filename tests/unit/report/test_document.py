"""The view document, read back as a view reads it and held against the analysis."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import make_documents  # type: ignore[import-not-found]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from story import START, Story  # type: ignore[import-not-found]
from view_reader import Reader, assert_shape  # type: ignore[import-not-found]

from gpumem_magic import read_snapshot
from gpumem_magic._errors import SnapshotError
from gpumem_magic.analysis.leaks.model import Growth, Leak, LeakLine, Once
from gpumem_magic.report.container import decode, encode
from gpumem_magic.report.document import detail_document, view_document
from gpumem_magic.report.report import Report
from gpumem_magic.report.sums import sum_arrays

DATA = Path(make_documents.HERE)
RECORDINGS = DATA.parent / "recordings"
GAP = 2**32 - 1


def documents():
    return {
        "complete": (make_documents.complete(), None),
        "aggregated": (make_documents.busy(400), 20_000),
        "counters": (make_documents.counters(), None),
        "gap": (make_documents.gap(), None),
    }


@pytest.mark.parametrize("name", ["complete", "aggregated", "counters", "gap"])
def test_the_shared_fixtures_are_what_this_code_writes(name):
    source, limit = documents()[name]
    header, arrays = decode(view_document(source, limit))
    kept_header, kept_arrays = decode((DATA / f"{name}.bin").read_bytes())
    del header["package"], kept_header["package"]
    assert header == kept_header
    assert all(np.array_equal(arrays[key], kept_arrays[key]) for key in {*arrays, *kept_arrays})


def test_counts_are_written_in_the_fewest_bytes_that_hold_them():
    columns: dict[str, np.ndarray] = {
        "a": np.array([0, 255], np.uint32),
        "b": np.array([256], np.uint32),
        "c": np.array([1 << 16], np.uint32),
        "d": np.array([], np.uint16),
        "e": np.array([1.0]),
        "f": np.array([-1], np.int32),
    }
    header, arrays = decode(encode({}, columns))
    assert {name: ref["dtype"] for name, ref in header["arrays"].items()} == {
        "a": "u1", "b": "u2", "c": "u4", "d": "u1", "e": "f8", "f": "i4"
    }  # fmt: skip
    assert all(np.array_equal(arrays[name], column) for name, column in columns.items())


@pytest.mark.parametrize("name", ["complete", "gap"])
def test_every_moment_adds_up_by_owner(name):
    data = (DATA / f"{name}.bin").read_bytes()
    expected = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    for index, device in enumerate(expected["devices"]):
        reader = Reader(data, index)
        assert_shape(reader)
        for moment in device["moments"]:
            sums = reader.state(moment["timeUs"])
            assert int(sums.sum()) == moment["allocated"]
            assert {str(g): int(v) for g, v in enumerate(sums) if v} == moment["byGroup"]
        peak = reader.state(device["peakUs"])
        assert int(peak.sum()) == device["allocatedPeak"]


def test_rows_close_with_the_rounding_row():
    header, _ = decode((DATA / "complete.bin").read_bytes())
    for device in header["devices"]:
        assert sum(row["bytes"] for row in device["peak"]) == device["headline"]["allocatedPeak"]
        assert sum(row["bytes"] for row in device["end"]) == device["headline"]["allocatedAfter"]


def test_an_aggregated_document_keeps_exact_totals_within_its_limit():
    source = make_documents.busy(400)
    device = source.devices[0]
    data = view_document(source, 20_000)
    assert len(data) <= 20_000
    reader = Reader(data)
    assert_shape(reader)
    rest = reader.device["timeline"]["rest"]
    folded = int((device.timeline.start == -1).sum()) - 1
    assert rest["lifetimes"] + reader.device["timeline"]["lifetimes"] + max(folded, 0) == device.timeline.lifetimes
    kept = int(reader.bytes.sum())
    assert rest["bytes"] + kept == int(device.timeline.size.sum())
    assert int(reader.state(device.headline.peak_us).sum()) == device.headline.allocated_peak
    edges = (reader.arrays["rest.t"] + reader.device["startUs"]).astype(np.int64)
    for edge in edges[1::37].tolist():
        change = int(np.searchsorted(device.timeline.time_us, edge, "right"))
        assert int(reader.state(edge).sum()) == int(device.timeline.allocated[change])
    assert reader.arrays["total.max"].max() == device.headline.allocated_peak
    # The largest by bytes × duration are the ones kept: what was there all the time is among them.
    assert reader.device["timeline"]["preexisting"] == 1


@pytest.mark.parametrize("name", ["lm_growing.c1", "streams.c0"])
def test_sums_are_exact_by_everything_that_a_picture_can_be_coloured_by(name):
    report = read_snapshot(RECORDINGS / f"{name}.pickle.xz")
    assert isinstance(report, Report)
    source = report.analysis
    device = source.devices[0]
    timeline, categories = device.timeline, device.categories
    assert categories is not None
    data = view_document(source, 24_000 if name == "lm_growing.c1" else 1_600)
    reader = Reader(data)
    rest = reader.device["timeline"]["rest"]
    assert rest["lifetimes"] > 0
    value = reader.arrays["rest.value"].reshape(-1, rest["bins"])
    edges = (reader.arrays["rest.t"] + reader.device["startUs"]).astype(np.int64)[1:]
    truths: dict[str, np.ndarray] = {
        "category": categories.category,
        "module": categories.module,
        "stream": timeline.stream,
    }
    single = {"category": reader.arrays["category"] & 0x7F, "module": reader.arrays["module"]}
    for at in range(0, rest["bins"], max(rest["bins"] // 7, 1)):
        change = int(np.searchsorted(timeline.time_us, edges[at], "right")) - 1
        alive = (timeline.start <= change) & ((timeline.end < 0) | (timeline.end > change))
        own = int(np.searchsorted(reader.time, edges[at], "right")) - 1
        kept = (reader.start <= own) & (reader.end > own)
        for key, truth in truths.items():
            found = np.bincount(reader.arrays[f"rest.{key}"], value[:, at], 300)
            found += np.bincount(single.get(key, reader.arrays["stream"])[kept], reader.bytes[kept], 300)
            assert found.astype(np.int64).tolist() == np.bincount(truth[alive], timeline.size[alive], 300).tolist()


def test_too_many_kinds_give_up_what_says_least_but_no_bytes():
    source = make_documents.busy(400)
    device = source.devices[0]
    lives = device.timeline.lifetimes
    categories = SimpleNamespace(category=np.zeros(lives, np.uint8), module=np.arange(lives, dtype=np.uint16))
    keep = np.zeros(lives, bool)
    arrays, summary = sum_arrays(replace(device, categories=categories), keep, 64, "")
    assert set(arrays["rest.module"].tolist()) == {0xFFFF}
    assert 0xFF not in arrays["rest.size"]
    totals = arrays["rest.value"].reshape(len(arrays["rest.module"]), -1).sum(axis=0)
    assert len(totals) == summary["bins"]
    last = np.searchsorted(device.timeline.time_us, arrays["rest.t"][1:] + device.start_us, "right")
    assert totals.astype(np.int64).tolist() == device.timeline.allocated[last].tolist()


def test_more_owners_than_rows_stay_apart_and_take_no_table_for_each_module():
    source = make_documents.busy(400)
    device = source.devices[0]
    lives = device.timeline.lifetimes
    assert lives > 257
    group = np.arange(lives, dtype=np.int32)
    module = np.full(lives, 0xFFFE, np.uint16)
    categories = SimpleNamespace(category=np.zeros(lives, np.uint8), module=module)
    apart = replace(device, timeline=replace(device.timeline, group=group), categories=categories)
    tracemalloc.start()
    arrays, summary = sum_arrays(apart, np.zeros(lives, bool), 64, "")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert arrays["rest.group"].tolist() == list(range(lives))
    assert set(arrays["rest.size"].tolist()) == {0xFF}
    assert most < 4 * arrays["rest.value"].nbytes + 16 * 2**20
    assert summary["lifetimes"] == lives


def test_what_grew_has_a_section_and_no_second_telling():
    source = make_documents.busy(4)
    group = source.devices[0].groups[0]
    leak = Leak("kept", "cuda:0", None, 4, 4, 512, 2048, (LeakLine(group, 512, 2048, 4),), sentence="it keeps more")
    once = Once("warm-up", "cuda:0", group, 4096, "warm-up: 4.00 KiB")
    device = replace(source.devices[0], growth=Growth((leak,), (), (once,), 4))
    header, _ = decode(view_document(replace(source, devices=(device,))))
    (told,) = header["devices"][0]["growth"]["leaks"]
    assert (told["sentence"], told["lines"][0]["label"], told["every"]) == ("it keeps more", group.label, 1)
    assert header["devices"][0]["growth"]["once"][0]["bytes"] == 4096
    assert not any("it keeps more" in note["text"] or "warm-up" in note["text"] for note in header["notes"])
    assert "growth" not in decode(view_document(source))[0]["devices"][0]


def test_a_gap_wider_than_32_bits_is_split():
    reader = Reader((DATA / "gap.bin").read_bytes())
    assert GAP in reader.arrays["t"].tolist()
    assert int(reader.time[-1]) == START + 7_200_000_001


def test_older_memory_is_folded_by_owner():
    story = Story()
    for _ in range(50):
        story.old(1024)
    story.alloc(512)
    source = make_documents.analysis(
        [make_documents.analyse_device(story.device(), story.history(), make_documents.context(story, end=10))]
    )
    reader = Reader(view_document(source))
    assert reader.device["timeline"]["preexisting"] == 1
    assert reader.bytes[0] == 50 * 1024
    assert next(row for row in reader.device["end"] if row["bytes"] == 50 * 1024)["blocks"] == 50


def test_a_stretch_on_demand_is_complete():
    source = make_documents.busy(40)
    device = source.devices[0]
    start, end = START + 10_000, START + 12_000
    reader = Reader(detail_document(source, 0, start, end, 1_000_000))
    assert_shape(reader)
    assert reader.device["timeline"]["rest"] is None
    assert (reader.device["startUs"], reader.device["endUs"]) == (start, end)
    times = device.timeline.time_us
    for time_us in times[(times >= start) & (times <= end)][::7].tolist():
        change = int(np.searchsorted(times, time_us, "right"))
        assert int(reader.state(time_us).sum()) == int(device.timeline.allocated[change])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9000), st.integers(0, 9)), max_size=40),
    st.integers(300, 3000),
)
def test_any_recording_survives_any_limit(plan, limit):
    story = Story()
    alive = [story.old(700)]
    now = 0
    for wait, size, victim in plan:
        now += wait
        story.at(now)
        if victim < 4 and alive:
            story.free(alive.pop(victim % len(alive)))
        else:
            alive.append(story.alloc(size, stack=victim % 3))
    device = make_documents.analyse_device(story.device(), story.history(), make_documents.context(story, end=now + 9))
    for data in (
        view_document(make_documents.analysis([device])),
        view_document(make_documents.analysis([device]), limit),
    ):
        reader = Reader(data)
        assert_shape(reader)
        last = int(reader.state(reader.device["endUs"]).sum())
        assert last == device.headline.allocated_after
        # A bin's value is that of its end, so the very start has none.
        if device.headline.peak_us > reader.device["startUs"] or reader.device["timeline"]["rest"] is None:
            assert int(reader.state(device.headline.peak_us).sum()) == device.headline.allocated_peak


def test_equal_documents_are_equal_bytes():
    assert view_document(make_documents.gap()) == view_document(make_documents.gap())


def test_it_says_what_it_discloses():
    header, _ = decode((DATA / "complete.bin").read_bytes())
    assert header["discloses"] == "Contains 4 lines of source and 3 file paths."
    header, _ = decode((DATA / "empty.bin").read_bytes())
    assert header["discloses"] == "Contains no source and no file paths."
    assert header["devices"] == []


def test_lone_surrogates_and_long_lanes():
    source = make_documents.gap()
    device = source.devices[0]
    count = 50_000
    time_us = np.arange(count, dtype=np.int64) + device.start_us
    value = np.arange(count, dtype=np.int64) % 97
    value[31_234] = 1_000_000
    lane = replace(device.lanes[0], time_us=time_us, value=value)
    data = view_document(replace(source, title="a\udc80b", devices=(replace(device, lanes=(lane,)),)))
    header, arrays = decode(data)
    assert header["title"] == "a?b"
    assert len(arrays["d0.lane0.v"]) <= 8200
    assert arrays["d0.lane0.v"].max() == 1_000_000
    assert arrays["d0.lane0.v"][-1] == value[-1]
    assert np.all(np.diff(arrays["d0.lane0.t"]) > 0)


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"hello", encode({"a": 1}, {})[:-12]])
def test_damaged_containers_are_refused(data):
    with pytest.raises(SnapshotError, match="not a readable gpumem-view document"):
        decode(data)


def test_a_document_that_unpacks_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("gpumem_magic.report.container._MOST_UNPACKED", 1000)
    with pytest.raises(SnapshotError, match="not one of ours"):
        decode(encode({"a": "b" * 5000}, {}))


def test_another_version_is_refused():
    import gzip

    raw = gzip.decompress(encode({}, {}))
    with pytest.raises(SnapshotError, match="version 1"):
        decode(gzip.compress(raw.replace(b'"version":1', b'"version":9')))
