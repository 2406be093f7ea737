"""The CPU source against torch itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.recording.cpu import CpuSource
from gpumem_magic.recording.cpu.source import _is_noise
from gpumem_magic.recording.main_thread import run_on_main_thread
from gpumem_magic.recording.model import Cell, Outcome, SourceKind
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.recording.ticker import shut_down
from gpumem_magic.trace.model import Action

torch = pytest.importorskip("torch")

KIB = 1024


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    shut_down()


def record(run, **options):
    recorder = Recorder(RecordOptions(**options))
    recorder.start()
    result = run()
    recording = recorder.stop(Cell(None, None, ""))
    return recording, result


def events_of(recording):
    (device,) = recording.trace.devices
    assert device.key == "cpu"
    assert not device.has_snapshot
    return device.events


def test_every_allocation_and_free_of_the_block():
    kept = []

    def run():
        lost = torch.empty(256)
        kept.append(torch.empty(512))
        del lost

    recording, _ = record(run)
    assert recording.source is SourceKind.CPU
    assert recording.outcome is Outcome.OK
    events = events_of(recording)
    assert [Action(action).name for action in events.action] == ["ALLOC", "ALLOC", "FREE_REQUESTED", "FREE_COMPLETED"]
    assert events.size.tolist() == [KIB, 2 * KIB, KIB, KIB]
    assert len(set(events.addr[[0, 2, 3]].tolist())) == 1
    assert np.all(np.diff(events.time_us) >= 0)
    assert recording.started_us <= events.time_us[0]
    assert events.time_us[-1] <= recording.ended_us


def test_peak_and_rest_equal_the_storages():
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]

    def run():
        x = torch.randn(32, 64)
        for layer in layers:
            x = layer(x).relu()
        x.sum().backward()
        return [layer.weight.grad for layer in layers]

    recording, grads = record(run)
    events = events_of(recording)
    signed = np.where(events.action == Action.ALLOC, events.size, 0)
    signed[events.action == Action.FREE_COMPLETED] = -events.size[events.action == Action.FREE_COMPLETED]
    biases = [layer.bias.grad for layer in layers]
    assert signed.sum() == sum(grad.untyped_storage().nbytes() for grad in (*grads, *biases))
    assert signed.cumsum().max() > signed.sum()


def test_frees_of_older_memory_are_left_out_because_their_size_is_not_known():
    old = [torch.empty(100) for _ in range(50)]
    recording, _ = record(old.clear)
    assert recording.trace.devices == ()
    # The same address again, unseen by any profiler, must not come back with its former size.
    recording, first = record(lambda: torch.empty(333))
    del first
    second = [torch.empty(333) for _ in range(10)]
    recording, _ = record(second.clear)
    assert recording.trace.devices == ()


def test_regions_of_the_user_do_not_hide_what_is_inside():
    def run():
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            inside = torch.empty(256)
        return inside, torch.empty(512)

    recording, _ = record(run)
    events = events_of(recording)
    assert events.size[events.action == Action.ALLOC].tolist() == [KIB, 2 * KIB]


def test_more_events_than_allowed_keeps_the_first_and_says_so():
    kept: list[object] = []
    recording, _ = record(lambda: kept.extend(torch.empty(16) for _ in range(40)), max_entries=25)
    events = events_of(recording)
    assert int(np.count_nonzero(events.action == Action.ALLOC)) == 25
    assert recording.truncated
    assert any("first 25 events" in note.text and "--max-entries 50" in note.text for note in recording.notes)


@pytest.fixture
def counts_all_the_time(monkeypatch):
    """Let every look ask for a count, and count how often that happened."""
    monkeypatch.setattr("gpumem_magic.recording.cpu.growth.Growth.look", lambda _self: True)
    counted = []
    empty = CpuSource._empty

    def counting(self):
        counted.append(True)
        empty(self)

    monkeypatch.setattr(CpuSource, "_empty", counting)
    return counted


def test_events_are_counted_while_the_block_runs(counts_all_the_time):
    """A long block with few events allowed: the profiler is off before the block ends."""
    notes = Notes()
    source = CpuSource(torch, 30, notes)
    began = time.time_ns() // 1000
    source.start()
    kept = []
    deadline = time.monotonic() + 10
    while torch._C._autograd._profiler_enabled() and time.monotonic() < deadline:
        kept.append(torch.empty(16))
        time.sleep(0.005)
    assert not torch._C._autograd._profiler_enabled()
    evidence = source.stop(began, time.time_ns() // 1000)
    assert counts_all_the_time
    assert evidence.truncated
    assert evidence.trace is not None
    assert len(evidence.trace.devices[0].events) == 30


def test_counting_in_between_loses_nothing(counts_all_the_time):
    """Frees of blocks from before a count keep their size, and frees of older ones stay out."""
    old = [torch.empty(100) for _ in range(30)]
    kept = []

    def run():
        for step in range(60):
            kept.append(torch.empty(16))
            if step >= 20:
                kept.pop(0)
                old[step % 30 : step % 30 + 1] = []
            time.sleep(0.01)

    recording, _ = record(run)
    events = events_of(recording)
    assert len(counts_all_the_time) > 3
    assert int(np.count_nonzero(events.action == Action.ALLOC)) == 60
    assert events.size[events.action == Action.FREE_COMPLETED].tolist() == [64] * 40
    assert not recording.truncated


class Slow(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Runs Python inside torch's own calls, long enough for a count."""

    @staticmethod
    def forward(_ctx, x):
        busy()
        return x * 2

    @staticmethod
    def backward(_ctx, grad):
        busy()
        return grad


