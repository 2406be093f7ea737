"""The map of segments as it is sent: what the view's own tests read is what this code writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.analysis import analyse_trace
from gpumem_magic.analysis.segments import SpanKind
from gpumem_magic.report.container import decode
from gpumem_magic.report.segments import keyframes, moment_document, state_at
from gpumem_magic.trace.convert import from_snapshot
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data"
# An expandable segment with holes, and plain ones; both in the middle of the run.
FIXTURES = ("random_mix.c0", "random_mix.c1")


def device_of(name):
    return analyse_trace(read_trace(DATA / "recordings" / f"{name}.pickle.xz")).devices[0]


def middle(device):
    return int(device.timeline.time_us[device.timeline.changes // 2])


def expected(device):
    """Sums that a reader must find in the arrays, by other means than writing them."""
    state = state_at(device, middle(device))
    assert state is not None
    spans = [span for segment in state.segments for span in segment.spans]
    owners = sorted({span.group for span in spans if span.group >= 0})
    return {
        "segments": len(state.segments),
        "extent": sum(segment.extent for segment in state.segments),
        "free": sum(segment.free for segment in state.segments),
        "waste": sum(segment.waste for segment in state.segments),
        "addresses": [hex(segment.address) for segment in state.segments],
        "used": sum(span.size for span in spans if span.kind == SpanKind.LIVE),
        "unmapped": sum(span.size for span in spans if span.kind == SpanKind.UNMAPPED),
        "groups": {str(owner): sum(span.size for span in spans if span.group == owner) for owner in owners},
    }


@pytest.mark.parametrize("name", FIXTURES)
def test_the_view_tests_read_what_this_code_writes(name):
    device = device_of(name)
    header, arrays = decode((DATA / "view" / f"segments-{name}.bin").read_bytes())
    now, now_arrays = decode(moment_document(device, middle(device)) or b"")
    assert header["segments"] == now["segments"]
    assert arrays.keys() == now_arrays.keys()
    for key, array in arrays.items():
        assert np.array_equal(array, now_arrays[key])
    assert json.loads((DATA / "view" / f"segments-{name}.json").read_text("utf-8")) == expected(device)


def test_the_moments_of_a_file_keep_to_their_limit():
    device = device_of("random_mix.c0")
    many, few = keyframes(device, 60_000), keyframes(device, 6_000)
    assert many is not None
    assert few is not None
    assert len(few.moments) < len(many.moments)
    assert {"peak", "end"} <= {moment["name"] for moment in few.moments}
    assert keyframes(device, 1_000) is None


@pytest.mark.parametrize("reserved", [1 << 50, 2 << 20])
def test_segments_beyond_all_devices_are_no_map(reserved):
    block = {"address": 0, "size": 1 << 50, "requested_size": 1 << 50, "state": "active_allocated"}
    segment = {"device": 0, "address": 0, "total_size": reserved, "segment_type": "large", "blocks": [block]}
    events = [
        {"action": "segment_alloc", "addr": 0, "size": reserved, "time_us": 1},
        {"action": "alloc", "addr": 0, "size": 1 << 50, "time_us": 2},
    ]
    (device,) = analyse_trace(from_snapshot({"segments": [segment], "device_traces": [events]})).devices
    assert keyframes(device, 60_000) is None
    assert moment_document(device, 2) is None


def test_a_failed_request_is_one_of_the_moments():
    maps = keyframes(device_of("oom_growth"), 60_000)
    assert maps is not None
    assert {"peak", "out of memory", "end"} <= {moment["name"] for moment in maps.moments}


if __name__ == "__main__":
    for fixture in FIXTURES:
        one = device_of(fixture)
        data = moment_document(one, middle(one)) or b""
        (DATA / "view" / f"segments-{fixture}.bin").write_bytes(data)
        (DATA / "view" / f"segments-{fixture}.json").write_text(json.dumps(expected(one), indent=1) + "\n", "utf-8")
        sys.stdout.write(f"{fixture}: {len(data):,} bytes\n")
