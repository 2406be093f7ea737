"""Two recordings side by side: one document whose parts stay what they were, aligned rows, equal colours."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic import _reports
from gpumem_magic._errors import BadUsageError, ExportError, SnapshotError
from gpumem_magic.analysis.diff import Side, compare, side_device
from gpumem_magic.analysis.model import Group, Row
from gpumem_magic.report import build
from gpumem_magic.report.comparison import Comparison
from gpumem_magic.report.container import decode
from gpumem_magic.report.diff_text import diff_text
from gpumem_magic.report.reading import read_report
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"


def report_of(name: str):
    return build(read_trace(DATA / f"{name}.pickle.xz"), title=name)


@pytest.fixture(scope="module")
def mlp():
    return report_of("mlp_train.c0")


@pytest.fixture(scope="module")
def leak():
    return report_of("leak_losses.c0")


def side(groups: list[Group], bytes_: list[int]) -> Side:
    rows = [Row(index, size, 1) for index, size in enumerate(bytes_)]
    return Side("x", {"cuda:0": side_device(groups, rows, rows, (sum(bytes_), sum(bytes_)))})


def frame(file: str, line: int, function: str) -> Group:
    return Group("frame", f"{file}:{line}", file=file, line=line, function=function)


def test_the_merged_document_holds_both_as_they_were(mlp, leak):
    header, arrays = decode(Comparison(mlp, leak).to_document())
    head_a, arrays_a = decode(mlp.to_document())
    head_b, arrays_b = decode(leak.to_document())
    assert [device["key"] for device in header["devices"]] == ["cuda:0", "cuda:0"]
    for name, array in arrays_a.items():
        np.testing.assert_array_equal(arrays[name], array)
    for name, array in arrays_b.items():
        if not name.endswith(".stack"):
            np.testing.assert_array_equal(arrays[name.replace("d0.", "d1.")], array)

    def texts(head, stack):
        frames = (head["frames"][frame] for frame in head["stacks"][stack])
        return [(head["strings"][file], line, head["strings"][function]) for file, line, function in frames]

    assert len({int(stack) for stack in arrays["d1.stack"]}) > 3
    for merged, own in zip(arrays["d1.stack"].tolist(), arrays_b["d0.stack"].tolist(), strict=True):
        assert texts(header, merged) == texts(head_b, own)
    for merged, own in zip(arrays["d0.stack"].tolist(), arrays_a["d0.stack"].tolist(), strict=True):
        assert texts(header, merged) == texts(head_a, own)


def test_rows_add_up_and_name_the_groups_of_both(mlp, leak):
    header = decode(Comparison(mlp, leak).to_document())[0]
    (device,) = header["compare"]["devices"]
    for name, column, when, total in (
        ("a", "bytesA", "peak", "allocatedPeak"),
        ("b", "bytesB", "peak", "allocatedPeak"),
        ("a", "endA", "end", "allocatedAfter"),
        ("b", "endB", "end", "allocatedAfter"),
    ):
        own = header["devices"][device[name]]
        assert sum(row[column] for row in device["rows"]) == own["headline"][total]
        for row in device["rows"]:
            mine = {entry["group"]: entry["bytes"] for entry in own[when]}
            assert row[column] == sum(mine.get(group, 0) for group in row[name])


def test_equal_owners_have_equal_colours_and_no_two_share_one(mlp):
    other = report_of("mlp_train.c1")
    header = decode(Comparison(mlp, other).to_document())[0]
    (device,) = header["compare"]["devices"]
    seen: dict[int, int] = {}
    for number, row in enumerate(device["rows"]):
        groups = [header["devices"][index]["groups"][g] for index, own in ((0, row["a"]), (1, row["b"])) for g in own]
        colours = {group["color"] for group in groups if group["kind"] in {"line", "frame"}}
        assert len(colours) <= 1
        for colour in colours - {255}:
            assert seen.setdefault(colour, number) == number
    assert seen
    assert max(seen) < 9


def test_what_filled_the_picture_between_has_a_colour_of_its_own():
    a, b = report_of("oom_fragmented"), report_of("streams.c0")
    header = decode(Comparison(a, b).to_document())[0]
    owners: dict[int, set[str]] = {}
    for device in header["devices"]:
        for group in device["groups"]:
            if group["kind"] in {"line", "frame"}:
                owners.setdefault(group["color"], set()).add(group["label"])
    # Line 231 holds 3.52 GiB in between, and nothing at the peak and the end.
    assert {"workloads.py:231 oom_fragmented"} in owners.values()
    assert all(len(labels) == 1 for color, labels in owners.items() if color != 255)


def test_a_line_that_an_edit_moved_is_the_same_line():
    a = side([frame("/a/t.py", 10, "f"), frame("/a/t.py", 20, "f"), frame("/a/t.py", 7, "g")], [1, 2, 3])
    b = side([frame("/b/t.py", 13, "f"), frame("/b/t.py", 23, "f"), frame("/b/t.py", 7, "g")], [1, 2, 5])
    rows = compare(a, b).rows
    assert [(row.group.line, row.bytes_a, row.bytes_b) for row in rows] == [(7, 3, 5), (23, 2, 2), (13, 1, 1)]
    # Lines that moved by different amounts, or too far, are different code.
    for lines in ((13, 24), (110, 120)):
        moved = side([frame("/b/t.py", line, "f") for line in lines], [1, 2])
        assert len(compare(side([frame("/a/t.py", 10, "f"), frame("/a/t.py", 20, "f")], [1, 2]), moved).rows) == 4


def test_an_edited_line_of_a_cell_keeps_its_place():
    a = side([Group("line", "line 2", source="x = f(3)"), Group("line", "line 3", source="y = 1")], [3, 1])
    b = side([Group("line", "line 2", source="x = f(9)"), Group("line", "line 4", source="y = 1")], [9, 1])
    rows = compare(a, b).rows
    assert [(row.group.label, row.bytes_a, row.bytes_b) for row in rows] == [("line 2", 3, 9), ("line 4", 1, 1)]
    assert compare(a, b).sentence == "B's peak is 6 B higher (4 B → 10 B): line 2 `x = f(9)` +6 B."


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ([4], [4], "Both peak at 4 B, held by the same lines."),
        ([8 << 20], [(8 << 20) + 9], "Both peak at 8.00 MiB, but t.py:1 +9 B."),
        ([9], [4], "B's peak is 5 B lower (9 B → 4 B): t.py:1 -5 B."),
    ],
)
def test_sentences(before, after, sentence):
    groups = [frame("t.py", 1, "f")]
    assert compare(side(groups, before), side(groups, after)).sentence == sentence


def test_what_was_sampled_in_one_only_is_not_called_nothing_in_the_other():
    line, whole = Group("line", "line 2", source="x = f(3)"), Group("unknown", "this process's host memory")
    tensors = Side("In [1]", {"cpu": side_device([line], [Row(0, 9, 1)], [], (9, 0))})
    sampled = Side("In [2]", {"host": side_device([whole], [Row(0, 480, 0)], [Row(0, 300, 0)], (480, 300))})
    diff = compare(tensors, sampled)
    assert diff.sentence == "B's peak is 9 B lower (9 B → 0 B): line 2 `x = f(3)` -9 B."
    assert [row.device for row in diff.rows] == ["cpu"]
    assert "\n  host: sampled in In [2] only, not compared\n" in diff_text(diff, 10)
    assert compare(Side("In [1]", {}), sampled).sentence == "Nothing to compare: host was sampled in In [2] only."
    assert compare(sampled, sampled).sentence == "Both peak at 480 B, held by the same lines."


def test_equal_peaks_name_what_another_setting_reserved():
    a, b = (report_of(f"convnet_varres.{which}") for which in ("c0", "c1"))
    text = Comparison(a, b).to_text()
    assert "Both peak at 2.62 GiB, held by the same lines; reserved 6.75 GiB → 2.70 GiB.\n" in text
    assert "(0 B), reserved 6.75 GiB → 2.70 GiB (-4.05 GiB)\n" in text
    assert "reserved" not in Comparison(a, a).sentence


def test_the_html_is_one_file_within_its_limit(mlp, leak, tmp_path):
    comparison = Comparison(mlp, leak)
    path = comparison.save(tmp_path)
    assert path.name == "gpumem-diff-mlp_train.c0-to-leak_losses.c0.html"
    data = path.read_bytes()
    assert len(data) <= 12 * (mlp.events + leak.events) + 400_000
    assert not re.search(rb"(?:src|href)=[\"']?https?:", data)
    with pytest.raises(SnapshotError, match="is itself a comparison"):
        read_report(path)


def test_an_exported_report_is_an_operand_that_holds_no_more(mlp, leak, tmp_path):
    exported = read_report(mlp.save(tmp_path / "a.html"))
    assert (exported.title, exported.events, exported.devices) == ("mlp_train.c0", mlp.events, ("cuda:0",))
    comparison = Comparison(exported, leak)
    assert comparison.sentence == Comparison(mlp, leak).sentence
    assert decode(comparison.to_document())[0]["compare"]["titles"] == ["mlp_train.c0", "leak_losses.c0"]
    with pytest.raises(SnapshotError, match="holds no finer detail"):
        comparison.detail(0, 0, 1)
    assert decode(comparison.detail(1, leak.analysis.started_us, leak.analysis.ended_us))[0]["devices"]
    with pytest.raises(ExportError, match="export it again"):
        comparison.without_source()


def test_without_source_no_folder_is_left(mlp, leak):
    assert b"/home/user" in decode_text(Comparison(mlp, leak).to_document())
    bare = Comparison(mlp, leak).without_source()
    assert b"/home/user" not in decode_text(bare.to_document())


def decode_text(document: bytes) -> bytes:
    return gzip.decompress(document)


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.setattr(_reports, "_kept", [])


def named(report, title: str):
    return replace(report, analysis=replace(report.analysis, title=title))


@pytest.mark.usefixtures("shelf")
def test_reports_are_found_by_label_and_age(mlp):
    with pytest.raises(BadUsageError, match="nope is no file, and no cell was measured yet: put %%gpumem on"):
        _reports.find("nope")
    runs = [named(mlp, title) for title in ("train", "other", "train")]
    for run in runs:
        _reports.keep(run)
    assert _reports.find("train") is runs[2]
    assert _reports.find("train~1") is runs[0]
    assert _reports.find("last") is runs[2]
    for wrong, message in (
        ("train~2", "only 2 of that name are still held"),
        ("nope", "neither a file nor a measured cell; held are train, other"),
        ("train~x", "write train~1"),
    ):
        with pytest.raises(BadUsageError, match=message):
            _reports.find(wrong)


@pytest.mark.usefixtures("shelf")
def test_old_reports_are_given_up_and_the_last_never(mlp, monkeypatch):
    runs = [named(mlp, str(number)) for number in range(4)]
    monkeypatch.setattr(_reports, "_MOST_BYTES", int(mlp.nbytes * 2.5))
    assert mlp.nbytes > mlp.events * 50
    for run in runs:
        _reports.keep(run)
    assert _reports.kept() == (runs[2], runs[3])
    monkeypatch.setattr(_reports, "_MOST_BYTES", 1)
    _reports.keep(runs[0])
    assert _reports.kept() == (runs[0],)