def busy():
    for _ in range(20):
        torch.empty(3)
        time.sleep(0.01)


def test_counting_inside_a_backward_leaves_no_warning_there(counts_all_the_time):
    """torch keeps warnings of Python code below it back, and raises them where its own call ends."""

    def run():
        x = torch.ones(3, requires_grad=True)
        Slow.apply(x).sum().backward()
        x.mul(1).register_hook(lambda _grad: busy())
        torch.ones(4).map_(torch.ones(4), lambda a, _b: busy() or a)

    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        recording, _ = record(run)
    assert len(counts_all_the_time) > 5
    assert [str(warning.message) for warning in raised] == []
    sizes = events_of(recording).size[events_of(recording).action == Action.ALLOC]
    assert int(np.count_nonzero(sizes == 12)) >= 40


def test_events_of_a_backward_in_which_it_is_time_to_count_are_all_there(counts_all_the_time):
    """autograd runs each node under the profiler that was on when the backward began."""

    def run():
        x = torch.ones(5, requires_grad=True)
        y = Slow.apply(Slow.apply(x)).sum()
        y.backward()
        busy()

    recording, _ = record(run)
    events = events_of(recording)
    made = events.size[events.action == Action.ALLOC]
    freed = events.size[events.action == Action.FREE_COMPLETED]
    assert len(counts_all_the_time) > 3
    # Two forwards, two backwards and the last one, each with 20 tensors of three numbers.
    assert int(np.count_nonzero(made == 12)) == int(np.count_nonzero(freed == 12)) == 100


def test_a_count_within_a_transform_waits_for_its_end(counts_all_the_time):
    """What we call apart from the user's code may not run where ``torch.func`` is at work."""

    def slow(x):
        busy()
        return (x * torch.ones(7)).sum()

    recording, _ = record(lambda: torch.func.vmap(torch.func.grad(slow))(torch.ones(4, 7)))
    assert len(counts_all_the_time) > 3
    assert recording.notes == ()
    made = events_of(recording)
    assert int(np.count_nonzero(made.size[made.action == Action.ALLOC] == 12)) == 20


def test_a_profiler_that_cannot_be_stopped_leaves_nothing_of_ours(monkeypatch):
    def refuses(*_args):
        raise RuntimeError("no")

    notes = Notes()
    source = CpuSource(torch, 30, notes)
    source.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("gpumem_magic.recording.cpu.source.call_apart", refuses)
            source.stop(0, 1)
    finally:
        torch._C._autograd._disable_profiler()
    assert source._blocks == []
    assert any("stopping the CPU recording failed" in note.text for note in notes.freeze())


def test_a_count_leaves_a_graph_that_is_being_traced_alone(counts_all_the_time):
    def traced(x):
        busy()
        return x + 1

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on tracing
        record(lambda: found.append(str(torch.jit.trace(traced, torch.ones(2), check_trace=False).graph)))
    assert counts_all_the_time
    assert "aten::add" in found[0]
    assert "PythonOp" not in found[0]
    assert "Apart" not in found[0]


def test_a_flood_of_tensors_is_stopped_long_before_the_block_ends():
    """Three times over, since memory that a former recording gave back must not hide what the next one takes."""
    allowed = 50_000
    for _ in range(3):
        made, after = 0, 0

        def run():
            nonlocal made, after
            while after < 100_000:
                torch.empty(1)
                made += 1
                after += not torch._C._autograd._profiler_enabled()

        recording, _ = record(run, max_entries=allowed)
        assert recording.truncated
        assert int(np.count_nonzero(events_of(recording).action != Action.FREE_COMPLETED)) == allowed
        assert made - after < 12 * allowed


def test_the_profiler_is_off_and_nothing_is_replaced_afterwards():
    profiler = torch.autograd.profiler
    before = (profiler._enable_profiler, profiler._prepare_profiler)
    record(lambda: torch.empty(4))
    assert not torch._C._autograd._profiler_enabled()
    assert (profiler._enable_profiler, profiler._prepare_profiler) == before


def test_nothing_is_written_to_standard_error(capfd):
    old = [torch.empty(8) for _ in range(600)]
    record(old.clear)
    record(lambda: torch.empty(4))
    assert capfd.readouterr().err == ""


