"""Who is on the devices beside this process, and which of them it has started itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpumem_magic.recording.children import child_pids
from gpumem_magic.recording.model import ProcessMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumem_magic.recording.model import DeviceReading

__all__ = ["processes_on"]


def processes_on(readings: Iterable[DeviceReading]) -> Iterator[ProcessMemory]:
    """Ask the driver who is on the devices of `readings`, this process included."""
    found = [reading for reading in readings if reading.uuid]
    if not found:
        return
    from gpumem_magic import nvml
    from gpumem_magic.nvml.pids import is_same_process

    own, below = os.getpid(), child_pids()
    for reading in found:
        for process in nvml.processes(str(reading.uuid)):
            known = is_same_process(process.pid)
            yield ProcessMemory(
                device=reading.device,
                pid=process.pid,
                used=process.used,
                name=_name(process.pid) if known else None,
                is_self=known and process.pid == own,
                is_child=known and process.pid in below,
            )


def _name(pid: int) -> str | None:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
