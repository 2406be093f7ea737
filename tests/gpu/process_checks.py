"""A cell without torch on a real GPU: the process's memory by the driver's number. Run by ``run_all.py``."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import TYPE_CHECKING

from shared import GIB, MIB, Skip, record

from gpumem_magic.analysis.build import analyse

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


def check_process_without_torch() -> str:
    """2 GiB come and go by the driver's interface alone: seen to the MiB, and torch is never imported."""

    def run() -> None:
        allocate = driver()
        time.sleep(0.3)
        free = allocate(2 * GIB)
        time.sleep(0.5)
        free()
        time.sleep(0.3)

    recording = record(run)
    assert "torch" not in sys.modules
    assert recording.process is not None
    assert recording.error is None, recording.error
    (gpu,) = [series for series in recording.process.series if series.key == "GPU 0"]
    rise = max(gpu.used) - gpu.used[-1]
    # Other processes' work is in a whole device's number.
    assert gpu.whole_device or abs(rise - 2 * GIB) <= 4 * MIB, rise
    report = analyse(recording)
    assert "on GPU 0 rose by" in report.sentence, report.sentence
    count = len(gpu.used)
    return f"{report.sentence} {count} samples in {(recording.ended_us - recording.started_us) / 1e6:.1f} s"


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