def test_a_block_in_another_block():
    inner = []

    def run():
        outside = torch.empty(256)
        inner.append(record(lambda: torch.empty(512))[0])
        return outside

    recording, _ = record(run)
    assert inner[0].source is SourceKind.COUNTERS
    assert events_of(recording).size.tolist() == [KIB, 2 * KIB, 2 * KIB, 2 * KIB]


def told_of_threads(recording):
    return [note.text for note in recording.notes if "other Python threads" in note.text]


def test_tensors_of_other_threads_are_said_to_be_missing():
    def run():
        thread = threading.Thread(target=lambda: torch.empty(256), name="loader")
        thread.start()
        thread.join()
        return thread

    recording, thread = record(run)
    assert told_of_threads(recording) == ["CPU tensors made on other Python threads are not seen: this cell ran loader"]
    # It is over, so the next recording has nothing to say.
    recording, _ = record(lambda: (torch.empty(4), thread))
    assert told_of_threads(recording) == []


def test_threads_of_ours_are_nobodys_also_once_they_have_ended():
    def run():
        thread = threading.Thread(target=lambda: None, name="gpumem_magic line marks")
        thread.start()
        thread.join()
        return thread

    recording, _ = record(run)
    assert told_of_threads(recording) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="other systems do not tell")
def test_a_pool_from_before_counts_when_it_works():
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(int).result()
        recording, _ = record(lambda: time.sleep(0.01))
        assert told_of_threads(recording) == []
        recording, _ = record(lambda: pool.submit(lambda: sum(range(1_000_000))).result())
        assert told_of_threads(recording) == [
            "CPU tensors made on other Python threads are not seen: this cell ran pool_0"
        ]


def test_recording_on_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(record(lambda: torch.empty(256))[0]))
    thread.start()
    thread.join()
    assert events_of(found[0]).size.tolist()[0] == KIB


def test_readings_are_the_hosts():
    recording, _ = record(lambda: torch.empty(4))
    (before,), (after,) = recording.before, recording.after
    assert before.device == after.device == "cpu"
    assert after.allocated is None
    assert "allocated" in after.missing
    assert after.process_used > 10 * KIB * KIB
    assert after.device_total > after.device_used > 0
    assert before.time_us <= recording.started_us <= recording.ended_us <= after.time_us


def test_recordings_keep_nothing_alive():
    recording, kept = record(lambda: torch.empty(4))
    import weakref

    watch = weakref.ref(kept)
    del kept
    gc.collect()
    assert watch() is None
    assert recording.trace is not None


def test_a_device_that_is_not_there_is_named():
    recording, _ = record(lambda: torch.empty(4), device="3")
    assert any("no device 3 here" in note.text for note in recording.notes)
    assert recording.trace.devices == ()


def test_a_fork_inside_a_recording_leaves_the_child_alone():
    def run():
        kept = torch.empty(256)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return kept

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads, which torch itself has
        recording, _ = record(run)
    assert events_of(recording).size.tolist() == [KIB]


def test_an_interrupt_while_events_are_counted_reaches_the_cell():
    counted = []

    def press_while_counting():
        signal.raise_signal(signal.SIGINT)
        counted.append(True)

    run_on_main_thread(press_while_counting)
    with pytest.raises(KeyboardInterrupt):
        _wait_in_many_bytecodes()
    assert counted == [True]


def _wait_in_many_bytecodes():
    for _ in range(1000):
        time.sleep(0.01)


@pytest.mark.parametrize(
    "line",
    [
        b"USDT: kineto:profiler_start 1\n",
        b"USDT:kineto profiler_stop\n",
        b"[W1130 collection.cpp:9] Warning: Failed to recover relationship between all profiler and kineto events\n",
        b"[W1130 CPUAllocator.cpp:245] Memory block of unknown size was allocated before the profiling started\n",
        b"WARNING:2026-11-30 08:26:31 1234:1234 DeviceProperties.cpp:47] gpuGetDeviceCount failed with code 35\n",
        b"  WARNING: 2026-11-30 08:26:31 1234:1234 init.cpp:178] cbapi->getCuptiStatus() failed with error 15\n",
        b"ERROR: 2026-11-30 08:26:31 1234:1234 CuptiActivityProfiler.cpp:243] CUPTI initialization failed\n",
        b"INFO: 2026-11-30 08:26:31 1234:1234 ActivityProfilerController.cpp:300] Completed Stage: Warm Up\n",
        b"INFO: 2026-11-30 08:26:31 1234:1234 output_json.cpp:580] Chrome Trace written\n",
    ],
)
def test_the_profilers_own_lines_are_noise(line):
    assert _is_noise(line)


@pytest.mark.parametrize(
    "line",
    [
        b"[W1130 08:26:31.512 NNPACK.cpp:61] Could not initialize NNPACK! Reason: Unsupported hardware.\n",
        b"Traceback (most recent call last):\n",
        b'  File "init.py", line 3, in <module>\n',
        b"the profiler_start of my own tool\n",
        b"init.cpp: my own build failed\n",
        b"\n",
    ],
)
def test_what_others_write_is_not(line):
    assert not _is_noise(line)
