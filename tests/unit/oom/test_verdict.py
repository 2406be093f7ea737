"""Every verdict, from a recording that shows it and nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.analysis import analyse, analyse_trace
from gpumem_magic.analysis.anonymous import without_source
from gpumem_magic.analysis.model import Group
from gpumem_magic.analysis.oom import Cause, diagnose, parse_message
from gpumem_magic.analysis.oom.accidents import find_accidents
from gpumem_magic.holders.model import Category, Holder, HolderKind, HolderScan, Storage
from gpumem_magic.recording.model import (
    Cell,
    DeviceReading,
    Failure,
    Marks,
    Outcome,
    ProcessMemory,
    Recording,
    SourceKind,
)
from gpumem_magic.report.text import report_text
from gpumem_magic.trace.model import Action, Block, BlockState, DeviceTrace, Events, Segment, StackTable, Trace
from gpumem_magic.trace.reader import read_trace

MIB, GIB = 1 << 20, 1 << 30
DATA = Path(__file__).parents[2] / "data"
START = 1_700_000_000_000_000
FILE = "cell.py"
CELL = Cell(3, None, "%%gpumem\na = make()\nb = model(a)\nc = torch.empty(n)\n", (FILE,))
DEFAULTS = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}


class Heap:
    """A device's allocator by hand: addresses are chosen, the events and the final state follow."""

    def __init__(self):
        self.events, self.lines = [], []
        self.segments = {}  # address → (size, stream, pool)
        self.blocks = {}  # address → size
        self.old = 0

    def _event(self, action, address, size, line=0, stream=0):
        self.events.append((action, address, size, stream, START + 10 * len(self.events)))
        self.lines.append(line)

    def segment(self, address, size, stream=0, pool=(0, 0), *, recorded=True):
        self.segments[address] = (size, stream, pool)
        if recorded:
            self._event(Action.SEGMENT_ALLOC, address, size, stream=stream)

    def alloc(self, address, size, line, stream=0):
        self.blocks[address] = size
        self._event(Action.ALLOC, address, size, line, stream)

    def before(self, address, size):
        """In use before the cell."""
        self.blocks[address] = size

    def free(self, address):
        size = self.blocks.pop(address)
        self._event(Action.FREE_REQUESTED, address, size)
        self._event(Action.FREE_COMPLETED, address, size)

    def oom(self, size, free, line=4):
        self._event(Action.OOM, free, size, line)

    def device(self):
        segments = []
        for at, (size, stream, pool) in sorted(self.segments.items()):
            blocks, cursor = [], at
            for address in sorted(address for address in self.blocks if at <= address < at + size):
                if address > cursor:
                    blocks.append(Block(cursor, address - cursor, 0, BlockState.INACTIVE, 0))
                length = self.blocks[address]
                blocks.append(Block(address, length, length, BlockState.ACTIVE_ALLOCATED, 0))
                cursor = address + length
            if cursor < at + size:
                blocks.append(Block(cursor, at + size - cursor, 0, BlockState.INACTIVE, 0))
            small = size == 2 * MIB
            segments.append(Segment(at, size, stream, small, pool, is_expandable=False, stack=0, blocks=tuple(blocks)))
        action, address, size, stream, time_us = zip(*self.events, strict=True)
        events = Events(
            np.array(action, np.uint8),
            np.array(address, np.uint64),
            np.array(size, np.int64),
            np.array(stream, np.int64),
            np.array(time_us, np.int64),
            np.zeros(len(action), np.int32),
            np.full(len(action), -1, np.int32),
        )
        return DeviceTrace(0, "cuda", events, tuple(segments))

    def marks(self):
        places = tuple(((FILE, line, "<module>"),) for line in range(5))
        times = np.array([event[4] for event in self.events], np.int64)
        return Marks(times, np.ones(len(times), np.int64), np.array(self.lines, np.int32), places)


