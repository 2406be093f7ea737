"""Recordings that no allocator made: a clear line or a number, never a traceback, never without end."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic import cli
from gpumem_magic._errors import GpumemError
from gpumem_magic.allocator.conf import TorchVersion
from gpumem_magic.allocator.lab import Lab, most_used
from gpumem_magic.allocator.rounding import round_sizes
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.settings_text import parse_question, parse_settings
from gpumem_magic.trace.convert import from_snapshot

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
MIB = 1 << 20
EVERYTHING = (
    "backend:native,expandable_segments:True,max_split_size_mb:64,max_non_split_rounding_mb:40,"
    "roundup_power2_divisions:[1:4,2:2,>:8],garbage_collection_threshold:0.6,large_segment_size_mb:40,"
    "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,release_lock_on_cudamalloc:True,"
    "graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8,"
    "pinned_use_background_threads:True,pinned_reserve_segment_size_mb:64,pinned_max_round_threshold_mb:1,"
    "pinned_max_cached_size_mb:1,pinned_free_catch_all:True,expandable_segments_reserve:0.5,"
    "expandable_segments_reserve_by_class:[small:0.5]"
)
EXTREME = (
    "max_split_size_mb:18446744073709551615",
    "roundup_power2_divisions:9223372036854775808",
    "large_segment_size_mb:17592186044415",
    EVERYTHING,
)
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")

_ADDRESS = st.sampled_from([0, 512, MIB, 2 * MIB, 0x7F0000000000, (1 << 64) - 512])
_SIZE = st.sampled_from([0, 1, 512, MIB, 20 * MIB, 1 << 40, 1 << 50, 1 << 62])
_EVENT = st.fixed_dictionaries(
    {"action": st.sampled_from([*ACTIONS, "oom", "snapshot"]), "addr": _ADDRESS, "size": _SIZE, "stream": st.just(0)}
)
_BLOCK = st.fixed_dictionaries(
    {
        "address": _ADDRESS,
        "size": _SIZE,
        "requested_size": _SIZE,
        "state": st.sampled_from(["inactive", "active_allocated", "active_pending_free"]),
    }
)
_SEGMENT = st.fixed_dictionaries(
    {
        "device": st.just(0),
        "address": _ADDRESS,
        "total_size": _SIZE,
        "stream": st.just(0),
        "segment_type": st.sampled_from(["small", "large"]),
        "is_expandable": st.booleans(),
        "segment_pool_id": st.sampled_from([(0, 0), (1, 0)]),
        "blocks": st.lists(_BLOCK, max_size=3),
    }
)


def snapshot(events, segments=()):
    return {"segments": list(segments), "device_traces": [list(events)], "allocator_settings": {}}


@settings(max_examples=80, deadline=None)
@given(st.lists(_EVENT, max_size=12), st.lists(_SEGMENT, max_size=2), st.sampled_from([None, 1, 20 * MIB, 1 << 60]))
def test_any_events_end_in_a_number_or_a_sentence(events, segments, limit):
    try:
        trace = from_snapshot(snapshot(events, segments))
        lab = Lab(trace, most_used(trace), limit=limit)
    except GpumemError as refused:
        told = str(refused)
        assert "\n" not in told
        return
    lab.examine()
    assert all("\n" not in line for line in lab.warnings)
    for conf in ("", "expandable_segments:True", *EXTREME):
        found = lab.predict(parse_settings(conf))
        assert 0 <= found.low <= found.expected <= found.high
    assert 0 <= lab.bound.live_peak <= lab.bound.packed_peak


def test_a_request_that_no_device_could_hold_ends_the_run(tmp_path, capsys):
    taken = snapshot([{"action": "alloc", "addr": 512, "size": 1 << 50, "stream": 0, "time_us": 1}])
    taken["segments"] = [
        {
            "device": 0,
            "address": 512,
            "total_size": 1 << 50,
            "stream": 0,
            "segment_type": "large",
            "blocks": [{"address": 512, "size": 1 << 50, "requested_size": 1 << 50, "state": "active_allocated"}],
        }
    ]
    path = tmp_path / "petabyte.pickle"
    path.write_bytes(pickle.dumps(taken, protocol=4))
    assert cli.main(["whatif", str(path), "--conf", "expandable_segments:True", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["verdict"] == "oom"


def test_a_run_that_ran_out_of_memory_is_told_how_to_ask_what_would_have_fitted(capsys):
    # Without a limit no setting helps this one; under the limit that it had, one does.
    path = str(RECORDINGS / "oom_fragmented.pickle.xz")
    question = ["whatif", path, "--conf", "max_split_size_mb:128"]
    assert cli.main(question) == 0
    told = capsys.readouterr().out
    assert told.startswith("cuda:0: no setting gives back anything of 4.00 GiB: 4.00 GiB are tensors")
    assert told.endswith("  the recorded run ran out of memory: `--cap-gib 4` says which setting would have fitted\n")
    assert cli.main([*question, "--cap-gib", "4"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("cuda:0: with `max_split_size_mb:128` it fits under 4.00 GiB")
    assert "--cap-gib" not in told
    assert cli.main(["whatif", str(RECORDINGS / "mlp_train.c0.pickle.xz"), "--conf", ""]) == 0
    assert "--cap-gib" not in capsys.readouterr().out


@pytest.mark.parametrize("cap", ["0", "-1", "nan", "inf", "-inf", "1e9"])
def test_a_limit_that_is_none_is_bad_usage(cap, tmp_path, capsys):
    assert cli.main(["whatif", str(tmp_path / "unread.pickle"), f"--cap-gib={cap}"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "gpumem-magic: --cap-gib must be a positive number of GiB\n"


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("per_process_memory_fraction:0.5", "give the limit itself, with --cap-gib"),
        ("throw_on_cudamalloc_oom:True", "requests fail that a freed cache would have served"),
        ("expandable_segments:True,graph_capture_record_stream_reuse:True", "what a captured graph reuses"),
    ],
)
def test_what_is_not_modelled_is_refused(conf, words, capsys):
    assert cli.main(["whatif", "unread.pickle", "--conf", conf]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"gpumem-magic: '{conf}': ")
    assert "is not replayed" in told
    assert words in told
    assert cli.main(["whatif", "unread.pickle", "--conf", conf.replace("True", "False").replace("0.5", "1.0")]) == 1
    assert "unread.pickle" in capsys.readouterr().err


def test_settings_are_read_as_a_release_reads_them(capsys):
    old = parse_question("roundup_power2_divisions:[256:1,512:2,>:8]", TorchVersion(2, 8))
    new = parse_question("roundup_power2_divisions:[256:1,512:2,>:8]", TorchVersion(2, 9))
    # Before 2.9 '>' replaced the last boundary's own value.
    assert (old.roundup_power2_divisions[9], new.roundup_power2_divisions[9]) == (8, 2)
    assert cli.main(["whatif", "unread.pickle", "--torch", "2.10", "--conf", "large_segment_size_mb:40"]) == 2
    assert "large_segment_size_mb needs torch 2.11 or newer, this is 2.10" in capsys.readouterr().err


def test_what_argparse_refuses_is_told_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["whatif", "file", "--cap-gib", "much"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "gpumem-magic whatif: argument --cap-gib: invalid float value: 'much' (gpumem-magic whatif --help says how)\n"
    )


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"segments": [], "device_traces": []},
        {"segments": [], "device_traces": [[]]},
        [],
        {"segments": None, "device_traces": None},
        {"segments": [], "device_traces": [[{}]]},
    ],
)
def test_files_without_anything_to_replay(content, tmp_path, capsys):
    path = tmp_path / "nothing.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    assert cli.main(["whatif", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("gpumem-magic: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"garbage_collection_threshold": 10**400},
        {"garbage_collection_threshold": float("nan")},
        {"garbage_collection_threshold": -1.0},
        {"roundup_power2_divisions": {"1": 1 << 64, "2": -(1 << 64)}},
    ],
)
def test_settings_that_torch_would_never_take_are_its_defaults(wrong):
    assert from_torch(wrong) == from_torch({})
    assert round_sizes(np.array([3 * MIB], np.int64), from_torch(wrong)).tolist() == [3 * MIB]
