"""torch's own numbers of every CUDA device, for whoever watches a kernel beside its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.recording.imports import finished_torch
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.readings import cuda_counters, cuda_readings, driver_memory

if TYPE_CHECKING:
    from gpumem_magic.recording.model import DeviceReading

__all__ = ["TorchNumbers", "read_now", "read_on_main_thread"]

_MOST_DEVICES = 64


class TorchNumbers(NamedTuple):
    """One device, in bytes; None where it is not known.

    `peak` is torch's ``max_memory_allocated``, `limit` the most that this process may reserve, `outside` what the
    process holds on the device beyond `reserved`.
    """

    key: str
    uuid: str | None
    allocated: int | None
    reserved: int | None
    peak: int | None
    limit: int | None
    outside: int | None


def _outside(used: int | None, reserved: int | None) -> int | None:
    return None if used is None or reserved is None else max(0, used - reserved)


def _cuda() -> Any | None:
    torch = finished_torch()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _from_reading(reading: DeviceReading) -> TorchNumbers:
    return TorchNumbers(
        reading.device,
        reading.uuid,
        reading.allocated,
        reading.reserved,
        reading.max_allocated,
        reading.limit,
        _outside(reading.process_used, reading.reserved),
    )


def read_on_main_thread() -> list[TorchNumbers]:
    """Read everything. Asks for device properties, so only between cells, on the thread that runs them."""
    torch = _cuda()
    return [] if torch is None else [_from_reading(reading) for reading in cuda_readings(torch, Notes())]


def read_now(known: list[TorchNumbers]) -> list[TorchNumbers]:
    """Read beside a running cell, on any thread: the allocator's counters and NVML, never the CUDA runtime.

    Parameters
    ----------
    known
        What was read between cells: the source of UUIDs and limits.
    """
    torch = _cuda()
    if torch is None:
        return []
    by_key = {numbers.key: numbers for numbers in known}
    found = []
    for device in range(_MOST_DEVICES):
        try:
            counters = cuda_counters(torch, device)
        except RuntimeError:
            break  # no further device, or an allocator that keeps no statistics
        key = f"cuda:{device}"
        before = by_key.get(key)
        used = None
        if before is not None and before.uuid is not None and counters.reserved:
            used = driver_memory(before.uuid).process_used
        found.append(
            TorchNumbers(
                key,
                before and before.uuid,
                counters.allocated,
                counters.reserved,
                counters.max_allocated,
                before and before.limit,
                _outside(used, counters.reserved),
            )
        )
    return found
