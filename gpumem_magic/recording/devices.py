"""Which kind of memory a cell is about, decided without initialising a device."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import BadUsageError
from gpumem_magic.recording.imports import finished_torch

if TYPE_CHECKING:
    from gpumem_magic.recording.options import RecordOptions

# Of NVIDIA's driver (data centre and desktop, Jetson, WSL) and of AMD's.
DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg", "/dev/kfd")

__all__ = ["DRIVER_FILES", "Target", "check_device", "choose_target", "cuda_is_asleep", "has_history"]


class Target(enum.Enum):
    """What is watched."""

    CUDA = "cuda"
    CPU = "cpu"
    MPS = "mps"
    XPU = "xpu"


def has_history(torch: Any) -> bool:
    """Tell whether this torch was built with an allocator that keeps a history, without touching a device."""
    return hasattr(torch._C, "_cuda_record_memory_history")


def _cuda_is_likely(torch: Any) -> bool:
    """Tell whether a CUDA (or ROCm) device is visible, without the driver call that would poison a later fork."""
    if not has_history(torch):
        return False
    if torch.cuda.is_initialized():
        return True
    # torch's own count through NVML or amdsmi; -1 when that library is absent, which WSL and Jetson know.
    for name in ("_device_count_amdsmi",) if torch.version.hip else ("_device_count_nvml",):
        count = getattr(torch.cuda, name, lambda: -1)()
        if count >= 0:
            return bool(count)
    return any(Path(path).exists() for path in DRIVER_FILES)


def cuda_is_asleep(torch: Any) -> bool:
    """Tell whether there is a CUDA device that this process has not used yet."""
    return _cuda_is_likely(torch) and not torch.cuda.is_initialized()


def choose_target(torch: Any, *, wants_cpu: bool) -> Target:
    """Choose what to watch: the accelerator where there is one, else CPU tensors.

    Parameters
    ----------
    torch
        The imported module.
    wants_cpu
        The user asked for CPU tensors.
    """
    if wants_cpu:
        return Target.CPU
    if _cuda_is_likely(torch):
        return Target.CUDA
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return Target.MPS
    xpu = getattr(torch, "xpu", None)
    return Target.XPU if xpu is not None and xpu.is_initialized() else Target.CPU


def check_device(options: RecordOptions) -> None:
    """Refuse a device that this process is known not to have.

    Where there are devices but CUDA is not in use it says nothing: their number would initialise it. The report then
    says that there is none.

    Raises
    ------
    BadUsageError
        Naming the devices that exist.
    """
    torch = finished_torch()
    if torch is None or options.ordinal is None:
        return
    if not _cuda_is_likely(torch):
        count, kind = 0, "CUDA or ROCm"
    elif torch.cuda.is_initialized():
        count, kind = torch.cuda.device_count(), "visible"
    else:
        return
    if options.ordinal >= count:
        there = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0" if count else "cpu"
        raise BadUsageError(f"--device {options.device}: there are {count} {kind} devices in this process; use {there}")
