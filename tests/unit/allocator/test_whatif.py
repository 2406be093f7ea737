"""Predictions for other settings and limits against what torch counted under them."""

from __future__ import annotations

import json
import lzma
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic import cli
from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic.allocator.bounds import find_bound
from gpumem_magic.allocator.fallback import requests_with_fallback
from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.replay import history
from gpumem_magic.allocator.settings_model import MIB, AllocatorSettings
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.allocator.whatif import Explorer
from gpumem_magic.trace.convert import from_snapshot

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
ROWS = json.loads((RECORDINGS / "truth.json").read_text())["rows"]
GIB = 2**30
# Their deferred frees complete when the GPU is done, so their rows under other settings are true for one run only.
MULTI_STREAM = {"fuzz2", "fuzz7", "fuzz14"}


def source(row):
    for name in (f"{row['workload']}.c0", row["workload"], f"{row['workload']}.c1"):
        if (RECORDINGS / f"{name}.pickle.xz").exists():
            return name
    raise LookupError(row["workload"])


def rows(*, capped):
    chosen = [row for row in ROWS if (row["cap_gib"] is not None) == capped and row["workload"] not in MULTI_STREAM]
    return pytest.mark.parametrize(
        "row", chosen, ids=lambda r: f"{r['workload']}-{r['conf'] or 'defaults'}-{r['cap_gib']}"
    )


def predict(load, row):
    trace = load(source(row))
    limit = None if row["cap_gib"] is None else int(row["cap_gib"] * GIB)
    return Lab(trace, trace.devices[0], limit=limit).predict(parse_settings(row["conf"]))


@rows(capped=False)
def test_the_peak_under_another_setting_is_torchs(load, row):
    prediction = predict(load, row)
    assert prediction.expected == row["reserved_peak"]
    assert prediction.low <= prediction.expected <= prediction.high
    assert (prediction.verdict, prediction.retries) == ("fits", 0)


@rows(capped=True)
def test_verdict_retries_and_peak_under_a_limit_are_torchs(load, row):
    prediction = predict(load, row)
    died = row["oom_message"] is not None
    assert prediction.verdict == ("oom" if died else "fits")
    assert (prediction.dies_at is not None) == died
    if row["workload"].startswith("fuzz"):
        return  # These programs catch the error and go on, which a recording without a limit cannot show.
    assert prediction.expected == row["reserved_peak"]
    assert prediction.retries == row["num_alloc_retries"]
    if died:
        # "Tried to allocate 32.00 MiB": the segment, not the request.
        wanted = row["oom_message"].split("Tried to allocate ")[1].split(" MiB")[0]
        size = prediction.dies_at.size
        assert float(wanted) * MIB == (20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB)


@pytest.mark.parametrize("row", [row for row in ROWS if row["workload"] in MULTI_STREAM and row["cap_gib"] is None])
def test_programs_whose_timing_varies_are_close(load, row):
    prediction = predict(load, row)
    assert abs(prediction.expected - row["reserved_peak"]) <= 0.05 * row["reserved_peak"]


def test_expandable_recordings_predict_the_default(load):
    for name in ("mlp_train", "random_mix", "load_swap", "cuda_graph", "fuzz1", "fuzz3"):
        trace = load(f"{name}.c1")
        row = next(r for r in ROWS if r["workload"] == name and not r["conf"] and r["cap_gib"] is None)
        assert Lab(trace, trace.devices[0]).predict(AllocatorSettings()).expected == row["reserved_peak"]


def test_settings_that_cannot_act_are_not_replayed(load):
    trace = load("mlp_train.c0")
    lab = Lab(trace, trace.devices[0])
    explorer = Explorer(lab.program)
    plain = explorer.predict(AllocatorSettings())
    largest = int(lab.program.requested.max())
    for settings in (
        AllocatorSettings(max_split_size=largest + 4 * MIB, max_non_split_rounding=64 * MIB),
        AllocatorSettings(garbage_collection_threshold=0.5),
        AllocatorSettings(roundup_power2_divisions=(1,) * 16),
    ):
        assert explorer.predict(settings) is plain
    assert explorer.predict(AllocatorSettings(max_split_size=20 * MIB)) is not plain
    with_limit = Explorer(lab.program, limit=GIB)
    assert with_limit.predict(AllocatorSettings(garbage_collection_threshold=0.5)) is not with_limit.predict(
        AllocatorSettings()
    )


def test_threads_may_replay_one_program_at_once(load):
    trace = load("kv_cache.c0")
    lab = Lab(trace, trace.devices[0])
    with ThreadPoolExecutor(4) as threads:
        steps = list(threads.map(lambda _: len(lab.program.steps()), range(16)))
    assert steps == [len(lab.program.codes)] * 16


