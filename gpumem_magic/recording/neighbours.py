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
    by_uuid = {_bare(reading.uuid): reading.device for reading in readings if reading.uuid}
    if not by_uuid:
        return
    from gpumem_magic import nvml
    from gpumem_magic.nvml.pids import is_same_process

    own, below = os.getpid(), child_pids()
    for device in nvml.read_all().devices:
        key = by_uuid.get(_bare(device.uuid or ""))
        for process in (device.processes or ()) if key is not None else ():
            known = is_same_process(process.pid)
            yield ProcessMemory(
                device=str(key),
                pid=process.pid,
                used=process.used,
                name=_name(process.pid) if known else None,
                is_self=known and process.pid == own,
                is_child=known and process.pid in below,
            )


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _name(pid: int) -> str | None:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
