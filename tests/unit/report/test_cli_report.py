"""``report`` and ``diff`` on the command line: what they print, write and refuse."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

import pytest

from gpumem_magic import read_snapshot
from gpumem_magic.cli import main
from gpumem_magic.report.comparison import Comparison
from gpumem_magic.report.container import decode, encode
from gpumem_magic.report.reading import is_report, read_report

DATA = Path(__file__).parents[2] / "data" / "recordings"
MLP = str(DATA / "mlp_train.c0.pickle.xz")
LEAK = str(DATA / "leak_losses.c0.pickle.xz")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_report_writes_beside_you_and_prints_the_sentence(tmp_path, capsys):
    assert main(["report", MLP]) == 0
    target = tmp_path / "mlp_train.c0.html"
    assert is_report(target)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Peak 710 MiB at workloads.py:22 mlp_train, 65.0 MiB stayed")
    assert lines[-1].startswith("wrote mlp_train.c0.html (")


def test_report_goes_where_it_is_told_and_over_its_own_kind_only(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert main(["report", MLP, "-o", "out"]) == 0
    assert is_report(tmp_path / "out" / "gpumem-mlp_train.c0.pickle.xz.html")
    assert main(["report", MLP, "-o", "x.html"]) == main(["report", MLP, "-o", "x.html"]) == 0
    (tmp_path / "mine.html").write_text("<p>", "utf-8")
    capsys.readouterr()
    assert main(["report", MLP, "-o", "mine.html"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gpumem-magic: ")
    assert error.endswith("mine.html exists and is not a gpumem report: choose another name or delete it first\n")


def test_report_without_source_names_no_folder(tmp_path):
    assert main(["report", MLP, "-o", "full.html"]) == main(["report", MLP, "-o", "bare.html", "--no-source"]) == 0
    assert b"/home/user" in (tmp_path / "full.html").read_bytes()
    assert b"/home/user" not in (tmp_path / "bare.html").read_bytes()


def test_diff_adds_up_to_both_peaks(capsys):
    assert main(["diff", LEAK, MLP, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"file", "line", "function", "bytes_a", "bytes_b", "end_bytes_a", "end_bytes_b"} <= set(found["groups"][0])
    for side in "ab":
        (device,) = found[side]["devices"]
        assert sum(group[f"bytes_{side}"] for group in found["groups"]) == device["allocated_peak"]
        assert sum(group[f"end_bytes_{side}"] for group in found["groups"]) == device["allocated_end"]


def test_diff_of_two_devices_keeps_them_apart(capsys):
    two = str(DATA / "multi_gpu.pickle.xz")
    assert main(["diff", two, two, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {group["device"] for group in found["groups"]} == {"cuda:0", "cuda:1"}
    assert main(["diff", two, two]) == 0
    out = capsys.readouterr().out
    assert "  no line differs\n" in out
    assert "cuda:1: peak 173 MiB → 173 MiB (0 B), end 168 MiB → 168 MiB (0 B), reserved 192 MiB → 192 MiB (0 B)" in out


def test_diff_prints_the_largest_change_first_and_counts_the_rest(capsys):
    assert main(["diff", LEAK, MLP, "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpumem: B's peak is 67.3 MiB lower (777 MiB → 710 MiB): workloads.py:113")
    assert lines[1] == "  A: leak_losses.c0.pickle.xz"
    assert lines[3].startswith("  cuda:0: peak 777 MiB → 710 MiB (-67.3 MiB), end 697 MiB → 65.0 MiB")
    assert "workloads.py:113" in lines[5]
    assert "more changed" in lines[6]


def test_diff_takes_exported_reports(capsys):
    assert main(["report", MLP, "-o", "a.html"]) == 0
    capsys.readouterr()
    assert main(["diff", "a.html", MLP]) == 0
    assert "  no line differs\n" in capsys.readouterr().out


def test_diff_writes_one_file_and_keeps_stdout_for_json(capsys):
    assert main(["diff", LEAK, MLP, "--json", "-o", "d.html"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["sentence"].startswith("B's peak is 67.3 MiB lower")
    assert captured.err.startswith("wrote ")
    assert is_report("d.html")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["report", "nothing.pickle"], 1, "nothing.pickle: cannot be read"),
        (["diff", MLP, "nothing.pickle"], 1, "nothing.pickle: cannot be read"),
        (["diff", MLP, MLP, "--top", "-1"], 2, "give a number of rows"),
        (["report", MLP, "-o", "no/where.html"], 1, "does not exist; create it first"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, code, text):
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["diff", str(pipe), str(pipe)]) == 1
    assert "not a regular file" in capsys.readouterr().err


def altered(path, change):
    """Write an exported report with another header."""
    page = path.read_bytes()
    (packed,) = re.findall(rb'id="gpumem-document">([A-Za-z0-9+/=]+)<', page)
    header, arrays = decode(base64.b64decode(packed))
    del header["arrays"]
    change(header)
    path.write_bytes(page.replace(packed, base64.b64encode(encode(header, arrays))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header.pop("sentence"), "not a readable report ('sentence')"),
        (lambda header: header.update(devices=[[]]), "not a readable report"),
        (lambda header: header.pop("frames"), "is damaged (KeyError: 'frames')"),
        (lambda header: header["devices"][0]["timeline"].update(rest={"bytes": 1}), "is damaged (KeyError: 'bins')"),
        (lambda header: header["stacks"].__setitem__(slice(None), [None]), "is damaged (IndexError: "),
    ],
)
def test_a_damaged_report_is_one_line_that_names_it(tmp_path, capsys, change, words):
    assert main(["report", MLP, "-o", "x.html"]) == 0
    altered(tmp_path / "x.html", change)
    capsys.readouterr()
    assert main(["export", "x.html", "--to", "speedscope"]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_name_from_a_report_cannot_steer_the_terminal(tmp_path):
    assert main(["report", MLP, "-o", "x.html"]) == 0
    altered(tmp_path / "x.html", lambda header: header.update(title="\x1b[31mred", sentence="\x1b[2J"))
    report = read_report("x.html")
    assert report.to_text() == r"gpumem: \x1b[2J"
    assert "\x1b" not in repr(report)
    comparison = Comparison(report, read_snapshot(MLP))
    assert "\x1b" not in comparison.to_text() + repr(comparison)
    assert r"\x1b[31mred" in comparison.to_text()
    # What stands in for a character is the same as in every other text.
    assert "reserved 738 MiB -> 738 MiB" in comparison.to_text(encoding="ascii")
    assert "?" not in comparison.to_text(encoding="ascii")
