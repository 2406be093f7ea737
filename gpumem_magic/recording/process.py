"""What this process holds of the host and of every GPU, sampled: for cells whose memory is not torch's.

The driver and the operating system are asked, never a framework's runtime. A sample takes 25 µs of the host, 50 µs of
each GPU (H200) and, four times a second at most, 2 ms for the list of child processes; the pause between two is at
least twenty times what the quicker one of the last two took.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic.recording.frameworks import advice, jax_arrays, jax_arrays_text, jax_readings
from gpumem_magic.recording.model import ProcessSamples, ProcessSeries, Sample
from gpumem_magic.recording.readings import now_us
from gpumem_magic.recording.ticker import call_every

if TYPE_CHECKING:
    from gpumem_magic.nvml.model import MemoryReading
    from gpumem_magic.recording.frameworks import JaxArrays
    from gpumem_magic.recording.model import DeviceReading
    from gpumem_magic.recording.notes import Notes
    from gpumem_magic.recording.options import RecordOptions
    from gpumem_magic.recording.ticker import Tick

__all__ = ["CALM_SECONDS", "QUICK_SECONDS", "ProcessWatch"]

# Half the shortest time that a person would call a peak; beside torch, which has more to tell, seven times a second.
QUICK_SECONDS = 0.02
CALM_SECONDS = 0.14
_CHILDREN_SECONDS = 0.25
# No more than a twentieth of one core for a sample, a fiftieth for looking for child processes.
_PAUSE_FACTOR = 20
_CHILDREN_FACTOR = 50
# One tick of the kernel's clock.
_PROCESS_CLOCK_SECONDS = 0.011
_MOST_POINTS = 20_000

# What CUDA opens and NVML does not (but on WSL and Jetson, where one file serves all).
_COMPUTE_FILES = ("/dev/nvidia-uvm", "/dev/nvhost", "/dev/nvmap", "/dev/dxg")

HOST, CHILDREN = "host", "child processes"


class _Kept:
    """Does this process hold memory of a GPU? Then it is read at the beginning of a cell too. One for the process."""

    on_gpu = False


class _Info(NamedTuple):
    name: str | None
    total: int | None
    whole_device: bool = False
    reason: str | None = None


class ProcessWatch:
    """Samples this process until stopped. Use it once.

    Parameters
    ----------
    options
        Which devices to show.
    notes
        Where a failure is told; sampling then ends.
    period
        Seconds between two samples, at least.
    """

    def __init__(self, options: RecordOptions, notes: Notes, period: float = QUICK_SECONDS) -> None:
        self._options = options
        self._notes = notes
        self._period = period
        self._points: dict[str, list[tuple[int, int]]] = {}
        self._info: dict[str, _Info] = {}
        self._tick: Tick | None = None
        self._is_cancelled = False
        self._looks = 0
        self._has_gpus = False
        # The first look starts the driver's reader, for up to a second, and any look may be stalled by a busy machine:
        # one slow look alone is no reason for a pause in which all that matters may come and go.
        self._took = 0.0
        self._keep_every = 1
        self._pid = os.getpid()
        self._children: tuple[int, ...] = ()
        self._children_due = 0.0
        self._childless_us: int | None = None
        self._high_water: int | None = None
        self._jax_before: tuple[DeviceReading, ...] = ()
        self._jax_samples: list[Sample] = []
        self._arrays: JaxArrays | None = None

    def start(self) -> None:
        """Read once, and go on reading on another thread."""
        import psutil

        self._process = psutil.Process()
        self._began = _process_clock() - _PROCESS_CLOCK_SECONDS
        self._high_water = _high_water()
        self._jax_before = jax_readings()
        self._arrays = jax_arrays()
        self._read_host()
        if _Kept.on_gpu:
            self._read_gpus()
        self._tick = call_every(self._period, self._sample, delay=self._period)

    def cancel(self) -> None:
        """End without a result: torch's own source tells more."""
        # Does not wait for a look that is under way, which goes on writing.
        self._is_cancelled = True
        if self._tick is not None:
            self._tick.cancelled = True

    def stop(self) -> ProcessSamples | None:
        """Read once more and return what was seen; None after `cancel`."""
        if self._tick is not None:
            # First: a watch that has seen nothing would go on for as long as Python runs.
            self._tick.cancel()
        if self._tick is None or self._is_cancelled or not self._points:
            return None
        self._read_host()
        if CHILDREN in self._points:
            self._read_children()
        # Also where no look has seen this process on a GPU yet: a framework that starts there holds the looks up.
        if _Kept.on_gpu or self._has_gpus:
            self._read_gpus()
        gpus = [key for key in self._points if key not in (HOST, CHILDREN)]
        gpus = [key for key in gpus if any(value for _, value in self._points[key])]
        texts = [jax_arrays_text(self._arrays, jax_arrays()), *(advice() if gpus else ())]
        return ProcessSamples(
            series=tuple(self._series(key) for key in (*sorted(gpus), HOST, CHILDREN) if key in self._points),
            before=self._jax_before,
            after=jax_readings(),
            samples=tuple(self._jax_samples),
            remarks=tuple(text for text in texts if text is not None),
            looks=self._looks if self._keep_every > 1 else None,
        )

    def _series(self, key: str) -> ProcessSeries:
        points = self._points[key]
        info = self._info[key]
        times, values = zip(*points, strict=True)
        mark = _high_water() if key == HOST else None
        highest = mark if mark is not None and self._high_water is not None and mark > self._high_water else None
        return ProcessSeries(key, info.name, info.total, times, values, info.whole_device, info.reason, highest)

    # -- on the ticker's thread ------------------------------------------------------------------------------------

    def _sample(self) -> bool:
        went_well = False
        with self._notes.guard("sampling this process's memory"):
            began = time.perf_counter()
            self._looks += 1
            if self._looks % self._keep_every == 0:
                self._read_host()
                self._read_gpus()
                for reading in jax_readings():
                    values = (reading.allocated, reading.reserved, None, None)
                    self._jax_samples.append(Sample(reading.time_us, reading.device, *values))
            took = time.perf_counter() - began
            if began >= self._children_due:
                self._read_children()
                cost = time.perf_counter() - began - took
                self._children_due = began + max(_CHILDREN_SECONDS, _CHILDREN_FACTOR * cost)
            if max(map(len, self._points.values()), default=0) > _MOST_POINTS:
                self._thin()
            if self._tick is not None:
                self._tick.period = max(self._period, _PAUSE_FACTOR * min(took, self._took))
            self._took = took
            went_well = True
        return went_well  # noqa: RET504 - the guard swallows what goes wrong above

    def _read_host(self) -> None:
        if self._options.covers("cpu"):
            import psutil

            if HOST not in self._info:
                self._info[HOST] = _Info("this process's resident memory", int(psutil.virtual_memory().total))
            self._add(HOST, int(self._process.memory_info().rss))

    def _read_children(self) -> None:
        """Look which processes this one has started, and sum what they hold of the host."""
        import psutil

        held = 0
        found, starts = [], []
        for child in self._process.children(recursive=True):
            try:
                held += int(child.memory_info().rss)
                starts.append(child.create_time())
            except psutil.Error:
                continue  # ended meanwhile, or became another user's
            found.append(child.pid)
        self._children = tuple(found)
        if CHILDREN not in self._points:
            if not found:
                self._childless_us = now_us()
            if not found or not self._options.covers("cpu"):
                return
            total = int(psutil.virtual_memory().total)
            self._info[CHILDREN] = _Info("resident memory of processes that this one started", total)
            began = self._points[HOST][0][0]
            if self._childless_us is not None:
                self._points[CHILDREN] = [(began, 0), (self._childless_us, 0)]
            elif all(moment >= self._began for moment in starts):
                self._points[CHILDREN] = [(began, 0)]
        self._add(CHILDREN, held)

    def _read_gpus(self) -> None:
        if not _may_have_gpu():
            return  # importing the reader beside the cell's own imports takes up to a second

        from gpumem_magic import nvml

        own = nvml.readings(pid=self._pid)
        if not own:
            return
        self._has_gpus = True
        others = [(pid, nvml.readings(pid=pid)) for pid in self._children]
        on_gpu = False
        for index, reading in enumerate(own):
            key = f"GPU {reading.index}"
            if not self._options.covers(f"cuda:{reading.index}"):
                continue
            total = None if reading.memory is None else reading.memory.total
            known = self._info.get(key)
            if reading.process_used is not None:
                if known is not None and known.whole_device:
                    self._points.pop(key, None)  # one series never holds both kinds of numbers
                shares = [(pid, other[index]) for pid, other in others if index < len(other)]
                used = reading.process_used + sum(share.process_used or 0 for _, share in shares)
                on_gpu = on_gpu or used > 0
                why = next((_unknown_share(pid, share) for pid, share in shares if share.process_used is None), None)
                # What one look did not tell is missing from the whole series.
                why = why or (known.reason if known is not None and not known.whole_device else None)
                self._info[key] = _Info(_device_name(reading.name, "this process"), total, reason=why)
                self._add(key, used)
            elif reading.memory is not None and self._uses_gpu():
                on_gpu = True
                if known is not None and not known.whole_device:
                    continue  # the share was told before: a list that failed once is a gap
                why = reading.missing.get("process_used")
                name = _device_name(reading.name, "all its processes")
                self._info[key] = _Info(name, total, whole_device=True, reason=why)
                self._add(key, reading.memory.used)
        _Kept.on_gpu = on_gpu

    def _uses_gpu(self) -> bool:
        """Tell whether this process or one that it started computes on a GPU; the driver's own reader does not."""
        from gpumem_magic.nvml.pids import has_device_open

        return any(has_device_open(pid, _COMPUTE_FILES) for pid in (self._pid, *self._children))

    def _add(self, key: str, value: int) -> None:
        self._points.setdefault(key, []).append((now_us(), value))

    def _thin(self) -> None:
        for key, points in self._points.items():
            # The higher of two neighbours stays: a peak must not be lost.
            pairs = zip(points[1:-1:2], points[2:-1:2], strict=False)
            self._points[key] = [points[0], *(max(pair, key=lambda point: point[1]) for pair in pairs), points[-1]]
        self._jax_samples = self._jax_samples[::2]
        self._keep_every *= 2


def _device_name(name: str | None, whose: str) -> str:
    return f"{name}, {whose}" if name else whose


def _unknown_share(pid: int, reading: MemoryReading) -> str:
    why = reading.missing.get("process_used", "the driver does not say")
    return f"what its child process {pid} holds there is not known and not counted: {why}"


def _may_have_gpu() -> bool:
    from gpumem_magic.recording.devices import DRIVER_FILES

    return sys.platform != "linux" or any(os.path.exists(path) for path in DRIVER_FILES)  # noqa: PTH110 - 3 µs


def _process_clock() -> float:
    """Return now on the clock of psutil's creation times, which on Linux begins at a boot time in whole seconds."""
    if sys.platform != "linux":
        return time.time()

    import psutil

    return float(psutil.boot_time() + time.clock_gettime(time.CLOCK_BOOTTIME))


def _high_water() -> int | None:
    """Return the most bytes that this process was ever resident with, or None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