def reading(heap=None, *, total=80 * GIB, limit=None, outside=GIB // 2, others=0, **fields):
    reserved = sum(size for size, _, _ in heap.segments.values()) if heap is not None else fields.pop("reserved", 0)
    allocated = sum(heap.blocks.values()) if heap is not None else fields.pop("allocated", 0)
    return DeviceReading(
        "cuda:0",
        START + 10_000,
        allocated=allocated,
        reserved=reserved,
        process_used=reserved + outside,
        device_used=reserved + outside + others,
        device_total=total,
        limit=total if limit is None else limit,
        **fields,
    )


def cell(
    heap=None, *, after=None, conf=DEFAULTS, failure=None, holders=None, outcome=Outcome.OUT_OF_MEMORY, error=None
):
    trace = None if heap is None else Trace((heap.device(),), StackTable(), (), conf)
    recording = Recording(
        CELL,
        SourceKind.CUDA if trace is not None else SourceKind.NONE,
        outcome,
        START - 10,
        START + 10_000,
        after=(after,) if after is not None else (),
        trace=trace,
        marks=heap.marks() if heap is not None else None,
        error=error or "OutOfMemoryError: CUDA out of memory.",
        failure=failure,
    )
    return analyse(recording, holders=holders)


def full_card(total=80 * GIB):
    """A card of 80 GiB with 79 GiB in live tensors, of which line 2 made 60."""
    heap = Heap()
    heap.segment(1 << 40, 60 * GIB)
    heap.alloc(1 << 40, 60 * GIB, 2)
    heap.segment(2 << 40, 19 * GIB)
    heap.alloc(2 << 40, 19 * GIB, 3)
    heap.oom(2 * GIB, total - 79 * GIB - GIB // 2)
    return heap


def scattered(conf=DEFAULTS, failure=None):
    """Four segments of 256 MiB, a block of 64 MiB in the middle of each, and 128 MiB wanted under a limit of 1 GiB."""
    heap = Heap()
    for number in range(4):
        at = (number + 1) << 40
        heap.segment(at, 256 * MIB)
        heap.alloc(at, 96 * MIB, 2)
        heap.alloc(at + 96 * MIB, 64 * MIB, 3)
        heap.alloc(at + 160 * MIB, 96 * MIB, 2)
        heap.free(at)
        heap.free(at + 160 * MIB)
    heap.oom(128 * MIB, 70 * GIB)
    return cell(heap, after=reading(heap, limit=GIB), conf=conf, failure=failure)


def test_the_request_alone():
    heap = Heap()
    heap.segment(1 << 40, 2 * MIB)
    heap.alloc(1 << 40, MIB, 2)
    heap.oom(77 * GIB, 38 * GIB)
    found = cell(heap, after=reading(heap, total=39 * GIB))
    assert found.oom.cause is Cause.REQUEST
    assert found.sentence.startswith(
        "Out of memory at line 4 `c = torch.empty(n)`: it asked for 77.0 GiB in one piece, more than the whole card "
        "holds (39.0 GiB); no allocator setting can help. Peak "
    )
    assert not any("expandable" in line for line in found.oom.suggestions)


def test_true_demand_names_the_line_that_holds_most():
    heap = full_card()
    found = cell(heap, after=reading(heap))
    assert found.oom.cause is Cause.DEMAND
    assert found.oom.sentence == (
        "Out of memory at line 4 `c = torch.empty(n)`: it asked for 2.00 GiB, and live tensors really hold 79.0 GiB of "
        "the card's 80.0 GiB, 76% of it from line 2 `a = make()`."
    )
    assert found.oom.suggestions[0].startswith("begin with line 2 `a = make()`, which holds 60.0 GiB")
    assert "no allocator setting helps" in found.oom.suggestions[-1]


def test_fragmentation_has_three_numbers_and_what_pins():
    found = scattered()
    state = found.oom.evidence.state
    assert found.oom.cause is Cause.FRAGMENTATION
    assert (state.free, state.releasable, state.unreleasable) == (768 * MIB, 0, 768 * MIB)
    assert (state.usable, state.largest) == (768 * MIB, 96 * MIB)
    assert [(pin.size, pin.used, pin.blocks, pin.group.line) for pin in state.pins] == [(256 * MIB, 64 * MIB, 1, 3)] * 4
    assert found.oom.sentence == (
        "Out of memory at line 4 `c = torch.empty(n)`: it asked for 128 MiB; torch holds 768 MiB free for it, but the "
        "largest piece is 96.0 MiB; a segment of 256 MiB is pinned by 1 block (64.0 MiB) of line 3 `b = model(a)`."
    )
    assert found.oom.suggestions[0].startswith("free the 64.0 MiB of line 3 `b = model(a)` before this line")
    advice = found.oom.suggestions[1]
    assert 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"' in advice
    # Replayed, not believed; this recording has no event for its segments, so the model cannot repeat it.
    told = (
        "replayed with it, the request fits, with 480 MiB of 1.00 GiB reserved (an estimate: the model does not repeat"
    )
    assert told in advice


def test_a_setting_that_would_not_have_helped_is_not_recommended():
    # In every page of 20 MiB something stays, so that growing segments give nothing back either.
    heap = Heap()
    heap.segment(1 << 40, 1000 * MIB)
    for number in range(100):
        heap.alloc((1 << 40) + number * 10 * MIB, 10 * MIB, 2 + number % 2)
    for number in range(0, 100, 2):
        heap.free((1 << 40) + number * 10 * MIB)
    heap.oom(64 * MIB, 70 * GIB)
    found = cell(heap, after=reading(heap, limit=1010 * MIB))
    assert found.oom.cause is Cause.FRAGMENTATION
    assert not any("os.environ" in line for line in found.oom.suggestions)
    (line,) = [line for line in found.oom.suggestions if line.startswith("segments that grow")]
    assert line.startswith(
        "segments that grow (expandable_segments:True) would not have helped: replayed with it, the program still asks "
        "for more than 0.99 GiB"
    )


def test_expandable_segments_are_not_recommended_where_they_are_on():
    found = scattered({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": True})
    assert not any("os.environ" in line for line in found.oom.suggestions)


@pytest.mark.parametrize(("stream", "pool", "words"), [(7, (0, 0), "other streams"), (0, (0, 5), "private pools")])
def test_free_memory_where_the_request_may_not_go(stream, pool, words):
    heap = Heap()
    heap.segment(1 << 40, 512 * MIB, stream, pool)
    heap.alloc(1 << 40, 16 * MIB, 2, stream)
    heap.oom(256 * MIB, 70 * GIB)
    found = cell(heap, after=reading(heap, limit=600 * MIB))
    assert found.oom.cause is Cause.FRAGMENTATION
    assert words in found.oom.sentence
    assert not any("expandable" in line for line in found.oom.suggestions)


def test_a_setting_that_came_too_late():
    failure = Failure("", environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, torch_version="2.11.0")
    found = scattered(failure=failure)
    assert found.oom.cause is Cause.SETTING
    assert "PYTORCH_CUDA_ALLOC_CONF was set after torch first used the GPU" in found.oom.sentence
    assert found.oom.suggestions[0].startswith("restart the kernel")
    unsupported = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False}
    assert "this build or platform does not support it" in scattered(unsupported, failure).oom.sentence


def test_other_settings_are_kept_in_what_is_recommended():
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8,max_split_size_mb:128"}
    text = next(
        line for line in scattered(conf | {"expandable_segments": False}).oom.suggestions if "os.environ" in line
    )
    assert '"expandable_segments:True,garbage_collection_threshold:0.8"' in text


def test_the_limit_of_this_process():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    heap.oom(16 * MIB, 70 * GIB)
    found = cell(heap, after=reading(heap, limit=GIB))
    assert found.oom.cause is Cause.LIMIT
    assert "the limit of this process, 1.00 GiB, (memory fraction) stopped it while the card had 70.0 GiB free" in (
        found.oom.sentence
    )
    # 1.016 GiB of 80: two decimals, upwards.
    assert found.oom.suggestions[0] == (
        "raise the limit: torch.cuda.set_per_process_memory_fraction(0.02) lets this request pass"
    )


def test_other_processes_are_named():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    heap.oom(4 * GIB, 2 * GIB)
    failure = Failure("", processes=(ProcessMemory("cuda:0", 41, 76 * GIB, "python", is_self=False),))
    found = cell(heap, after=reading(heap, others=76 * GIB + GIB // 2), failure=failure)
    assert found.oom.cause is Cause.OTHERS
    assert "other processes hold 76.5 GiB of the card's 80.0 GiB (PID 41 python: 76.0 GiB)" in found.oom.sentence
    assert found.oom.suggestions[0].startswith("stop or wait for PID 41 (python)")


def test_memory_outside_torch():
    heap = Heap()
    heap.segment(1 << 40, 10 * GIB)
    heap.alloc(1 << 40, 10 * GIB, 2)
    heap.oom(4 * GIB, GIB)
    found = cell(heap, after=reading(heap, outside=69 * GIB))
    assert found.oom.cause is Cause.OUTSIDE
    assert "69.0 GiB of this process lies outside torch" in found.oom.sentence


def test_a_context_is_no_finding():
    heap = full_card()
    assert cell(heap, after=reading(heap, outside=GIB // 2)).oom.cause is Cause.DEMAND


def kept_by(kind, path):
    holder = Holder(kind, path, path)
    return HolderScan(
        (Storage("cuda:0", 1 << 40, 60 * GIB, 1, (1,), "uint8", Category.OTHER, (holder,)),), 1, 0.0, None
    )


def test_memory_kept_by_accident():
    heap = full_card()
    found = cell(heap, after=reading(heap), holders=kept_by(HolderKind.OUTPUT, "Out[7]"))
    assert found.oom.cause is Cause.ACCIDENT
    assert "60.0 GiB was kept by accident, by the output history (Out[7])" in found.oom.sentence
    assert found.oom.suggestions[0] == "run `%gpumem_free --out` in a cell of its own, then this cell again"
    # A variable is meant, and what only the new error holds was in use.
    for kind in (HolderKind.VARIABLE, HolderKind.LAST_ERROR):
        assert cell(heap, after=reading(heap), holders=kept_by(kind, "x")).oom.cause is Cause.DEMAND


def test_what_the_error_before_held_is_seen_when_it_goes():
    heap = Heap()
    heap.segment(1 << 40, 60 * GIB, recorded=False)
    heap.before(1 << 40, 60 * GIB)
    heap.segment(2 << 40, 19 * GIB)
    heap.alloc(2 << 40, 19 * GIB, 3)
    heap.oom(2 * GIB, GIB // 2)
    heap.free(1 << 40)
    held = reading(heap)
    failure = Failure("", previous_error="ValueError")
    found = cell(heap, after=held, failure=failure)
    assert found.oom.cause is Cause.ACCIDENT
    assert "60.0 GiB was kept by accident, by the error before this one (ValueError)" in found.oom.sentence
    # Without an older error, something else freed it.
    assert cell(heap, after=held, failure=Failure("")).oom.cause is Cause.DEMAND


ALLOWED = "1024.00 MiB allowed; "


def from_text(text, *, after=None, frames=((FILE, 4, "<module>"),)):
    return cell(after=after, failure=Failure(text, frames=frames)).oom


def cuda(tried, total, free, process, allocated, unallocated, more=""):  # noqa: PLR0917 - the text's order
    own = f"Including non-PyTorch memory, this process has {process} memory in use. " if process else ""
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which {free} is "
        f"free. {more}{own}Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved "
        "by PyTorch but unallocated."
    )


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (cuda("77.40 GiB", "38.60 GiB", "30.00 GiB", "8.60 GiB", "7.90 GiB", "200.00 MiB"), Cause.REQUEST, "77.4 GiB"),
        (cuda("2.00 GiB", "15.78 GiB", "1.20 GiB", "14.50 GiB", "9.00 GiB", "5.00 GiB"), Cause.FRAGMENTATION, "likely"),
        (cuda("20.00 MiB", "11.93 GiB", "5.62 MiB", "11.92 GiB", "11.40 GiB", "94.57 MiB"), Cause.DEMAND, "up to"),
        (cuda("20.00 MiB", "11.17 GiB", "12.50 MiB", "0.90 GiB", "506.00 MiB", "24.00 MiB"), Cause.OTHERS, "10.3 GiB"),
        (
            cuda("20.00 MiB", "11.17 GiB", "12.50 MiB", None, "506.00 MiB", "24.00 MiB"),
            Cause.OTHERS,
            "the driver does not tell which",
        ),
        (cuda("8.00 GiB", "79.00 GiB", "1.00 GiB", "78.00 GiB", "20.00 GiB", "1.00 GiB"), Cause.OUTSIDE, "57.0 GiB"),
        (
            cuda("16.00 MiB", "139.80 GiB", "138.13 GiB", "1.66 GiB", "1023.00 MiB", "1.00 MiB", ALLOWED),
            Cause.LIMIT,
            "1.00 GiB",
        ),
        (
            (
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                "per_process_memory_fraction limit. Requested size: 4.00 GiB"
            ),
            Cause.LIMIT,
            "the driver was not asked",
        ),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", Cause.REQUEST, "overflowed"),
        (
            (
                "MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 613.56 MB, max allowed: 18.13 "
                "GB). Tried to allocate 192.00 MB on private pool."
            ),
            Cause.DEMAND,
            "live tensors really hold 17.4 GiB of the Mac's 18.1 GiB",
        ),
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU ", Cause.UNKNOWN, "the numbers at hand do not tell"),
        ("CUDA error: out of memory", Cause.UNKNOWN, "without numbers"),
    ],
)
def test_from_the_errors_text_alone(text, cause, words):
    found = from_text(text)
    assert found.cause is cause, found.sentence
    assert words in found.sentence
    assert found.sentence.startswith("Out of memory at line 4 `c = torch.empty(n)`: ")


def test_a_container_lists_this_process_under_a_strange_number():
    more = "Process 3652628 has 47.51 GiB memory in use. "
    found = from_text(cuda("256.00 MiB", "47.53 GiB", "16.88 MiB", None, "47.14 GiB", "57.79 MiB", more))
    assert found.cause is Cause.DEMAND
    assert found.evidence.process.value == pytest.approx(47.51 * GIB, rel=1e-3)


def test_a_driver_error_is_judged_by_the_readings():
    others = reading(reserved=GIB, allocated=GIB, others=78 * GIB)
    assert from_text("CUDA error: out of memory", after=others).cause is Cause.OTHERS
    cached = reading(reserved=78 * GIB, allocated=8 * GIB, outside=GIB)
    found = from_text("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", after=cached)
    assert found.cause is Cause.OUTSIDE
    assert found.suggestions[0] == "call torch.cuda.empty_cache() before this line: it gives back up to 70.0 GiB"


@pytest.mark.parametrize(
    ("size", "used", "own", "cause"),
    [
        (1 << 50, 8, 1, Cause.REQUEST),
        (20 * GIB, 20, 16, Cause.DEMAND),
        (20 * GIB, 26, 1, Cause.OTHERS),
        (4 * GIB, 8, 1, Cause.LIMIT),
    ],
)
def test_the_cpu(size, used, own, cause):
    host = DeviceReading("cpu", 0, process_used=own * GIB, device_used=used * GIB, device_total=32 * GIB)
    text = (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        f"allocate {size} bytes. Error code 12 (Cannot allocate memory)"
    )
    found = from_text(text, after=host)
    assert found.cause is cause, found.sentence


def test_a_workers_error_is_not_explained_with_this_process_numbers():
    heap = full_card()
    text = (
        "Caught OutOfMemoryError in DataLoader worker process 3.\nOriginal Traceback:\ntorch.OutOfMemoryError: "
        + cuda("2.00 GiB", "80.00 GiB", "100.00 MiB", "79.00 GiB", "78.00 GiB", "10.00 MiB")
    )
    found = cell(heap, after=reading(heap), failure=Failure(text)).oom
    assert found.evidence.state is None
    assert "in DataLoader worker process 3" in found.sentence
    assert "whose memory is not recorded here" in found.unknown[0]


def test_an_older_failure_that_was_caught_is_not_taken_for_this_one():
    heap = full_card()
    text = cuda("512.00 MiB", "80.00 GiB", "100.00 MiB", "79.00 GiB", "78.00 GiB", "10.00 MiB")
    found = cell(heap, after=reading(heap), failure=Failure(text)).oom
    assert found.evidence.state is None
    assert found.evidence.segment.value == 512 * MIB


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("oom_growth", Cause.LIMIT, "it asked for 16.0 MiB"),
        ("oom_fragmented", Cause.FRAGMENTATION, "2.12 GiB free for it, but the largest piece is 30.0 MiB"),
    ],
)
def test_real_recordings(name, cause, words):
    trace = read_trace(DATA / "recordings" / f"{name}.pickle.xz")
    found = analyse_trace(trace, name)
    row = next(
        row for row in json.loads((DATA / "oom" / "messages.json").read_text("utf-8")) if row["recording"] == name
    )
    assert found.oom is not None
    assert found.oom.cause is cause
    assert words in found.sentence
    # The replayed moment is what torch itself said of it, to two decimals.
    message: Any = parse_message(row["message"])
    state: Any = found.oom.evidence.state
    assert message.allocated.low <= state.allocated <= message.allocated.high
    assert message.unallocated.low <= state.reserved - state.allocated <= message.unallocated.high
    assert message.tried.low <= state.segment <= message.tried.high
    assert message.free.low <= state.device_free <= message.free.high


def test_a_verdict_that_fails_takes_no_number_with_it():
    heap = full_card()
    whole, found = cell(heap, after=reading(heap)), cell(heap, after=reading(heap), holders=object())
    assert found.oom is None
    assert [note.text for note in found.notes if "verdict failed" in note.text] == [
        "the out-of-memory verdict failed (AttributeError); the numbers below are not affected"
    ]
    assert [device.headline for device in found.devices] == [device.headline for device in whole.devices]
    assert found.sentence


def test_real_messages_get_a_verdict_that_their_counters_support():
    for row in json.loads((DATA / "oom" / "messages.json").read_text("utf-8")):
        found = from_text(row["message"])
        # All of them ran under a limit far below the card.
        assert found.cause in {Cause.LIMIT, Cause.FRAGMENTATION}, (row, found.sentence)


def test_without_a_failure_there_is_no_verdict():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    found = cell(heap, after=reading(heap), outcome=Outcome.OK, error=None)
    assert found.oom is None
    assert diagnose([], None) is None


def test_the_report_shows_numbers_and_suggestions_under_the_sentence():
    found = scattered()
    lines = report_text(found).splitlines()
    assert lines[1] == "  why: asked for 128 MiB, 128 MiB more than could be had"
    assert "free 768 MiB (releasable 0 B, unreleasable 768 MiB), largest piece for this request 96.0 MiB" in lines[2]
    assert next(line for line in lines if line.startswith("  do: ")).startswith("  do: free the 64.0 MiB")
    texts = [note.text for note in found.shown_notes]
    assert texts[0] == "Why: asked for 128 MiB, 128 MiB more than could be had"
    assert any(text.startswith("Do 1: free the 64.0 MiB") for text in texts)


def test_a_report_to_share_has_no_source():
    shared = report_text(without_source(scattered()))
    assert "model(a)" not in shared
    assert "torch.empty" not in shared


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_combination_of_missing_numbers_gets_a_verdict(data):
    sizes = st.sampled_from(["0 bytes", "512 bytes", "2.00 MiB", "20.00 MiB", "1.00 GiB", "79.99 GiB", "9e9 GiB", ""])
    text = cuda(*(data.draw(sizes) for _ in range(6)))
    numbers = st.none() | st.integers(0, 1 << 45)
    after = DeviceReading(
        "cuda:0",
        0,
        **{
            field.name: data.draw(numbers)
            for field in dataclasses.fields(DeviceReading)
            if field.name in {"allocated", "reserved", "process_used", "device_used", "device_total", "limit"}
        },
    )
    kind = data.draw(st.sampled_from([text, "CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory"]))
    found = from_text(kind, after=after)
    assert found.sentence.endswith(".")
    assert found.suggestions
    assert all("\n" not in line for line in found.lines())


def held_by(paths, idle=()):
    """A scan in which each path keeps 20 GiB of a card that is full."""
    storages = tuple(
        Storage(
            "cuda:0", (n + 1) << 40, 20 * GIB, 1, (1,), "uint8", Category.OTHER, (Holder(HolderKind.VARIABLE, p, p),)
        )
        for n, p in enumerate(paths)
    )
    return HolderScan(storages, 1, 0.0, None, idle=dict(idle))


def full_of_variables():
    heap = Heap()
    for number in (1, 2, 3):
        heap.segment(number << 40, 20 * GIB, recorded=False)
        heap.before(number << 40, 20 * GIB)
    heap.segment(9 << 40, 19 * GIB)
    heap.alloc(9 << 40, 19 * GIB, 3)
    heap.oom(20 * GIB, GIB // 2)
    return heap


def test_variables_of_earlier_cells_that_nothing_uses():
    heap = full_of_variables()
    idle = {"model1": "last used in In [3]", "model2": "last used in In [5]"}
    found = cell(heap, after=reading(heap), holders=held_by(["model1.weight", "model2.weight", "data"], idle))
    assert found.oom.cause is Cause.ACCIDENT
    text = "40.0 GiB was kept by accident, by old variables that this cell does not use: `model1` (last used in In [3])"
    assert text in found.oom.sentence
    command = "run `%gpumem_free --vars model1 model2` in a cell of its own, then this cell again"
    assert found.oom.suggestions[0] == command
    # What this cell or a recent one uses is meant.
    assert cell(heap, after=reading(heap), holders=held_by(["model1", "model2", "data"])).oom.cause is Cause.DEMAND


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("model = Model()", "model"),
        ("model = Model(", "model"),
        ("model: Net = Model(", "model"),
        ("x = x + model(y)", None),
        ("x += 1", None),
        ("f(model)", None),
        ("model.head = Head()", None),
        ("if model == 3:", None),
    ],
)
def test_which_name_a_line_binds_anew(source, name):
    line = Group("line", "line 3", source)
    found = find_accidents("cuda:0", None, None, held_by(["model.weight", "x"]), line)
    if name is None:
        assert found == ()
    else:
        (accident,) = found
        assert (accident.bytes, accident.cure) == (
            20 * GIB,
            "del model (with all that refers to it) before this line",
        )
        assert "the old value of `model`" in accident.holder


@pytest.mark.parametrize(("rest", "cause"), [(58, Cause.ACCIDENT), (230, Cause.DEMAND)])
def test_what_a_name_held_before_is_small_in_a_loop_that_fills_a_cache(rest, cause):
    """Each turn of such a loop binds its variable anew, and the old value is in the cache as well."""
    heap = Heap()
    heap.segment(1 << 40, 20 * GIB, recorded=False)
    heap.before(1 << 40, 20 * GIB)
    heap.segment(9 << 40, rest * GIB)
    heap.alloc(9 << 40, rest * GIB, 2)
    heap.oom(20 * GIB, GIB // 2, line=4)
    total = (20 + rest + 2) * GIB
    found = cell(heap, after=reading(heap, total=total), holders=held_by(["c"]))
    assert found.oom.cause is cause, found.oom.sentence