@pytest.mark.parametrize("name", ["mlp_train.c0", "kv_cache.c0", "random_mix.c0", "streams.c0", "fuzz6.c0"])
def test_bounds_are_in_order(load, name):
    trace = load(name)
    lab = Lab(trace, trace.devices[0])
    lives = lab.history.lifetimes
    assert lab.bound.live_peak <= lab.bound.packed_peak <= lab.reserved_peak
    # No setting was seen to do with less.
    assert lab.bound.live_peak <= min(
        row["reserved_peak"] for row in ROWS if row["workload"] == name.split(".")[0] and row["cap_gib"] is None
    )
    assert lab.bound.live_peak >= int(lab.history.requested.max())
    assert len(lives) == len(lab.program.requested)


def test_a_packing_that_needs_the_future_is_found():
    # 10 and 20 MiB alternate and the 10s go: online, a hole of 10 stays under each later 20.
    events = []
    for action, addr, size in [
        ("segment_alloc", 0, 100 * MIB),
        ("alloc", 0, 10 * MIB),
        ("alloc", 10 * MIB, 30 * MIB),
        ("free_completed", 0, 10 * MIB),
        ("alloc", 40 * MIB, 20 * MIB),
        ("free_completed", 10 * MIB, 30 * MIB),
        ("alloc", 0, 40 * MIB),
    ]:
        events.append({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1})
    blocks = [(0, 40, "active_allocated"), (40, 20, "active_allocated"), (60, 40, "inactive")]
    segment = {
        "device": 0,
        "address": 0,
        "total_size": 100 * MIB,
        "blocks": [
            {"address": at * MIB, "size": size * MIB, "requested_size": size * MIB, "state": state}
            for at, size, state in blocks
        ],
    }
    trace = from_snapshot({"segments": [segment], "device_traces": [events]})
    lab = Lab(trace, trace.devices[0])
    bound = find_bound(lab.program, lab.reserved_peak)
    assert bound.live_peak == 60 * MIB
    assert bound.packed_peak == 60 * MIB


def test_late_recordings_are_close_and_say_so(load):
    snapshot = pickle.loads(lzma.decompress((RECORDINGS / "random_mix.c0.pickle.xz").read_bytes()))  # noqa: S301
    full = load("random_mix.c0")
    expected = Lab(full, full.devices[0]).predict(AllocatorSettings(expandable_segments=True)).expected
    del snapshot["device_traces"][0][:1600]
    trace = from_snapshot(snapshot)
    lab = Lab(trace, trace.devices[0])
    # Under the recorded setting the model starts from what was there, and repeats the rest to every address.
    assert lab.first_deviation is None
    assert any("begins with memory in use" in line for line in lab.warnings)
    assert lab.predict(AllocatorSettings(expandable_segments=True)).expected == pytest.approx(expected, rel=0.02)


def frames(*names):
    return [{"filename": name, "line": 1, "name": "f"} for name in names]


def test_workspaces_of_convolutions_are_told_from_other_short_lives():
    conv = frames("/x/site-packages/torch/nn/modules/conv.py", "/home/u/a.py")
    other = frames("/x/site-packages/torch/nn/modules/linear.py", "/home/u/a.py")

    def life(addr, **more):
        return [
            {"action": action, "addr": addr, "size": 512, "stream": 0, "time_us": 1, **more}
            for action in ("alloc", "free_requested", "free_completed")
        ]

    events = [{"action": "segment_alloc", "addr": 0, "size": 2 * MIB, "stream": 0, "time_us": 1}]
    events += life(0, frames=conv) + life(0, frames=other) + life(0) + [life(0, frames=conv)[0]]
    trace = from_snapshot({"device_traces": [events]})
    replayed = history(trace.devices[0], {})
    assert requests_with_fallback(replayed, trace.stacks) == {0, 2}
    # Without a convolution anywhere, nothing is concluded.
    trace = from_snapshot({"device_traces": [events[:1] + life(0, frames=other) + life(0)]})
    assert requests_with_fallback(history(trace.devices[0], {}), trace.stacks) == frozenset()


@pytest.mark.parametrize(
    "text", ["nmalloc:3", "max_split_size_mb=128", "backend:cudaMallocAsync", "max_split_size_mb:5"]
)
def test_settings_that_torch_would_refuse_are_bad_usage(text):
    with pytest.raises(BadUsageError, match=r"\w"):
        parse_settings(text)


def test_settings_as_written():
    settings = parse_settings("max_split_size_mb:32,roundup_power2_divisions:[64:8,256:4,>:1]")
    assert settings.max_split_size == 32 * MIB
    # torch sets what is named, what lies before the first, and behind the last what ">" says; 128 MiB stays off.
    assert settings.roundup_power2_divisions == (8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1)
    assert parse_settings("roundup_power2_divisions:4").roundup_power2_divisions == (4,) * 16
    assert parse_settings("") == AllocatorSettings()
    assert parse_settings("expandable_segments:True,large_segment_size_mb:40").large_segment_size == 40 * MIB


