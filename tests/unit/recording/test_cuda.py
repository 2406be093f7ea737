"""The CUDA source's rules, on a stand-in for torch; tests/gpu/cuda_checks.py holds the same against a real GPU."""

from __future__ import annotations

import time
import weakref

import numpy as np
import pytest

from gpumem_magic.recording import readings
from gpumem_magic.recording.cuda import CudaSource
from gpumem_magic.recording.model import Counts, SourceKind
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.trace.collector import paused_collector
from gpumem_magic.trace.model import Action


class Run:
    """A source around a few lines of the user's code."""

    def __init__(self, torch, **options):
        self.torch = torch
        self.notes = Notes()
        self.in_use: list[int] = []
        self.source = CudaSource(torch, RecordOptions(**options), self.notes, lambda: self.in_use.append(1))

    def __enter__(self):
        self.original = self.torch._C._cuda_record_memory_history
        self.source.start()
        self.began = time.time_ns() // 1000 + 1
        while time.time_ns() // 1000 < self.began:
            pass
        return self

    def __exit__(self, *_error):
        ended = time.time_ns() // 1000 + 1
        self.evidence = self.source.stop(self.began, ended)
        assert self.torch._C._cuda_record_memory_history == self.original
        assert self.torch.cuda._queued_calls == []

    def sizes(self, device=0):
        assert self.evidence.trace is not None
        events = next(d.events for d in self.evidence.trace.devices if d.device == device)
        return events.size[events.action == Action.ALLOC].tolist()

    @property
    def texts(self):
        return [note.text for note in self.notes.freeze()]


def test_with_cuda_in_use(fake_torch):
    torch = fake_torch(devices=2)
    torch.allocate(1)
    with Run(torch) as run:
        address = torch.allocate(10)
        torch.allocate(20, device=1)
        torch.free(address, 10)
    assert run.sizes(0) == [10]
    assert run.sizes(1) == [20]
    assert run.in_use == [1]
    assert run.texts == []
    assert torch.enabled is None
    assert torch.calls[0] == {
        "enabled": "all",
        "context": None,
        "stacks": "python",
        "max_entries": 1_000_000,
        "clear_history": True,
    }


@pytest.mark.parametrize(("stacks", "context", "asked"), [("python", "all", "python"), ("cpp", "all", "all")])
def test_stacks_are_asked_for(fake_torch, stacks, context, asked):
    torch = fake_torch()
    torch.initialise()
    with Run(torch, stacks=stacks, max_entries=50):
        pass
    assert (torch.calls[0]["context"], torch.calls[0]["stacks"], torch.calls[0]["max_entries"]) == (context, asked, 50)


def test_a_torch_that_cannot_clear_is_not_asked_to(fake_torch):
    torch = fake_torch(clear_history=False)
    torch.initialise()
    with Run(torch) as run:
        torch.allocate(5)
    assert run.sizes() == [5]


def test_first_use_inside_is_recorded_from_its_first_allocation(fake_torch):
    torch = fake_torch()
    with Run(torch) as run:
        assert torch.calls == []
        torch.allocate(10)
    assert run.sizes() == [10]
    assert torch.enabled is None


def test_unused_is_withdrawn_and_never_asks_the_recorder(fake_torch):
    torch = fake_torch()
    with Run(torch) as run:
        assert len(torch.cuda._queued_calls) == 1
    assert run.evidence.trace is None
    assert torch.calls == []
    torch.allocate(10)
    assert torch.enabled is None


def test_a_forked_child_is_not_recorded(fake_torch, monkeypatch):
    torch = fake_torch()
    with Run(torch) as run:
        monkeypatch.setattr("os.getpid", lambda: -1)
        torch.allocate(10)
        assert torch.enabled is None
    assert run.evidence.trace is None


def test_the_users_recording_is_left_alone_and_cut_by_time(fake_torch):
    torch = fake_torch()
    torch.initialise()
    torch.cuda.memory._record_memory_history(max_entries=100)
    torch.allocate(1)
    with Run(torch) as run:
        torch.allocate(10)
    assert run.sizes() == [10]
    assert len(torch.calls) == 1
    assert torch.enabled["max_entries"] == 100
    assert len(torch.rings[0]) == 2
    assert not run.evidence.truncated


def test_a_recording_made_before_cuda_was_in_use_is_the_users_too(fake_torch):
    torch = fake_torch()
    torch.initialising = True  # the C++ side only
    torch.cuda.memory._record_memory_history(max_entries=100)
    torch.initialising = False
    with Run(torch) as run:
        torch.allocate(10)
    assert run.sizes() == [10]
    assert torch.enabled["max_entries"] == 100


def test_the_users_small_ring_is_noticed(fake_torch):
    torch = fake_torch()
    torch.initialise()
    torch.cuda.memory._record_memory_history(max_entries=3)
    with Run(torch) as run:
        for size in range(1, 9):
            torch.allocate(size)
    assert run.evidence.truncated
    assert any("5 allocations are missing" in text for text in run.texts)


