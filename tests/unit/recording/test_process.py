"""A process seen from outside: its real memory, real children, the driver's stand-in, and JAX where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpumem_magic.recording import devices, frameworks, process
from gpumem_magic.recording.model import Cell, DeviceReading
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.process import ProcessWatch
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.report import build

MIB = 1 << 20
GIB = 1 << 30


def _wait_for(happened) -> None:
    until = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def _watched(run, device=None):
    """Run a function under a watch; it is handed the watch's points, to see when it was looked at."""
    notes = Notes()
    watch = ProcessWatch(RecordOptions(device=device), notes)
    watch.start()
    run(watch._points)
    samples = watch.stop()
    assert notes.freeze() == ()
    return samples


def _series(samples, key):
    (found,) = [series for series in samples.series if series.key == key]
    return found


def test_what_numpy_takes_and_gives_back_is_seen():
    def run(points):
        block = np.ones(256 * MIB // 8)
        seen = len(points["host"])
        _wait_for(lambda: len(points["host"]) > seen + 1)
        del block

    host = _series(_watched(run), "host")
    assert 250 * MIB < max(host.used) - host.used[0] < 400 * MIB
    assert max(host.used) - host.used[-1] > 250 * MIB
    assert list(host.time_us) == sorted(host.time_us)
    assert not host.whole_device
    assert host.total is not None
    assert host.total > max(host.used)


_BETWEEN = """
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.process import ProcessWatch, _high_water

watch = ProcessWatch(RecordOptions(), Notes(), period=60)
watch.start()
mark = _high_water()  # on Linux, that of the process that started this one
bytearray(mark - watch._points["host"][0][1] + (200 << 20))
(host,) = watch.stop().series
print(len(host.used), mark, host.highest)
"""


def test_a_peak_between_two_samples_is_known_from_the_systems_own_mark():
    # A process of its own: what this one has held before would be the mark.
    printed = subprocess.run([sys.executable, "-c", _BETWEEN], check=True, capture_output=True, text=True).stdout
    looks, mark, highest = map(int, printed.split())
    assert looks == 2
    assert 190 * MIB < highest - mark < 210 * MIB


def test_child_processes_are_a_series_of_their_own():
    code = "import sys; held = bytearray(100 << 20); print(flush=True); sys.stdin.readline()"

    def run(points):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()  # type: ignore[union-attr]
        _wait_for(lambda: "child processes" in points and points["child processes"][-1][1] > 100 * MIB)
        child.communicate(b"\n")

    children = _series(_watched(run), "child processes")
    assert children.used[0] == 0
    assert children.used[-1] == 0
    assert 100 * MIB < max(children.used) < 200 * MIB


def test_only_what_was_asked_for():
    assert [series.key for series in _watched(lambda _: None, device="cpu").series] == ["host"]
    assert _watched(lambda _: None, device="1") is None


def test_a_watch_that_saw_nothing_ends_too():
    watch = ProcessWatch(RecordOptions(device="cuda:77"), Notes(), period=3600)
    watch.start()
    assert watch.stop() is None
    assert watch._tick is not None
    assert watch._tick.cancelled


def test_a_cancelled_watch_says_nothing():
    watch = ProcessWatch(RecordOptions(), Notes())
    watch.start()
    watch.cancel()
    assert watch.stop() is None


def test_a_look_that_is_under_way_when_the_watch_is_cancelled_is_no_result():
    notes = Notes()
    watch = ProcessWatch(RecordOptions(), notes, period=60)
    watch.start()
    watch.cancel()
    watch._read_children()
    assert watch._sample()
    assert watch.stop() is None
    assert notes.freeze() == ()


def test_the_highest_of_two_neighbours_outlives_thinning():
    watch = ProcessWatch(RecordOptions(), Notes())
    watch._points["host"] = [(time_us, 100 if time_us == 501 else 1) for time_us in range(1000)]
    watch._thin()
    kept = watch._points["host"]
    assert len(kept) == 501
    assert (kept[0], kept[-1]) == ((0, 1), (999, 1))
    assert max(kept, key=lambda point: point[1]) == (501, 100)


@pytest.mark.parametrize("thinned", [False, True])
def test_how_often_memory_was_read_outlives_thinning(thinned):
    watch = ProcessWatch(RecordOptions(), Notes(), period=3600)
    watch.start()
    for _ in range(6):
        assert watch._sample()
    if thinned:
        watch._thin()
    samples = watch.stop()
    assert samples is not None
    assert samples.looks == (6 if thinned else None)


@pytest.fixture
def gpu(fake_nvml, monkeypatch):
    """A driver with two devices; `use(bytes)` says what this process holds on the second."""
    monkeypatch.setattr(devices, "DRIVER_FILES", (os.devnull,))
    monkeypatch.setattr(process._Kept, "on_gpu", False)

    def use(used):
        mine = [] if used is None else [{"pid": os.getpid(), "used": used}]
        fake_nvml.control({"count": 2, "devices": [{"name": "First"}, {"name": "Second", "processes": mine}]})

    use(None)
    return use


def test_memory_on_a_gpu_is_this_processes_by_the_drivers_number(gpu):
    def run(points):
        for used in (2 * GIB, GIB):
            gpu(used)
            _wait_for(lambda used=used: points.get("GPU 1", [(0, 0)])[-1][1] == used)

    samples = _watched(run)
    assert {series.key for series in samples.series} == {"GPU 1", "host"}  # nothing is held on the other
    second = _series(samples, "GPU 1")
    assert (max(second.used), second.used[-1]) == (2 * GIB, GIB)
    assert second.name == "Second, this process"
    assert not second.whole_device
    # The next cell begins where this one ended.
    assert _series(_watched(lambda _: None), "GPU 1").used == (GIB, GIB)


def test_what_came_after_the_last_look_is_read_at_the_end(gpu):
    # As JAX does, whose start on a GPU holds every look up until the cell is over.
    watch = ProcessWatch(RecordOptions(), Notes(), period=3600)
    watch.start()
    assert watch._sample()
    gpu(2 * GIB)
    used = _series(watch.stop(), "GPU 1").used
    assert (used[0], used[-1]) == (0, 2 * GIB)


@pytest.mark.usefixtures("gpu")
def test_one_slow_look_alone_does_not_make_the_next_one_late(monkeypatch):
    # On a clock of its own: a look on a busy machine may take a second of the real one.
    now = 100.0
    monkeypatch.setattr(process, "time", SimpleNamespace(**{**vars(time), "perf_counter": lambda: now}))
    watch = ProcessWatch(RecordOptions(), Notes(), period=3600)
    watch.start()
    watch._period = 0.0
    periods = []
    for seconds in (0.05, 0.001, 0.05, 0.07):  # the first one starts the driver's reader

        def look(seconds=seconds):
            nonlocal now
            now += seconds

        monkeypatch.setattr(watch, "_read_gpus", look)
        assert watch._sample()
        periods.append(watch._tick.period)  # type: ignore[union-attr]
    watch.stop()
    assert periods == pytest.approx([0, 0.02, 0.02, 1.0])


def test_a_share_of_a_child_that_is_not_told_is_no_zero(gpu, monkeypatch):
    from gpumem_magic import nvml

    told = nvml.readings

    def refused(*uuids, pid=None, **options):
        found = told(*uuids, pid=pid, **options)
        if pid != os.getpid():
            return [replace(one, process_used=None, missing={"process_used": "no permission"}) for one in found]
        return found

    gpu(GIB)
    watch = ProcessWatch(RecordOptions(), Notes(), period=3600)
    watch.start()
    watch._children = (7,)
    monkeypatch.setattr(nvml, "readings", refused)
    watch._read_gpus()
    monkeypatch.setattr(nvml, "readings", told)
    watch._read_gpus()
    second = _series(watch.stop(), "GPU 1")
    assert set(second.used) == {GIB}
    assert not second.whole_device
    assert second.reason == "what its child process 7 holds there is not known and not counted: no permission"


def test_a_share_that_the_driver_does_not_tell_is_never_made_up(gpu, monkeypatch):
    from gpumem_magic.nvml import sampling

    monkeypatch.setattr(sampling, "is_initial_namespace", lambda: False)
    monkeypatch.setattr(sampling, "is_same_process", lambda _pid: False)
    gpu(GIB)

    def run(points):
        seen = len(points["host"])
        _wait_for(lambda: len(points["host"]) > seen + 2)

    # A numpy cell beside other people's work: the device's own number is none of its business.
    assert [series.key for series in _watched(run).series] == ["host"]
    monkeypatch.setattr(process, "_COMPUTE_FILES", ("/",))  # as if this process had opened the device
    second = _series(_watched(run), "GPU 1")
    assert second.whole_device
    assert second.name == "Second, all its processes"
    assert second.reason is not None
    assert "--pid=host" in second.reason


def test_one_series_holds_one_kind_of_numbers(gpu, monkeypatch):
    from gpumem_magic.nvml import sampling

    gpu(GIB)
    monkeypatch.setattr(process, "_COMPUTE_FILES", ("/",))
    watch = ProcessWatch(RecordOptions(), Notes(), period=60)
    watch.start()
    # A look of a former test's, on a thread that was kept waiting, may have said that this process is on a GPU.
    watch._points.pop("GPU 1", None)
    watch._info.pop("GPU 1", None)
    with monkeypatch.context() as hidden:
        hidden.setattr(sampling, "is_initial_namespace", lambda: False)
        hidden.setattr(sampling, "is_same_process", lambda _pid: False)
        watch._read_gpus()
        assert watch._info["GPU 1"].whole_device
    watch._read_gpus()
    with monkeypatch.context() as hidden:
        hidden.setattr(sampling, "is_initial_namespace", lambda: False)
        hidden.setattr(sampling, "is_same_process", lambda _pid: False)
        watch._read_gpus()
    second = _series(watch.stop(), "GPU 1")
    assert second.used == (GIB, GIB)
    assert not second.whole_device


def test_a_cell_without_torch_gets_a_report_of_its_process(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    recorder = Recorder(RecordOptions())
    recorder.start()
    block = np.ones(128 * MIB // 8)
    report = build(recorder.stop(Cell(None, None, "block = numpy.ones(2**24)")))
    del block
    assert report.sentence.startswith("This process's host memory rose by 12")
    assert report.sentence.endswith("Sampled, as torch was not used in this cell.")
    assert (report.devices[0].headline.allocated_peak or 0) > 128 * MIB


# -- JAX ---------------------------------------------------------------------------------------------------------------


def _pretend_jax(monkeypatch, *stats, started=True):
    """JAX's counters of a GPU need one; its CPU keeps none."""
    found = [SimpleNamespace(memory_stats=lambda one=one: one, device_kind="NVIDIA H200") for one in stats]
    jax = SimpleNamespace(local_devices=lambda: found, live_arrays=list)
    bridge = SimpleNamespace(backends_are_initialized=lambda: started)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)


def test_jaxs_counters_are_read_where_a_device_keeps_some(monkeypatch):
    stats = {"bytes_in_use": 5, "peak_bytes_in_use": 9, "bytes_limit": 100, "pool_bytes": 64}
    _pretend_jax(monkeypatch, None, stats, {"bytes_in_use": 1})
    first, second = frameworks.jax_readings()
    assert (first.allocated, first.max_allocated, first.limit, first.reserved) == (5, 9, 100, 64)
    assert first.name == "NVIDIA H200"
    assert (second.allocated, second.max_allocated, second.limit, second.reserved) == (1, None, None, None)
    assert set(second.missing) == {"reserved", "max_allocated", "limit"}


def test_a_device_of_jax_that_has_no_counters_to_ask_is_left_out(monkeypatch):
    def refuse():
        raise RuntimeError("UNIMPLEMENTED: GetAllocatorStats is not supported")

    _pretend_jax(monkeypatch, {"bytes_in_use": 5})
    sys.modules["jax"].local_devices().insert(0, SimpleNamespace(memory_stats=refuse, device_kind="Metal"))
    assert [reading.allocated for reading in frameworks.jax_readings()] == [5]


def test_jax_is_never_started(monkeypatch):
    _pretend_jax(monkeypatch, {"bytes_in_use": 1}, started=False)
    assert frameworks.jax_readings() == ()
    assert frameworks.jax_arrays() is None


def test_advice_names_the_variable_until_it_is_set(monkeypatch):
    _pretend_jax(monkeypatch)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    (text,) = frameworks.advice()
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in text
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "False")
    assert frameworks.advice() == ()


def test_the_words_for_jaxs_arrays():
    arrays = frameworks.JaxArrays
    assert frameworks.jax_arrays_text(None, None) is None
    one = "JAX: 1 live array with 4.00 MiB at the end, +4.00 MiB over the cell (jax.live_arrays())"
    assert frameworks.jax_arrays_text(None, arrays(1, 4 * MIB)) == one
    same = frameworks.jax_arrays_text(arrays(2, MIB), arrays(3, MIB))
    assert same == "JAX: 3 live arrays with 1.00 MiB at the end, as before (jax.live_arrays())"


def test_real_jax_on_the_cpu():
    jax = pytest.importorskip("jax")
    held = jax.numpy.ones((1024, 1024)).block_until_ready()
    assert frameworks.jax_readings() == ()  # the CPU keeps no counters
    arrays = frameworks.jax_arrays()
    assert arrays is not None
    assert held.nbytes == 4 * MIB
    assert arrays.bytes >= 4 * MIB


def test_a_reading_of_jax_is_a_device_reading(monkeypatch):
    _pretend_jax(monkeypatch, {"bytes_in_use": 5})
    assert all(isinstance(reading, DeviceReading) for reading in frameworks.jax_readings())
