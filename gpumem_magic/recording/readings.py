"""Counters of every device before and after a cell: torch's own, the driver's through NVML, the host's for the CPU."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.recording.model import Counts, DeviceReading

if TYPE_CHECKING:
    from gpumem_magic.recording.notes import Notes

__all__ = [
    "CudaCounters",
    "DriverMemory",
    "cpu_reading",
    "cuda_counters",
    "cuda_readings",
    "driver_memory",
    "now_us",
    "unused_cuda_reading",
]

_UNUSED = "CUDA was not in use yet"
# psutil's view of this process: making one takes longer than asking it.
_own: dict[int, Any] = {}


def now_us() -> int:
    """Unix microseconds, the unit of torch's events."""
    return time.time_ns() // 1000


class DriverMemory(NamedTuple):
    """What the driver says of one device, in bytes; None with a `reason` when it does not say."""

    process_used: int | None = None
    device_used: int | None = None
    device_total: int | None = None
    reason: str | None = None


def driver_memory(uuid: str | None, *, processes: bool = True) -> DriverMemory:
    """Ask NVML about a device, without touching the CUDA runtime: 50 µs on an H200, 8 without `processes`.

    Parameters
    ----------
    uuid
        torch's (without a prefix), because CUDA_VISIBLE_DEVICES reorders torch's devices and not NVML's.
    processes
        Ask what this process holds.
    """
    if uuid is None:
        return DriverMemory(reason="this torch does not tell which of the driver's devices this is")
    from gpumem_magic import nvml

    reading = nvml.readings(uuid, processes=processes)[0]
    memory = reading.memory
    return DriverMemory(
        process_used=reading.process_used,
        device_used=None if memory is None else memory.used,
        device_total=None if memory is None else memory.total,
        reason=next(iter(reading.missing.values()), None),
    )


class CudaCounters(NamedTuple):
    """The native allocator's counters of one device; bytes, and how often things happened so far.

    `flushes` is None where torch does not count them (old versions).
    """

    allocated: int
    reserved: int
    max_allocated: int
    allocations: int
    flushes: int | None = None
    retries: int = 0

    @property
    def counts(self) -> Counts | None:
        """How often things happened, where all of it was counted."""
        return None if self.flushes is None else Counts(self.allocations, self.flushes, self.retries)


def cuda_counters(torch: Any, device: int) -> CudaCounters:
    """Read the allocator's counters of `device`: 11 µs on an H200, no call of the CUDA runtime.

    Raises
    ------
    RuntimeError
        From torch, when the current allocator keeps no statistics (a pluggable one).
    """
    # torch.cuda.memory_stats() flattens the same dictionary into a sorted one: eight times slower.
    stats = torch._C._cuda_memoryStats(device)
    allocated = stats["allocated_bytes"]["all"]
    return CudaCounters(
        allocated=allocated["current"],
        reserved=stats["reserved_bytes"]["all"]["current"],
        max_allocated=allocated["peak"],
        allocations=stats["allocation"]["all"]["allocated"],
        flushes=stats.get("num_sync_all_streams"),
        retries=stats.get("num_alloc_retries", 0),
    )


def device_uuid(properties: Any) -> str | None:
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else str(uuid)


def _limit(torch: Any, device: int, total: int) -> int:
    """Most bytes that this process may reserve: the memory fraction where one is set."""
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return total if fraction is None else min(total, int(fraction(device) * total))


def cuda_readings(torch: Any, notes: Notes) -> tuple[DeviceReading, ...]:
    """Read every visible device. Empty while CUDA is not initialised, because asking would initialise it."""
    if not torch.cuda.is_initialized():
        return ()
    readings = []
    for device in range(torch.cuda.device_count()):
        with notes.guard(f"reading the counters of cuda:{device}"):
            readings.append(_cuda_reading(torch, device))
    return tuple(readings)


def _cuda_reading(torch: Any, device: int) -> DeviceReading:
    missing: dict[str, str] = {}
    counters: CudaCounters | None = None
    try:
        counters = cuda_counters(torch, device)
    except RuntimeError as error:
        reason = f"the current allocator keeps no statistics ({str(error).splitlines()[0]})"
        missing.update(dict.fromkeys(("allocated", "reserved", "max_allocated"), reason))
    properties = torch.cuda.get_device_properties(device)
    uuid = device_uuid(properties)
    memory = driver_memory(uuid)
    for name in ("process_used", "device_used"):
        if getattr(memory, name) is None:
            missing[name] = memory.reason or "the driver does not say"
    total = int(properties.total_memory)
    return DeviceReading(
        device=f"cuda:{device}",
        time_us=now_us(),
        allocated=counters and counters.allocated,
        reserved=counters and counters.reserved,
        max_allocated=counters and counters.max_allocated,
        process_used=memory.process_used,
        device_used=memory.device_used,
        device_total=memory.device_total if memory.device_total is not None else total,
        limit=_limit(torch, device, total),
        name=str(properties.name),
        uuid=uuid,
        missing=missing,
        counts=counters and counters.counts,
    )


def unused_cuda_reading(after: DeviceReading, time_us: int) -> DeviceReading:
    """Return what `after.device` held before CUDA was in use: nothing of torch's, and the rest unknown."""
    return DeviceReading(
        device=after.device,
        time_us=time_us,
        allocated=0,
        reserved=0,
        max_allocated=0,
        device_total=after.device_total,
        limit=after.limit,
        name=after.name,
        uuid=after.uuid,
        missing={"process_used": _UNUSED, "device_used": _UNUSED},
        counts=None if after.counts is None else Counts(0, 0, 0),
    )


def cpu_reading() -> DeviceReading:
    """Read the host: memory of this process (resident) and of the machine. 50 µs."""
    import psutil

    process = _own.get(os.getpid())
    if process is None:  # at first, and in a forked child
        _own.clear()
        process = _own[os.getpid()] = psutil.Process()
    reason = "torch keeps no count of CPU memory"
    machine = psutil.virtual_memory()
    return DeviceReading(
        device="cpu",
        time_us=now_us(),
        process_used=int(process.memory_info().rss),
        device_used=int(machine.total - machine.available),
        device_total=int(machine.total),
        name="host memory",
        missing=dict.fromkeys(("allocated", "reserved", "max_allocated", "limit"), reason),
    )