def test_our_own_ring_that_is_full_is_said(fake_torch):
    torch = fake_torch()
    torch.initialise()
    with Run(torch, max_entries=4) as run:
        for size in range(1, 9):
            torch.allocate(size)
    assert run.evidence.truncated
    assert run.sizes() == [5, 6, 7, 8]
    assert run.texts == ["more than 4 events overflowed the ring: the beginning is missing; --max-entries 8 keeps more"]


def test_a_recording_that_the_cell_starts_is_the_cells(fake_torch):
    torch = fake_torch()
    torch.initialise()
    with Run(torch) as run:
        torch.allocate(10)
        torch.cuda.memory._record_memory_history(max_entries=5)
        torch.allocate(20)
        assert [event["size"] for event in torch._snapshot()["device_traces"][0]] == [20]
    assert run.sizes() == [10, 20]
    assert torch.enabled["max_entries"] == 5
    assert not run.evidence.truncated
    assert any("of its own" in text for text in run.texts)


def test_a_recording_that_the_cell_stops_stays_stopped(fake_torch):
    torch = fake_torch()
    torch.initialise()
    torch.cuda.memory._record_memory_history(max_entries=50)
    with Run(torch) as run:
        torch.allocate(10)
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.allocate(20)
    assert run.sizes() == [10, 20]
    assert torch.enabled is None
    assert not run.evidence.truncated


def test_a_recording_that_the_cell_starts_and_stops(fake_torch):
    torch = fake_torch()
    with Run(torch) as run:
        torch.allocate(10)
        torch.cuda.memory._record_memory_history(max_entries=5)
        torch.allocate(20)
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.allocate(30)
    assert run.sizes() == [10, 20, 30]
    assert torch.enabled is None


def test_an_error_of_the_recorder_in_the_users_call_is_the_users(fake_torch):
    torch = fake_torch()
    torch.initialise()
    with Run(torch) as run, pytest.raises(TypeError):
        torch._C._cuda_record_memory_history("all", nonsense=1)
    assert run.evidence.trace is not None


def test_an_allocator_without_history_means_counters_and_why(fake_torch):
    torch = fake_torch()
    torch.initialise()

    def refuse():
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory. If you need it, say so")

    torch._C._cuda_isHistoryEnabled = refuse
    with Run(torch) as run:
        torch.allocate(10)
    assert run.source.kind is SourceKind.COUNTERS
    assert run.evidence.trace is None
    assert "no allocation events, counters only: RuntimeError: cudaMallocAsync does not yet" in run.texts[0]
    assert run.in_use == [1]


def test_a_failing_snapshot_is_a_note_and_the_recorder_is_off(fake_torch):
    torch = fake_torch()
    torch.initialise()

    def fail():
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch.cuda.memory._snapshot = fail
    with Run(torch) as run:
        torch.allocate(10)
    assert run.evidence.trace is None
    assert torch.enabled is None
    assert any("reading the CUDA recording failed" in text for text in run.texts)


def test_symbolising_finds_an_empty_compiler_module(fake_torch):
    torch = fake_torch()
    torch.initialise()
    with Run(torch):
        torch.allocate(10)
    assert torch.stub_seen == [True]
    assert "_inductor" not in vars(torch)
    torch._inductor = real = object()
    with Run(torch):
        pass
    assert torch._inductor is real


def test_events_outside_the_cell_are_not_the_cells(fake_torch):
    torch = fake_torch()
    torch.initialise()
    with Run(torch) as run:
        torch.allocate(10)
        run.began = time.time_ns() // 1000 + 50
        while time.time_ns() // 1000 < run.began:
            pass
        torch.allocate(20)
    assert run.sizes() == [20]
    assert np.all(run.evidence.trace.devices[0].events.time_us >= run.began)


def test_flushes_of_the_cache_are_counted_where_torch_counts_them(fake_torch):
    torch, notes = fake_torch(), Notes()
    torch.allocate(512)
    torch.flushes = 3
    (reading,) = readings.cuda_readings(torch, notes)
    assert reading.counts == Counts(allocations=1, flushes=3, retries=0)
    # Before CUDA was in use nothing had been counted.
    assert readings.unused_cuda_reading(reading, 0).counts == Counts(0, 0, 0)
    torch.flushes = None
    (old,) = readings.cuda_readings(torch, notes)
    assert old.counts is None
    assert readings.unused_cuda_reading(old, 0).counts is None


class _Entry(dict[str, object]):
    """An entry of a trace that tells whether it is still there."""


def test_torchs_entries_go_once_the_report_is_there(fake_torch, monkeypatch):
    torch = fake_torch()
    torch.allocate(1)
    taken = torch.cuda.memory._snapshot
    entries: list[weakref.ref[_Entry]] = []

    def snapshot():
        found = taken()
        found["device_traces"] = [[_Entry(entry) for entry in trace] for trace in found["device_traces"]]
        entries.extend(weakref.ref(entry) for trace in found["device_traces"] for entry in trace)
        return found

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    # Not by a collection, which may be far away.
    with paused_collector():
        with Run(torch) as run:
            torch.allocate(10)
            torch._C._cuda_record_memory_history(None, None, "all", 1)  # by the cell, which makes two parts of it
            torch.allocate(20)
        assert len(entries) == 2
        run.source.let_go()
        assert [entry() for entry in entries] == [None, None]
    assert run.sizes() == [10, 20]
