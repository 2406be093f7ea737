"""Snapshot files from anyone: the good ones read alike, the bad ones end in one line."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic._errors import SnapshotError
from gpumem_magic.trace.model import Frame
from gpumem_magic.trace.reader import read_trace

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
RAW = lzma.decompress((RECORDINGS / "oom_fragmented.pickle.xz").read_bytes())
SNAPSHOT = pickle.loads(RAW)  # noqa: S301 (our own fixture)


def write(tmp_path, data, name="snapshot.pickle"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def refusal(path, **options):
    with pytest.raises(SnapshotError) as caught:
        read_trace(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("packed", ["plain", "gz", "xz"])
def test_every_protocol_and_packing_reads_alike(tmp_path, protocol, packed):
    data = pickle.dumps(SNAPSHOT, protocol=protocol)
    # The name does not matter, the bytes do.
    data = {"plain": data, "gz": gzip.compress(data), "xz": lzma.compress(data)}[packed]
    trace = read_trace(write(tmp_path, data))
    (device,) = trace.devices
    expected = SNAPSHOT["device_traces"][0]
    assert device.key == "cuda:0"
    assert device.events.time_us.tolist() == [entry["time_us"] for entry in expected]
    assert device.events.size.tolist() == [entry["size"] for entry in expected]
    assert device.events.addr.tolist() == [entry.get("addr", entry.get("device_free")) for entry in expected]
    for index in range(0, len(expected), 97):
        frames = [(f.filename, f.line, f.name) for f in trace.stacks.resolve(int(device.events.stack[index]))]
        assert frames == [(f["filename"], f["line"], f["name"]) for f in expected[index]["frames"]]
    assert trace.settings == SNAPSHOT["allocator_settings"]
    assert trace.warnings == ()


def test_python_pickler_without_framing_or_sharing_reads_alike(tmp_path):
    buffer = io.BytesIO()
    pickle._Pickler(buffer, protocol=2).dump(SNAPSHOT)
    trace = read_trace(write(tmp_path, buffer.getvalue()))
    assert len(trace.devices[0].events) == len(SNAPSHOT["device_traces"][0])


def test_long_memo_indices_are_read(tmp_path):
    # More than 255 memo entries: LONG_BINPUT and LONG_BINGET in protocol 2.
    entries = [{"action": "alloc", "addr": 512 * n, "size": 512, "name": "x" * 40 + str(n)} for n in range(3000)]
    trace = read_trace(write(tmp_path, pickle.dumps({"segments": [], "device_traces": [entries]}, protocol=2)))
    assert len(trace.devices[0].events) == 3000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + b"\0" * 100, "zip archive"),
        (b'{"traceEvents": []}', "JSON"),
        (b"[project]\n", "text"),
        (b"<!DOCTYPE html>", "only gpumem-magic diff and export read those"),
        (b"<!doctype html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"\x89PNG\r\n", "_dump_snapshot writes one"),
        (b"\x80\x09K\x01.", "protocol 9 is unknown"),
        (b"(dp0\nS'segments'\n", "does not begin like a pickle"),
        (pickle.dumps([1, 2, 3]), "unknown shape"),
        (pickle.dumps({"model": 1}), "neither segments nor device_traces"),
        (pickle.dumps({"device_traces": [[1, 2]]}), "unknown shape"),
        (pickle.dumps({"device_traces": 7}), "unknown shape"),
        (pickle.dumps({"device_traces": [[{"action": "alloc", "addr": "x", "size": 1}]]}), "unknown shape"),
        (pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]}), "impossible size"),
        (pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 2**51}]]}), "impossible size"),
        (
            pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 5, "time_us": 2**62}]]}),
            "impossible time",
        ),
        (pickle.dumps({"device_traces": [[{"action": ["alloc"], "addr": 1, "size": 5}]]}), "unknown shape"),
        (pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 2**70}]]}), "unknown shape"),
        (pickle.dumps({"segments": [{"address": 0, "total_size": 512, "blocks": 3}]}), "unknown shape"),
        (pickle.dumps({"segments": [{"device": -1, "address": 0, "total_size": 512}]}), "negative device"),
        (pickle.dumps(bytes(100)), "neither segments nor device_traces"),
        (pickle.dumps({1.5, 2.5}), "no snapshot holds"),
    ],
)
def test_foreign_files_are_named(tmp_path, data, words):
    assert words in refusal(write(tmp_path, data))


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.9, 0.9999])
def test_cut_off_files_are_named(tmp_path, share):
    for data in (RAW, lzma.compress(RAW), gzip.compress(RAW)):
        message = refusal(write(tmp_path, data[: max(20, int(len(data) * share))]))
        assert "cut off" in message or "not a readable pickle" in message or "damaged" in message


def test_damaged_packed_files_are_named(tmp_path):
    data = bytearray(lzma.compress(RAW))
    data[len(data) // 2] ^= 0xFF
    assert "damaged compressed file" in refusal(write(tmp_path, bytes(data)))


def test_what_is_not_a_file_is_named(tmp_path):
    assert "a directory" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "absent.pickle")
    if Path("/dev/null").exists():
        assert "not a regular file" in refusal(Path("/dev/null"))


class Trap:
    def __reduce__(self):
        return (open, ("/tmp/gpumem-trap", "w"))  # noqa: S108 (must never run)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [Trap(), {"segments": Trap()}, Exception("x"), 1j, Path("/")])
def test_code_never_runs(tmp_path, protocol, value):
    assert "run code" in refusal(write(tmp_path, pickle.dumps(value, protocol=protocol)))
    assert not Path("/tmp/gpumem-trap").exists()  # noqa: S108


def test_extension_codes_and_persistent_references_are_refused(tmp_path):
    for data in (
        b"\x80\x04\x82\x01.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02c__builtin__\neval\n.",
        b"\x80\x02(i__main__\nX\n.",
    ):
        assert "run code" in refusal(write(tmp_path, data + b"\0" * 32))


def test_a_bomb_is_not_unpacked(tmp_path):
    bomb = lzma.compress(b"\x80\x04" + b"]" * 300 * 2**20, preset=1)
    assert "unpacks to more than" in refusal(write(tmp_path, bomb))
    zeros = gzip.compress(bytes(2**20))
    assert "does not begin like a pickle" in refusal(write(tmp_path, zeros))
    packed = lzma.compress(RAW)
    assert "unpacks to more than" in refusal(write(tmp_path, packed), max_unpacked=len(RAW) - 1)
    assert "unpacks to more than" in refusal(write(tmp_path, RAW), max_unpacked=len(RAW) - 1)


def test_a_huge_memo_is_refused(tmp_path):
    # CPython's unpickler would allocate twice the index in pointers: 64 GiB for these few bytes.
    for index in (2**31, 2**32 - 1, 2**24):
        data = b"\x80\x02}r" + struct.pack("<I", index) + b"." + b"\0" * 32
        assert "no snapshot holds" in refusal(write(tmp_path, data))


def test_lengths_beyond_the_file_are_a_cut(tmp_path):
    for opcode, length in ((b"\x8d", b"\xff" * 8), (b"X", b"\xff" * 4), (b"\x8c", b"\xff")):
        assert "cut off" in refusal(write(tmp_path, b"\x80\x04" + opcode + length + b"abc."))


def test_deep_nesting_neither_crashes_nor_hangs(tmp_path):
    lists = b"\x80\x04" + b"]" + b"]" * 100_000 + b"a" * 100_000 + b"."
    assert "unknown shape" in refusal(write(tmp_path, lists))
    # As a dict key a nested tuple is hashed recursively in C: 200,000 levels end the process.
    tuples = b"\x80\x04})" + b"\x85" * 200_000 + b"K\x01s."
    assert "no snapshot holds" in refusal(write(tmp_path, tuples))
    pairs = b"\x80\x04})" + b"K\x00\x86" * 200_000 + b"K\x01s."
    assert "no snapshot holds" in refusal(write(tmp_path, pairs))
    # Sixty tuples that hold the one before twice: 2**60 steps to hash the last.
    doubled = b"\x80\x04}(K\x00K\x00\x86" + b"q\x01h\x01\x86" * 60 + b"K\x01u."
    assert "no snapshot holds" in refusal(write(tmp_path, doubled))


def test_lists_in_the_place_of_text_are_not_written_out(tmp_path):
    # Each level makes what is written out ten times longer, and the file some bytes.
    wide: list[Any] = ["a"]
    for _ in range(5):
        wide = [wide] * 10
    frames = [{"filename": wide, "line": 1, "name": wide}]
    event = {"action": "alloc", "addr": 512, "size": 512, "frames": frames}
    regions = [{"name": wide, "stage": "START", "device": 0, "time_us": 1}]
    snapshot = {"segments": [], "device_traces": [[event]], "external_annotations": regions}
    trace = read_trace(write(tmp_path, pickle.dumps(snapshot, protocol=4)))
    assert trace.stacks.frames == (Frame("", 1, ""),)
    assert [region.name for region in trace.regions] == [""]


def test_words_of_a_file_cannot_steer_the_terminal(tmp_path):
    event = {"action": "\x1b[31mred", "addr": 512, "size": 512}
    segment = {"device": 0, "address": 0, "total_size": 512, "blocks": [{"size": 512, "state": "\x07"}]}
    trace = read_trace(write(tmp_path, pickle.dumps({"segments": [segment], "device_traces": [[event]]}, protocol=4)))
    assert not any("\x1b" in words or "\x07" in words for words in trace.warnings)
    assert any(r"\x1b[31mred" in words for words in trace.warnings)


@pytest.mark.parametrize("protocol", [2, 4])
def test_pools_of_any_number_are_read(tmp_path, protocol):
    # A graph captured after 255 others; so many that frames of the pickle begin within pairs.
    count = 20_000
    events = [
        {"action": "alloc", "addr": 512 * n, "size": 512, "pool_id": (0, 256 + 300 * (n % 3))} for n in range(count)
    ]
    data = pickle.dumps({"segments": [], "device_traces": [events]}, protocol=protocol)
    (device,) = read_trace(write(tmp_path, data)).devices
    assert [device.pool_ids[number] for number in device.events.pool[:4].tolist()] == [
        (0, 256),
        (0, 556),
        (0, 856),
        (0, 256),
    ]
    assert len(device.events) == count


def test_repetition_is_bounded(tmp_path):
    blocks = [{"address": 512 * n, "size": 512, "state": "inactive", "requested_size": 1} for n in range(2000)]
    segment = {"device": 0, "address": 0, "total_size": 512 * 2000, "blocks": blocks}
    # A list of 50,000 references to one segment of 2,000 blocks: 100 million blocks from 300 kB.
    data = pickle.dumps({"segments": [segment] * 50_000, "device_traces": []}, protocol=4)
    assert "repeats itself" in refusal(write(tmp_path, data))


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_flipped_bytes_end_in_a_trace_or_in_one_line(tmp_path_factory, seed, count):
    generator = random.Random(seed)  # noqa: S311
    small = {"segments": SNAPSHOT["segments"][:3], "device_traces": [SNAPSHOT["device_traces"][0][:20]]}
    data = bytearray(pickle.dumps(small, protocol=generator.choice([2, 4])))
    for _ in range(count):
        data[generator.randrange(2, len(data))] = generator.randrange(256)
    path = write(tmp_path_factory.mktemp("flipped"), bytes(data))
    try:
        trace = read_trace(path)
    except SnapshotError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert all(np.all(device.events.size >= 0) or device.events.action.max() > 6 for device in trace.devices)
