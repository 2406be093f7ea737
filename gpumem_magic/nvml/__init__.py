"""NVML as typed readings; every missing value carries its reason.

faults      codes as words, problem sentences with the next step
binding     the module pynvml, checked to be NVIDIA's
session     the one door: a call gives a value or an absence; init, lost devices, driver restarts
devices     which call gives which value
events      Xid errors
reader      one reading of the machine, in tiers by cost
sampling    small functions for whoever reads often (the recorder)
poller      a thread that reads while somebody looks
pids, host  is this PID the local process; the host's memory

Nothing here starts CUDA, and importing it does not start NVML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._lazy import names_from

if TYPE_CHECKING:
    from gpumem_magic.nvml.model import Device, Memory, MemoryReading, MigInstance, Process, Reading
    from gpumem_magic.nvml.sampling import problem, process_used, processes, read_all, readings
else:
    __getattr__ = names_from(
        __name__,
        {
            "model": "Device Memory MemoryReading MigInstance Process Reading",
            "sampling": "problem process_used processes read_all readings",
        },
    )

__all__ = [
    "Device",
    "Memory",
    "MemoryReading",
    "MigInstance",
    "Process",
    "Reading",
    "problem",
    "process_used",
    "processes",
    "read_all",
    "readings",
]
