"""A cell without torch on a real GPU: the process's memory by the driver's number. Run by ``run_all.py``."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import TYPE_CHECKING

from shared import GIB, MIB, Skip, record

from gpumem_magic.analysis.build import analyse
from gpumem_magic.recording.model import Cell
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


def driver() -> Callable[[int], Callable[[], None]]:
    """Start CUDA's driver without any framework; return a function that allocates and returns one that frees."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Skip(f"needs CUDA's driver ({error})") from None

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise Skip(f"{name} gives {code}")

    call("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)

    def allocate(size: int) -> Callable[[], None]:
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return lambda: call("cuMemFree_v2", address)

    return allocate


def wait_for_looks(recorder: Recorder, count: int) -> None:
    """Wait until the first GPU was read so many times more; where that takes a minute the series is judged as it is."""
    watch = recorder._process
    assert watch is not None

    def seen() -> int:
        return len(watch._points.get("GPU 0", ()))

    wanted, until = seen() + count, time.monotonic() + 60
    while seen() < wanted and time.monotonic() < until:
        time.sleep(0.005)


def check_process_without_torch() -> str:
    """2 GiB come and go by the driver's interface alone: seen to the MiB, and torch is never imported."""
    recorder = Recorder(RecordOptions())
    recorder.start()
    allocate = driver()
    # Two: a look that was under way at the change may have read before it.
    wait_for_looks(recorder, 2)
    free = allocate(2 * GIB)
    wait_for_looks(recorder, 2)
    free()
    wait_for_looks(recorder, 2)
    recording = recorder.stop(Cell(None, None, ""), *classify(None))
    assert "torch" not in sys.modules
    assert recording.process is not None
    report = analyse(recording)
    told = "; ".join([report.sentence, *(note.text for note in report.notes)])
    (gpu,) = [series for series in recording.process.series if series.key == "GPU 0"]
    points = [
        f"{(time_us - recording.started_us) / 1e6:.2f} s {used / MIB:.0f} MiB"
        for time_us, used in zip(gpu.time_us, gpu.used, strict=True)
    ]
    rise = max(gpu.used) - gpu.used[-1]
    # Other processes' work is in a whole device's number.
    assert gpu.whole_device or abs(rise - 2 * GIB) <= 4 * MIB, (rise, points, told)
    assert "on GPU 0 rose by" in report.sentence or "before that not known" in report.sentence, (points, told)
    seconds = (recording.ended_us - recording.started_us) / 1e6
    return f"{report.sentence} {len(points)} samples in {seconds:.1f} s, the first at {points[0]}"


def check_process_first_look() -> str:
    """What the first look of a process costs, which starts the driver's reader, and the looks that follow it."""
    recorder = Recorder(RecordOptions())
    recorder.start()
    driver()
    wait_for_looks(recorder, 12)
    recording = recorder.stop(Cell(None, None, ""), *classify(None))
    assert recording.process is not None
    times = [(time_us - recording.started_us) / 1e3 for time_us in recording.process.series[0].time_us]
    assert len(times) >= 12, times
    return f"{recording.process.series[0].key} read after {', '.join(f'{time:.0f}' for time in times[:14])} ms"


def check_process_beside_torch() -> str:
    """What is allocated beside torch shows where torch itself did nothing."""
    import torch

    if not torch.cuda.is_available():
        raise Skip("needs a CUDA device")
    torch.ones(1, device="cuda")
    allocate = driver()
    freed: list[Callable[[], None]] = []
    recording = record(lambda: freed.append(allocate(GIB)))
    freed[0]()
    report = analyse(recording)
    assert "Sampled, as torch allocated nothing in this cell" in report.sentence, report.sentence
    return report.sentence
