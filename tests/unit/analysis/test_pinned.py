"""Pinned host memory of torch 2.14: a curve beside the GPU's, an entry of its own, never the first line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.analysis import analyse_trace
from gpumem_magic.trace.convert import from_snapshot
from gpumem_magic.trace.reader import read_trace
from gpumem_magic.trace.writer import to_snapshot

MLP = Path(__file__).parents[2] / "data" / "recordings" / "mlp_train.c0.pickle.xz"
SIZE = 256 << 20


@pytest.fixture(scope="module")
def analysis():
    snapshot = to_snapshot(read_trace(MLP))
    times = [entry["time_us"] for entry in snapshot["device_traces"][0]]
    first, span = times[0], times[-1] - times[0]
    frames = [{"name": "load", "filename": "/home/user/train/data.py", "line": 12}]

    def entry(action: str, nth: int, share: float):
        return {
            "action": action,
            "addr": 0x7F0000000000 + nth * SIZE,
            "size": SIZE,
            "stream": 0,
            "time_us": first + int(span * share),
            "frames": frames,
        }

    host = [entry("alloc", nth, 0.7 + nth / 100) for nth in range(12)]
    for nth in range(0, 12, 2):
        host += [entry(action, nth, 0.84 + nth / 100) for action in ("free_requested", "free_completed")]
    snapshot["host_traces"] = [host]
    snapshot["host_segments"] = [
        {
            "address": 0x7F0000000000 + nth * SIZE,
            "size": SIZE,
            "state": "active_allocated" if nth % 2 else "inactive",
            "frames": frames,
        }
        for nth in range(12)
    ]
    return analyse_trace(from_snapshot(snapshot))


def test_the_gpu_has_the_curve_and_the_first_line(analysis):
    gpu, host = analysis.devices
    assert (gpu.key, host.key) == ("cuda:0", "host")
    (lane,) = (lane for lane in gpu.lanes if lane.name == "pinned host")
    assert int(lane.value.max()) == 12 * SIZE
    assert int(lane.value[-1]) == 6 * SIZE == host.headline.allocated_after
    assert (lane.time_us[0], lane.time_us[-1]) == (gpu.start_us, gpu.end_us)
    assert np.all(np.diff(lane.time_us) >= 0)
    assert analysis.sentence.startswith("Peak 710 MiB on cuda:0 at workloads.py:22 mlp_train")
    assert "host peak 3.00 GiB" in analysis.sentence


def test_the_host_says_who_pinned(analysis):
    host = analysis.devices[1]
    (row,) = host.peak
    assert (host.groups[row.group].label, row.bytes) == ("data.py:12 load", 12 * SIZE)
    assert host.lanes == ()
    assert host.headline.reserved_peak is None
    assert "no events of the cache" in host.missing["reserved_peak"]