def test_a_pair_that_must_not_meet_is_replayed_all_the_same():
    # torch takes it, so what it does can be shown.
    settings = parse_settings("max_split_size_mb:32,expandable_segments:True")
    assert (settings.max_split_size, settings.expandable_segments) == (32 * MIB, True)
    with pytest.raises(BadUsageError, match="nmalloc"):
        parse_settings("max_split_size_mb:32,expandable_segments:True,nmalloc:3")


def test_a_split_limit_above_every_segment_acts_only_where_segments_grow(load):
    trace = load("load_swap.c0")
    lab = Lab(trace, trace.devices[0])
    limit = 8 * 2**30
    assert lab.effective(AllocatorSettings(max_split_size=limit)) == AllocatorSettings()
    # Free pages of a growing segment are one block, which can be larger than any request.
    growing = AllocatorSettings(max_split_size=limit, expandable_segments=True)
    assert lab.effective(growing) == growing


def test_memory_of_other_allocators_cannot_be_replayed():
    snapshot = {"segments": [], "device_traces": [], "host_traces": [[{"action": "alloc", "addr": 1, "size": 1}]]}
    trace = from_snapshot(snapshot)
    with pytest.raises(SnapshotError, match="caching allocator"):
        Lab(trace, trace.devices[0])


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = cli.main([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def path(name):
    return str(RECORDINGS / f"{name}.pickle.xz")


def test_the_command_answers_in_the_order_asked(run):
    confs = ["max_split_size_mb:32", "", "expandable_segments:True"]
    arguments = [part for conf in confs for part in ("--conf", conf)]
    code, out, err = run("whatif", path("random_mix.c0"), *arguments, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["device"] == "cuda:0"
    assert result["recorded"] == {
        "conf": "",
        "reserved_peak": result["results"][1]["reserved_peak"]["expected"],
        "exact": True,
        "first_deviation": None,
    }
    assert [one["conf"] for one in result["results"]] == confs
    for conf, one in zip(confs, result["results"], strict=True):
        row = next(r for r in ROWS if (r["workload"], r["conf"], r["cap_gib"]) == ("random_mix", conf, None))
        assert one["reserved_peak"]["expected"] == row["reserved_peak"]
        assert (one["verdict"], one["dies_at"], one["retries"]) == ("fits", None, 0)


def test_the_command_says_where_a_program_dies(run):
    row = next(r for r in ROWS if r["workload"] == "mlp_train" and r["cap_gib"] and r["oom_message"])
    code, out, _ = run(
        "whatif", path("mlp_train.c0"), "--conf", row["conf"], "--cap-gib", str(row["cap_gib"]), "--json"
    )
    assert code == 0
    (one,) = json.loads(out)["results"]
    assert one["verdict"] == "oom"
    assert one["dies_at"]["file"] == "/home/user/train/workloads.py"
    assert one["dies_at"]["line"] > 0
    code, out, _ = run("whatif", path("mlp_train.c0"), "--conf", row["conf"], "--cap-gib", str(row["cap_gib"]))
    assert "out of memory, asking for 16.0 MiB at workloads.py:" in out


def test_the_command_as_text(run):
    code, out, err = run("whatif", path("kv_cache.c0"), "--conf", "expandable_segments:True")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "cuda:0: `expandable_segments:True` would have reserved 2.19 GiB instead of 16.9 GiB: 14.7 GiB back, 87%"
    )
    assert lines[1] == "  recorded: 16.9 GiB reserved at most, under torch's defaults"
    assert lines[3].split() == ["setting", "reserved", "range", "against", "recorded", "retries"]
    assert lines[4].split() == ["(defaults)", "*", "16.9", "GiB", "0", "B", "0"]
    assert lines[5].split()[:3] == ["expandable_segments:True", "2.19", "GiB"]
    assert "    %env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in lines


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--conf", "max_split_size_mb=128"], 2),
        (["--cap-gib", "0"], 2),
        (["--device", "5"], 2),
    ],
)
def test_bad_usage(run, arguments, code):
    result = run("whatif", path("streams.c0"), *arguments)
    assert (result[0], result[1], result[2].count("\n")) == (code, "", 1)


def test_two_devices(run):
    result = json.loads(run("whatif", path("multi_gpu"), "--device", "1", "--conf", "", "--json")[1])
    assert (result["device"], result["recorded"]["exact"]) == ("cuda:1", True)
    assert result["results"][0]["reserved_peak"]["expected"] == result["recorded"]["reserved_peak"]


def test_predictions_do_not_depend_on_numpy_integers(load):
    trace = load("streams.c0")
    prediction = Lab(trace, trace.devices[0], limit=30 * MIB).predict(AllocatorSettings())
    assert not any(isinstance(value, np.generic) for value in vars(prediction).values())
    assert not any(isinstance(value, np.generic) for value in vars(prediction.dies_at).values())
