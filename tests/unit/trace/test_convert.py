"""Snapshots of every torch version, as far as their shape is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpumem_magic._errors import SnapshotError
from gpumem_magic.allocator.replay import history
from gpumem_magic.trace.constant import is_constant
from gpumem_magic.trace.convert import from_snapshot
from gpumem_magic.trace.model import Action, Block, BlockState, Frame, Region
from gpumem_magic.trace.times import rising

MIB = 2**20


def entry(action, addr, size, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_000_000, **more}


def segment(address, *blocks, **more):
    """Blocks are (requested, size, state)."""
    cursor = address
    listed = []
    for requested, size, state in blocks:
        listed.append({"address": cursor, "size": size, "requested_size": requested, "state": state, "frames": []})
        cursor += size
    return {
        "device": 0,
        "address": address,
        "total_size": cursor - address,
        "stream": 0,
        "segment_type": "small",
        "blocks": listed,
        **more,
    }


def test_no_keys_but_the_action_are_needed():
    trace = from_snapshot({"device_traces": [[{"action": "alloc"}, {"action": "free_completed"}]]})
    (device,) = trace.devices
    assert device.events.action.tolist() == [Action.ALLOC, Action.FREE_COMPLETED]
    assert device.events.time_us.tolist() == [0, 0]
    assert not device.has_snapshot
    assert [line[:26] for line in trace.warnings] == ["the snapshot has no segmen", "cuda:0: no times were reco"]


def test_unknown_actions_are_counted_and_named():
    entries = [entry("alloc", 0, 512), entry("teleport", 0, 1), entry("teleport", 0, 1), entry("annex", 0, 1)]
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    assert trace.devices[0].events.action.tolist() == [0, 255, 255, 255]
    assert trace.warnings == (
        "cuda:0: 3 events of unknown kinds (annex, teleport) were ignored; the figures leave out what they did",
    )


def test_out_of_memory_entries_have_free_bytes_in_place_of_an_address():
    oom = {"action": "oom", "device_free": 12345, "size": 1024, "stream": 7, "time_us": 5}
    trace = from_snapshot({"segments": [], "device_traces": [[], [oom]]})
    (device,) = trace.devices
    assert (device.key, device.events.addr[0], device.events.size[0]) == ("cuda:1", 12345, 1024)


def test_signed_addresses_become_unsigned():
    entries = [entry("alloc", -512, 512), entry("free_completed", 2**64 - 512, 512)]
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    assert trace.devices[0].events.addr.tolist() == [2**64 - 512] * 2


def test_pools_of_newer_versions():
    entries = [entry("alloc", 0, 1, pool_id=(0, 0)), entry("alloc", 512, 1, pool_id=[0, 3]), entry("oom", 0, 1)]
    entries.append(entry("alloc", 1024, 1, pool_id=(0, 3)))
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    (device,) = trace.devices
    assert device.events.pool.tolist() == [0, 1, -1, 1]
    assert device.pool_ids == ((0, 0), (0, 3))


def test_stacks_are_interned_by_content():
    def frames():
        return [{"filename": "a.py", "line": 3, "name": "f"}, {"filename": "b.py", "line": None, "name": "g"}]

    shared = frames()
    entries = [
        entry("alloc", 0, 1, frames=shared),
        entry("alloc", 512, 1, frames=frames()),
        entry("alloc", 1024, 1),
        entry("alloc", 1536, 1, frames=[]),
        entry("alloc", 2048, 1, frames=shared[:1]),
    ]
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    assert trace.devices[0].events.stack.tolist() == [1, 1, 0, 0, 2]
    assert trace.stacks.resolve(1) == (Frame("a.py", 3, "f"), Frame("b.py", 0, "g"))
    assert trace.stacks.resolve(2) == (Frame("a.py", 3, "f"),)
    assert trace.stacks.resolve(0) == ()


def test_stacks_that_repeat_keep_their_numbers():
    forward, backward = [{"filename": "a.py", "line": line, "name": "f"} for line in (1, 2)]
    below: dict[str, Any] = {"filename": "b.py", "line": 3, "name": "g"}
    kinds: list[list[dict[str, Any]]] = [[forward, below], [backward, below], [backward], [], [forward, below, below]]
    order = [0, 1, 3, 0, 1, 2, 0, 4, 1, 1, 3, 0, 1, 2, 2, 0, 4] * 40  # more than one chunk
    entries = [entry("alloc", 512 * at, 512, frames=list(kinds[kind])) for at, kind in enumerate(order)]
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    found = [trace.stacks.resolve(number) for number in trace.devices[0].events.stack.tolist()]
    assert found == [tuple(Frame(f["filename"], f["line"], f["name"]) for f in kinds[kind]) for kind in order]
    assert len(trace.stacks.stacks) == len(kinds)


def test_frames_that_hold_more_than_plain_values_are_told_apart_by_identity():
    # Two structures that are equal and whose comparison would take for ever.
    first: list[object] = []
    second: list[object] = []
    for _ in range(60):
        first, second = [first, first], [second, second]
    frames = [[{"filename": "a.py", "line": 1, "name": "f", "x": deep}] for deep in (first, second)]
    entries = [entry("alloc", 512 * at, 512, frames=frames[at % 2]) for at in range(8)]
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    assert trace.devices[0].events.stack.tolist() == [1] * 8
    assert trace.stacks.frames == (Frame("a.py", 1, "f"),)


def test_columns_of_one_value_take_no_memory():
    entries = [entry("alloc", 512 * at, 512) for at in range(1000)]
    events = from_snapshot({"segments": [], "device_traces": [entries]}).devices[0].events
    for column, value in ((events.stream, 0), (events.stack, 0), (events.pool, -1)):
        assert is_constant(column)
        assert column.tolist() == [value] * 1000
    entries[700] |= {"stream": 7, "pool_id": (0, 2), "frames": [{"filename": "a.py", "line": 1, "name": "f"}]}
    entries[512] |= {"pool_id": (0, 0)}
    events = from_snapshot({"segments": [], "device_traces": [entries]}).devices[0].events
    assert np.flatnonzero(events.stream).tolist() == [700]
    assert np.flatnonzero(events.stack).tolist() == [700]
    assert events.pool[[0, 512, 700]].tolist() == [-1, 0, 1]


def test_blocks_of_old_versions_follow_each_other():
    old = segment(4096, (0, 512, "active_allocated"), (0, 1024, "inactive"))
    for block in old["blocks"]:
        del block["address"], block["requested_size"], block["frames"]
    old["blocks"][0]["history"] = [
        {"addr": 4096, "real_size": 77, "frames": [{"filename": "a", "line": 1, "name": "f"}]}
    ]
    trace = from_snapshot([old])
    (found,) = trace.devices[0].segments
    assert found.blocks == (
        Block(4096, 512, 77, BlockState.ACTIVE_ALLOCATED, 1),
        Block(4608, 1024, 1024, BlockState.INACTIVE, 0),
    )


def test_a_list_of_segments_alone_gives_the_state():
    trace = from_snapshot([segment(0, (100, 512, "active_allocated"), (0, 2 * MIB - 512, "inactive"))])
    replayed = history(trace.devices[0], trace.settings)
    assert [int(getattr(replayed, name)[0]) for name in ("allocated", "active", "requested", "reserved")] == [
        512,
        512,
        100,
        2 * MIB,
    ]
    assert replayed.exact


def test_states_by_every_name():
    blocks = [(1, 512, state) for state in ("active_awaiting_free", "active_pending_free", "zombie")]
    trace = from_snapshot([segment(0, *blocks)])
    states = [block.state for block in trace.devices[0].segments[0].blocks]
    assert states == [BlockState.ACTIVE_PENDING_FREE, BlockState.ACTIVE_PENDING_FREE, BlockState.INACTIVE]
    assert trace.warnings == ("blocks in unknown states (zombie) are counted as inactive",)


def test_pinned_host_memory_of_newer_versions():
    snapshot = {
        "segments": [],
        "device_traces": [],
        "host_traces": [[entry("alloc", 4096, 300), entry("alloc", 8192, 500), entry("free_completed", 8192, 500)]],
        "host_segments": [{"address": 4096, "size": 300, "state": "active_allocated"}],
    }
    trace = from_snapshot(snapshot)
    (host,) = trace.devices
    assert (host.key, len(host.events), host.segments[0].blocks[0].size) == ("host", 3, 300)
    replayed = history(host, trace.settings)
    assert replayed.allocated.tolist() == [0, 300, 800, 300]
    assert not replayed.reserved.any()


def test_xpu_is_told_by_its_settings():
    snapshot = {
        "segments": [],
        "device_traces": [[entry("alloc", 0, 1)]],
        "allocator_settings": {"PYTORCH_XPU_ALLOC_CONF": ""},
    }
    assert from_snapshot(snapshot).devices[0].key == "xpu:0"
    assert from_snapshot(snapshot, kind="cuda").devices[0].key == "cuda:0"


def test_regions_pair_by_name_and_device():
    def mark(name, stage, time_us, device=0):
        return {"name": name, "stage": stage, "device": device, "time_us": time_us}

    marks = [mark("a", "END", 1), mark("a", "START", 2), mark("b", "START", 3), mark("a", "START", 4, 1)]
    marks += [mark("a", "START", 5), mark("a", "END", 6), mark("a", "END", 7)]
    trace = from_snapshot({"segments": [], "device_traces": [], "external_annotations": marks})
    assert trace.regions == (
        Region("a", 0, None, 1),
        Region("a", 0, 2, 7),
        Region("b", 0, 3, None),
        Region("a", 1, 4, None),
        Region("a", 0, 5, 6),
    )


def test_time_that_goes_backwards_is_said_and_kept():
    entries = [entry("alloc", 512 * n, 1) | {"time_us": time} for n, time in enumerate([10, 30, 20, 40])]
    trace = from_snapshot({"segments": [], "device_traces": [entries]})
    assert trace.devices[0].events.time_us.tolist() == [10, 30, 20, 40]
    assert trace.warnings == ("cuda:0: time goes backwards in 1 places; events are shown in the order recorded",)


def test_a_full_ring_is_said_when_its_size_is_known():
    snapshot = {"segments": [], "device_traces": [[entry("alloc", 512 * n, 1) for n in range(5)]]}
    assert from_snapshot(snapshot, max_entries=6).warnings == ()
    (line,) = from_snapshot(snapshot, max_entries=5).warnings
    assert line.startswith("cuda:0: the recording is full (5 events)")


@pytest.mark.parametrize("snapshot", [None, 5, "segments", {}, {"device_traces": {"a": 1}}, {"segments": [7]}])
def test_what_is_no_snapshot_is_refused(snapshot):
    with pytest.raises(SnapshotError) as caught:
        from_snapshot(snapshot)
    assert "\n" not in str(caught.value)


def test_no_events_and_no_devices():
    trace = from_snapshot({"segments": [], "device_traces": [[], []]})
    assert trace.devices == ()
    assert trace.warnings == ()


def test_columns_have_the_types_of_the_model():
    events = from_snapshot({"segments": [], "device_traces": [[entry("alloc", 2**63, 1)]]}).devices[0].events
    types = {
        name: getattr(events, name).dtype for name in ("action", "addr", "size", "stream", "time_us", "stack", "pool")
    }
    assert types == {
        "action": np.uint8,
        "addr": np.uint64,
        "size": np.int64,
        "stream": np.int64,
        "time_us": np.int64,
        "stack": np.int32,
        "pool": np.int32,
    }


@pytest.mark.parametrize("size", [-1, 2**70, -(2**70)])
@pytest.mark.parametrize("key", ["total_size", "size", "requested_size"])
def test_impossible_sizes_are_refused(key, size):
    damaged = segment(0, (500, 512, "active_allocated"))
    (damaged if key == "total_size" else damaged["blocks"][0])[key] = size
    with pytest.raises(SnapshotError, match="impossible size"):
        from_snapshot({"segments": [damaged], "device_traces": []})


FRAME = {"filename": "a.py", "line": 3, "name": "f"}


def plain(n):
    return {"action": "alloc", "addr": 0x7F00_0000_0000 + 512 * n, "size": n + 1, "stream": n % 3, "time_us": 10 + n}


def without(entry, *keys):
    return {key: value for key, value in entry.items() if key not in keys}


@pytest.mark.parametrize(
    "change",
    [
        lambda _, entry: entry,
        # As torch writes it without stacks.
        lambda n, entry: {"action": "oom", "device_free": 77, **without(entry, "action", "addr")} if n == 3 else entry,
        # Another order of keys, a key missing, a key too many.
        lambda n, entry: dict(reversed(entry.items())) if n % 2 else entry,
        lambda n, entry: without(entry, "stream") if n == 5 else entry,
        lambda n, entry: {"extra": 1, **entry} if n == 5 else entry,
        # One too many here and one too few there: the number of values is right, their places are not.
        lambda n, entry: {"extra": 1, **entry} if n == 2 else without(entry, "size") if n == 6 else entry,
        lambda n, entry: entry if n % 2 else {**entry, "frames": [FRAME]},
        lambda n, entry: {**entry, "frames": [FRAME] if n % 2 else []},
    ],
)
def test_entries_are_read_alike_whatever_their_keys(change):
    entries = [change(n, plain(n)) for n in range(9)]
    (device,) = from_snapshot({"segments": [], "device_traces": [entries]}).devices
    events = device.events
    assert events.action.tolist() == [7 if entry["action"] == "oom" else 0 for entry in entries]
    assert events.addr.tolist() == [entry.get("addr", 77) for entry in entries]
    assert events.size.tolist() == [entry.get("size", 0) for entry in entries]
    assert events.stream.tolist() == [entry.get("stream", 0) for entry in entries]
    assert events.time_us.tolist() == [entry["time_us"] for entry in entries]
    assert (events.stack > 0).tolist() == [bool(entry.get("frames")) for entry in entries]


@pytest.mark.parametrize(("of_segment", "of_events"), [(0, 0), (7, 0), (0, 7), (7, 7)])
def test_streams_of_a_whole_snapshot_are_read_where_a_segment_names_one(of_segment, of_events):
    """A block's stream is its segment's: without one that is not 0, no event has one."""
    block = of_segment or of_events
    entries = [
        {**plain(0), "action": "segment_alloc", "stream": of_events},
        {**plain(1), "stream": block},
        {**plain(2), "action": "free_requested", "stream": block},
    ]
    snapshot = {"segments": [{**segment(0, (0, 512, "inactive")), "stream": of_segment}], "device_traces": [entries]}
    whole, read = from_snapshot(snapshot, is_whole=True), from_snapshot(snapshot)
    assert whole.devices[0].events.stream.tolist() == [of_events, block, block]
    assert read.devices[0].events.stream.tolist() == [of_events, block, block]


def test_stacks_are_not_looked_for_where_none_were_recorded():
    entries = [{**plain(0), "frames": [FRAME]}]
    snapshot = {"segments": [], "device_traces": [entries]}
    assert from_snapshot(snapshot).devices[0].events.stack.tolist() == [1]
    assert from_snapshot(snapshot, has_stacks=False).devices[0].events.stack.tolist() == [0]


def test_times_that_fall_stand_still():
    times = np.array([3, 1, 2, 5, 4], np.int64)
    assert rising(times).tolist() == [3, 3, 3, 5, 5]
    assert rising(times[:0]).tolist() == []
    ordered = np.array([1, 1, 2], np.int64)
    assert rising(ordered) is ordered
