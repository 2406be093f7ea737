"""Addresses and segments in the view's document, against the recording itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem_magic._errors import BadUsageError
from gpumem_magic.report import build
from gpumem_magic.report.comparison import Comparison
from gpumem_magic.report.container import decode
from gpumem_magic.report.places import address_arrays, neighbours
from gpumem_magic.report.questions import Questions
from gpumem_magic.trace.model import Action
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"


def addresses_of(arrays) -> np.ndarray:
    table = np.cumsum(arrays["d0.addrs"].astype(np.int64)) * 512
    found: np.ndarray = table[arrays["d0.addr"]]
    return found


@pytest.mark.parametrize("name", ["mlp_train.c0", "streams.c1", "cuda_graph.c0", "lm_growing.c1"])
def test_every_allocation_lies_where_it_was_recorded_and_in_a_segment(name):
    trace = read_trace(DATA / f"{name}.pickle.xz")
    report = build(trace, title=name)
    header, arrays = decode(report.to_document())
    device = header["devices"][0]
    own = addresses_of(arrays)
    recorded = trace.devices[0].events
    expected = recorded.addr[recorded.action == Action.ALLOC].astype(np.int64)
    old = device["timeline"]["preexisting"]
    np.testing.assert_array_equal(own[old:], expected)
    begun = np.cumsum(arrays["d0.t"].astype(np.int64))[np.cumsum(arrays["d0.start"].astype(np.int64))]
    sizes = arrays["d0.sizes"][arrays["d0.bytes"]][old:]
    base, size = arrays["d0.seg.base"], arrays["d0.seg.size"]
    since, until = arrays["d0.seg.from"], arrays["d0.seg.to"]
    for address, bytes_, us in zip(own[old:].tolist(), sizes.tolist(), begun.tolist(), strict=True):
        inside = (base <= address) & (address + bytes_ <= base + size) & (since <= us) & ((until < 0) | (us <= until))
        # Pages of an expandable segment that were unmapped before the end are in no segment of the final state.
        assert np.count_nonzero(inside) == 1 or name.endswith("c1")
    assert len(device["timeline"]["pools"]) == len(set(arrays["d0.seg.pool"].tolist()))


def test_a_stretch_and_the_largest_ones_keep_their_addresses():
    report = build(read_trace(DATA / "kv_cache.c0.pickle.xz"))
    whole = set(addresses_of(decode(report.to_document())[1]).tolist())
    header, arrays = decode(report.to_document(20_000))
    assert header["devices"][0]["timeline"]["rest"] is not None
    assert len(set(addresses_of(arrays).tolist()) - {0}) > 0
    assert set(addresses_of(arrays).tolist()) <= whole | {0}
    device = report.devices[0]
    middle = int(device.timeline.time_us[device.timeline.changes // 2])
    part, arrays = decode(report.detail(0, middle, middle + 10_000))
    assert part["devices"][0]["timeline"]["lifetimes"] == len(arrays["d0.addr"]) > 0
    assert set(addresses_of(arrays).tolist()) <= whole | {0}


def test_gaps_wider_than_32_bits_come_back():
    addresses = np.array([0, 512, 5 << 43, 512, (5 << 43) + 1024, 1 << 52], np.uint64)
    arrays = address_arrays(addresses)
    table = np.cumsum(arrays["addrs"].astype(np.int64)) * 512
    np.testing.assert_array_equal(table[arrays["addr"]], addresses.astype(np.int64))


def test_addresses_that_no_such_allocator_gives_are_left_out():
    assert address_arrays(np.array([512, 513], np.uint64)) == {}
    assert address_arrays(np.zeros(3, np.uint64)) == {}


@pytest.mark.parametrize("name", ["streams.c1", "mlp_train.c0"])
def test_neighbours_are_those_of_a_walk_over_all_allocations(name):
    report = build(read_trace(DATA / f"{name}.pickle.xz"))
    device = report.devices[0]
    assert device.memory is not None
    lives, times = device.memory.lifetimes, device.memory.device.events.time_us
    rows = list(
        zip(
            lives.address.tolist(),
            lives.size.tolist(),
            lives.alloc_event.tolist(),
            lives.free_event.tolist(),
            strict=True,
        )
    )
    found = 0
    for address, size, alloc, free in rows[:: max(1, len(rows) // 120)]:
        told = neighbours(device, address, int(times[alloc]))
        there = [r for r in rows if r[:3] != (address, size, alloc) and r[0] < address + size and address < r[0] + r[1]]
        before = max((r for r in there if 0 <= r[3] < alloc), key=lambda r: r[3], default=None)
        after = min((r for r in there if free >= 0 and r[2] > free), key=lambda r: r[2], default=None)
        for expected, side in ((before, told["before"]), (after, told["after"])):
            assert (side is None) == (expected is None)
            if side is not None and expected is not None:
                assert side["bytes"] == expected[1]
                assert side["fromUs"] == int(times[expected[2]]) - device.start_us
                found += 1
    assert found > 20


def test_an_unknown_address_is_an_answer_of_one_line():
    device = build(read_trace(DATA / "streams.c0.pickle.xz")).devices[0]
    with pytest.raises(BadUsageError, match="nothing is known of that address"):
        neighbours(device, 1, None)


def test_a_view_may_ask_the_kernel():
    report = build(read_trace(DATA / "streams.c0.pickle.xz"))
    device = report.devices[0]
    assert device.memory is not None
    event = int(device.memory.lifetimes.alloc_event[-1])
    question = {
        "kind": "place",
        "id": 3,
        "device": 0,
        "address": float(device.memory.lifetimes.address[-1]),
        "startUs": int(device.memory.device.events.time_us[event]),
    }
    answers: list[dict[str, object]] = []
    Questions(report).answer(question, lambda reply, _buffers: answers.append(reply))
    Questions(Comparison(report, report)).answer({**question, "device": 1}, lambda reply, _: answers.append(reply))
    Questions(report).answer({**question, "device": 1}, lambda reply, _: answers.append(reply))
    first, second, wrong = answers
    assert first == second
    assert first["error"] is None
    assert set(first) >= {"before", "after"}
    assert wrong["error"] == "no such device"
