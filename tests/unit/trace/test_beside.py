"""What a recorder knew besides torch's events, kept in snapshots."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from gpumem_magic.trace.beside import KEY, Beside, read_beside
from gpumem_magic.trace.reader import read_trace
from gpumem_magic.trace.writer import to_snapshot, write_snapshot

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
KNOWN = Beside(calls=(0, 3, 3, 40), limit=40 << 30, total=80 << 30)


def with_beside(name="streams.c0", beside=KNOWN):
    trace = read_trace(RECORDINGS / f"{name}.pickle.xz")
    return replace(trace, devices=(replace(trace.devices[0], beside=beside), *trace.devices[1:]))


@pytest.mark.parametrize("beside", [KNOWN, Beside(calls=()), Beside(limit=80 << 30, total=80 << 30)])
def test_it_comes_back_from_a_file(tmp_path, beside):
    path = tmp_path / "kept.pickle"
    write_snapshot(with_beside("multi_gpu", beside), path)
    first, second = read_trace(path).devices
    assert (first.beside, second.beside) == (beside, None)


def test_torchs_own_snapshots_have_none_and_get_none():
    trace = read_trace(RECORDINGS / "streams.c0.pickle.xz")
    assert trace.devices[0].beside is None
    assert KEY not in to_snapshot(trace)


def test_torchs_own_tools_pass_over_it(tmp_path):
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "kept.pickle"
    write_snapshot(with_beside(), path)
    snapshot = pickle.loads(path.read_bytes())  # noqa: S301 (written by us)
    assert "MiB allocated" in viewer.segsum(snapshot)
    assert "<html" in viewer.trace_plot(snapshot).lower()


def test_the_limit_is_a_fraction_where_the_device_has_more():
    assert KNOWN.fraction == 40 << 30
    assert Beside(limit=80 << 30, total=80 << 30).fraction is None
    assert Beside(limit=40 << 30).fraction is None


@pytest.mark.parametrize(
    "found",
    [
        None,
        3,
        [],
        "cuda",
        {"empty_cache_before": "0123"},
        {"empty_cache_before": [3, 1]},
        {"empty_cache_before": [-1]},
        {"empty_cache_before": [11]},
        {"empty_cache_before": [1.0]},
        {"empty_cache_before": [True]},
        {"limit": -1, "total": 0},
        {"limit": 1 << 70},
        {"limit": "40 GiB"},
    ],
)
def test_what_makes_no_sense_is_left_out(found):
    assert read_beside(found, 10) is None


def test_the_end_is_a_place_for_a_call():
    assert read_beside({"empty_cache_before": [0, 10]}, 10) == Beside(calls=(0, 10))


@pytest.mark.parametrize("hostile", [7, ["cuda:0"], {"cuda:0": {"limit": float("nan")}}, {0: {"limit": 1}}])
def test_a_file_with_nonsense_there_is_read_all_the_same(tmp_path, hostile):
    snapshot = to_snapshot(with_beside())
    snapshot[KEY] = hostile
    path = tmp_path / "hostile.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    assert read_trace(path).devices[0].beside is None
