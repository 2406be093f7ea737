from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic._errors import ExportError
from gpumem_magic.trace.reader import read_trace
from gpumem_magic.trace.writer import to_snapshot, write_snapshot

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
NAMES = ["oom_fragmented", "multi_gpu", "cuda_graph.c1", "streams.c0", "fuzz2.c1"]


def stacks(trace, device):
    return [trace.stacks.resolve(number) for number in device.events.stack.tolist()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_round_trip(tmp_path, name, suffix):
    trace = read_trace(RECORDINGS / f"{name}.pickle.xz")
    path = tmp_path / f"again.pickle{suffix}"
    write_snapshot(trace, path)
    again = read_trace(path)
    assert again.settings == trace.settings
    assert again.regions == trace.regions
    assert [device.key for device in again.devices] == [device.key for device in trace.devices]
    for ours, theirs in zip(again.devices, trace.devices, strict=True):
        for column in ("action", "addr", "size", "stream", "time_us", "pool"):
            assert np.array_equal(getattr(ours.events, column), getattr(theirs.events, column))
        assert stacks(again, ours) == stacks(trace, theirs)
        assert [[block[:4] for block in segment.blocks] for segment in ours.segments] == [
            [block[:4] for block in segment.blocks] for segment in theirs.segments
        ]


def test_the_protocol_is_the_one_that_torchs_viewer_reads(tmp_path):
    path = tmp_path / "snapshot.pickle"
    write_snapshot(read_trace(RECORDINGS / "streams.c0.pickle.xz"), path)
    opcode, version, _ = next(pickletools.genops(path.read_bytes()))
    assert (opcode.name, version) == ("PROTO", 4)


def test_torchs_own_tools_accept_it(tmp_path):
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    trace = read_trace(RECORDINGS / "oom_fragmented.pickle.xz")
    path = tmp_path / "snapshot.pickle"
    write_snapshot(trace, path)
    snapshot = pickle.loads(path.read_bytes())  # noqa: S301 (written by us)
    assert "128.0MiB allocated, 68.0MiB" in viewer.segsum(snapshot)
    assert viewer.trace(snapshot).count("raise OutOfMemoryError") == 2
    assert "<html" in viewer.trace_plot(snapshot).lower()


def test_equal_stacks_are_one_object():
    snapshot = to_snapshot(read_trace(RECORDINGS / "oom_fragmented.pickle.xz"))
    lists = [entry["frames"] for entry in snapshot["device_traces"][0]]
    assert len({id(frames) for frames in lists}) == len({str(frames) for frames in lists})


def test_what_cannot_be_written_is_one_line(tmp_path):
    trace = read_trace(RECORDINGS / "streams.c0.pickle.xz")
    with pytest.raises(ExportError, match=r"absent.*cannot be written: No such file"):
        write_snapshot(trace, tmp_path / "absent" / "snapshot.pickle")
