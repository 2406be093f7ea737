"""`gpumem-magic summary` and `peak`, as a user or a script runs them."""

from __future__ import annotations

import json
import lzma
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gpumem_magic import cli
from gpumem_magic.cli.snapshot import print_table

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
TRUTH = json.loads((RECORDINGS / "truth.json").read_text())
ROWS = [row for row in TRUTH["rows"] if row["recording"]]


def path(name):
    return str(RECORDINGS / f"{name}.pickle.xz")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = cli.main([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recording"])
def test_summary_is_torchs_own_count(run, row):
    code, out, err = run("summary", path(row["recording"]), "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["warnings"] == []
    (device,) = result["devices"]
    for counter in ("requested", "allocated", "active", "reserved"):
        assert device[counter]["peak"] == row[f"{counter}_peak"]
        assert device[counter]["start"] == 0
        assert device["span_us"][0] <= device[counter]["peak_time_us"] <= device["span_us"][1]
    assert device["allocated"]["end"] == row["allocated_end"]
    assert device["reserved"]["end"] == row["reserved_end"]
    assert (device["device"], device["ooms"], device["retries"]) == (
        "cuda:0",
        row["num_ooms"],
        row["num_alloc_retries"],
    )
    assert (device["truncated"], device["exact"]) == (False, True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recording"])
def test_peak_adds_up(run, row):
    code, out, _ = run("peak", path(row["recording"]), "--json")
    assert code == 0
    result = json.loads(out)
    assert result["allocated_peak"] == row["allocated_peak"]
    assert sum(group["bytes"] for group in result["groups"]) == result["requested_bytes"]
    assert result["requested_bytes"] + result["rounding_bytes"] == result["allocated_peak"]
    assert all(set(group) >= {"file", "line", "function", "bytes", "blocks"} for group in result["groups"])


# The random programs were recorded without stacks.
WITH_STACKS = [row["recording"] for row in ROWS if not row["recording"].startswith("fuzz")]


@pytest.mark.parametrize("name", [*WITH_STACKS, "multi_gpu", "mlp_train.cppstacks"])
def test_every_byte_at_the_peak_of_a_recording_with_stacks_has_a_line(run, name):
    for device in json.loads(run("summary", path(name), "--json")[1])["devices"]:
        result = json.loads(run("peak", path(name), "--device", device["device"], "--json")[1])
        assert [group for group in result["groups"] if group["file"] is None] == []
        assert all(0 < group.get("inferred_bytes", 1) <= group["bytes"] for group in result["groups"])


def test_inferred_lines_are_marked(run):
    groups = json.loads(run("peak", path("mlp_train.c0"), "--json")[1])["groups"]
    assert [(g["line"], g["bytes"], g["inferred_bytes"]) for g in groups if "inferred_bytes" in g] == [
        (21, 167919656, 167919656)
    ]


def test_two_devices(run):
    result = json.loads(run("summary", path("multi_gpu"), "--json")[1])
    assert [device["device"] for device in result["devices"]] == ["cuda:0", "cuda:1"]
    for device in result["devices"]:
        expected = TRUTH["multi_gpu"][device["device"].removeprefix("cuda:")]
        assert device["allocated"]["peak"] == expected["allocated_peak"]
        assert device["reserved"]["peak"] == expected["reserved_peak"]
    # The one with the highest peak, or the one that is asked for.
    assert json.loads(run("peak", path("multi_gpu"), "--json")[1])["device"] == "cuda:0"
    for name in ("1", "cuda:1"):
        result = json.loads(run("peak", path("multi_gpu"), "--device", name, "--json")[1])
        assert (result["device"], result["allocated_peak"]) == ("cuda:1", TRUTH["multi_gpu"]["1"]["allocated_peak"])


def test_top_keeps_the_sum(run):
    everything = json.loads(run("peak", path("mlp_train.c0"), "--json")[1])
    result = json.loads(run("peak", path("mlp_train.c0"), "--json", "--top", "2")[1])
    assert len(result["groups"]) == 3
    assert result["groups"][:2] == everything["groups"][:2]
    assert result["groups"][2]["reason"] == f"{len(everything['groups']) - 2} other lines"
    assert sum(group["bytes"] for group in result["groups"]) == result["requested_bytes"]


def test_the_users_line_is_named(run):
    groups = json.loads(run("peak", path("mlp_train.cppstacks"), "--json")[1])["groups"]
    named = [group for group in groups if group["file"]]
    assert named
    assert all(group["file"] == "/home/user/train/workloads.py" for group in named)
    code, out, _ = run("peak", path("mlp_train.c0"), "--top", "3")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("cuda:0: peak 710 MiB allocated at ")
    assert lines[-2].endswith("rounding and unsplit remainders")
    assert lines[-1].startswith("  160 MiB of this has no stack (autograd's thread) and stands at the line")
    assert any("/home/user/train/workloads.py:" in line for line in lines)


def test_summary_as_text(run):
    code, out, err = run("summary", path("oom_fragmented"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("cuda:0: 986 events in 17 ms, from ")
    assert lines[1].split() == ["before", "peak", "end", "peak", "at"]
    # Columns are aligned at their right.
    assert len({len(line) for line in lines[1:6]}) == 1
    assert lines[5].split() == ["reserved", "0", "B", "4.00", "GiB", "4.00", "GiB", "+15", "ms"]
    assert lines[6].strip() == "out of memory: 2, retries after freeing the cache: 2"


def test_a_recording_that_began_late_says_so(run, tmp_path):
    snapshot = pickle.loads(lzma.decompress(Path(path("mlp_train.c0")).read_bytes()))  # noqa: S301
    del snapshot["device_traces"][0][:2000]
    file = tmp_path / "late.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    result = json.loads(run("summary", str(file), "--json")[1])
    (device,) = result["devices"]
    assert device["truncated"] is True
    assert device["allocated"]["end"] == next(r for r in ROWS if r["recording"] == "mlp_train.c0")["allocated_end"]
    assert any("were there before the first event" in line for line in result["warnings"])


@pytest.mark.parametrize("command", ["summary", "peak"])
def test_bad_input_is_one_line_and_exit_code_1(run, tmp_path, command):
    files = {
        "nothing was recorded": pickle.dumps({"segments": [], "device_traces": [[]]}),
        "neither segments nor device_traces": pickle.dumps({}),
        "cut off": Path(path("streams.c0")).read_bytes()[:1000],
        "the file is empty": b"",
    }
    for words, data in files.items():
        file = tmp_path / "bad.pickle"
        file.write_bytes(data)
        code, out, err = run(command, str(file))
        assert (code, out) == (1, "")
        assert err.startswith(f"gpumem-magic: {file}: ")
        assert words in err
        assert err.count("\n") == 1
    code, out, err = run(command, str(tmp_path / "absent"))
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_bad_usage_is_exit_code_2(run):
    code, out, err = run("peak", path("streams.c0"), "--device", "99")
    assert (code, out) == (2, "")
    assert err == "gpumem-magic: no device 99 in the recording; it has cuda:0\n"
    assert run("peak", path("streams.c0"), "--top", "0")[0] == 2


def test_from_the_shell_without_torch():
    program = (
        "import sys; from gpumem_magic.cli import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "summary", path("streams.c1"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["devices"][0]["events"] == 1084


def test_names_in_a_snapshot_do_not_steer_the_terminal(capsys):
    print_table([["\x1b[31mf\n", "1"]])
    assert capsys.readouterr().out == "  \\x1b[31mf\\x0a  1\n"


def test_a_closed_output_is_no_error(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert cli.main(["conf", "max_split_size_mb:64"]) == 0


def test_every_allocator_option_is_listed(capsys):
    assert cli.main(["conf", "--options", "--torch", "2.10", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["torch"] == "2.10"
    assert {"name", "takes", "default", "meaning", "since", "until", "known", "also"} <= told["options"][0].keys()
    assert cli.main(["conf", "--options", "expandable_segments:True"]) == 2
    assert "takes no settings" in capsys.readouterr().err
