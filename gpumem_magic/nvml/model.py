"""What NVML says, typed: sizes in bytes, shares in percent, power in watts, temperature in degrees Celsius.

A value that is None is unknown, and ``missing`` of the same object says why under the field's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Device", "Memory", "MemoryReading", "MigInstance", "Process", "Reading"]


@dataclass(frozen=True)
class Memory:
    """Device memory in bytes: ``total = used + reserved + free``.

    Attributes
    ----------
    total
        What the device has.
    used
        Held by processes. The driver's own part is not in it, as in ``nvidia-smi``.
    reserved
        Held by the driver and firmware; None where only the older call exists, whose `used` then contains it.
    free
        What is left.
    """

    total: int
    used: int
    free: int
    reserved: int | None = None


@dataclass(frozen=True)
class Process:
    """A process with a context on the device.

    Attributes
    ----------
    pid
        The driver's number: of the host, whatever PID namespace this process runs in.
    used
        Bytes on this device, or None (WSL and Windows never tell).
    graphics
        True when it is known from the graphics list only.
    missing
        Why `used` is None.
    """

    pid: int
    used: int | None
    graphics: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MigInstance:
    """A slice of a device in MIG mode, with memory of its own."""

    index: int
    uuid: str | None
    name: str | None
    memory: Memory | None
    processes: tuple[Process, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """One reading of one device.

    Attributes
    ----------
    index
        NVML's index (PCI bus order). ``CUDA_VISIBLE_DEVICES`` reorders torch's devices, not these: join by `uuid`.
    uuid
        ``GPU-xxxxxxxx-…``; torch shows the same without the prefix.
    memory
        None when unknown. For a unified device this is the host's memory.
    utilization
        Percent of the last sample period (1/6 to 1 s) in which a kernel ran.
    throttle
        Why clocks are held back, in words; empty when they are not; None when unknown.
    unified
        The device has no memory of its own (GB10, Jetson): its memory is the host's.
    numa_node
        The host NUMA node that the device's memory is (Grace Hopper), else None.
    health
        Trouble in words (uncorrected ECC errors, pending row remaps); empty when there is none.
    processes
        Compute and graphics contexts, each process once; None when unknown.
    lost
        Why the whole device does not answer, else None.
    unattributed
        Used memory that no listed process holds, in bytes, taken when the processes were read; None when unknown.
        Memory shared or managed by the driver, or a context that ended without cleaning up.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    memory: Memory | None = None
    utilization: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle: tuple[str, ...] | None = None
    unified: bool = False
    numa_node: int | None = None
    health: tuple[str, ...] = ()
    processes: tuple[Process, ...] | None = None
    mig: tuple[MigInstance, ...] = ()
    lost: str | None = None
    unattributed: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """One reading of the machine.

    Attributes
    ----------
    time_us
        Unix microseconds when it began.
    driver
        The driver's version, or None.
    problem
        One sentence with the next step when there is no usable GPU, driver or permission, else None.
    devices
        In NVML's order.
    """

    time_us: int
    driver: str | None
    problem: str | None
    devices: tuple[Device, ...] = ()

    @property
    def pids(self) -> set[int]:
        """Every PID that holds a context on a device or MIG instance."""
        holders: list[Device | MigInstance] = [*self.devices, *(mig for device in self.devices for mig in device.mig)]
        return {process.pid for holder in holders for process in holder.processes or ()}


@dataclass(frozen=True)
class MemoryReading:
    """A device's memory and one process's share of it, for whoever samples often.

    Attributes
    ----------
    process_used
        Bytes that the process asked for holds on this device: 0 when the driver lists its processes and this one is
        not among them, None when unknown.
    """

    index: int
    uuid: str | None
    name: str | None
    memory: Memory | None
    process_used: int | None
    missing: Mapping[str, str] = field(default_factory=dict)
