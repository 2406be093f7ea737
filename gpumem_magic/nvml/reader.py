"""One reading of the machine from many calls, in tiers by cost.

Each tick: memory, utilisation, temperature, power (4 calls, about 14 µs a device on an H200). Every second tick:
processes, throttle reasons, MIG instances. Every twentieth: power limit, MIG mode, health. The tiers are shifted by
the device's index, so that eight devices do not do the expensive part in the same tick.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumem_magic.nvml import devices as read
from gpumem_magic.nvml.events import XidWatch
from gpumem_magic.nvml.faults import Absence, Code
from gpumem_magic.nvml.host import read_host
from gpumem_magic.nvml.model import Device, Memory, Reading

if TYPE_CHECKING:
    from gpumem_magic.nvml.model import MigInstance, Process
    from gpumem_magic.nvml.session import Handle, Session, Slot

__all__ = ["Reader"]

MEDIUM_TICKS = 2
SLOW_TICKS = 20

_MIG_REASON = "not told for a device in MIG mode; see its instances"
_UNIFIED_REASON = "the device shares the host's memory"


@dataclass
class _Kept:
    """What the slower tiers last read of a device, for the handle it was read with."""

    handle: Handle
    ready: bool = False
    throttle: tuple[str, ...] | Absence = ()
    processes: tuple[Process, ...] | Absence = ()
    mig: tuple[MigInstance, ...] = ()
    power_limit: int | Absence = 0
    mig_mode: bool = False
    unattributed: int | None = None
    health: tuple[str, ...] = ()
    numa_node: int | None = None
    instances: dict[int, Handle] = field(default_factory=dict)


class Reader:
    """Reads all devices through a session and keeps what is read more rarely.

    Not for several threads: each sampler owns one.

    Parameters
    ----------
    session
        The door to NVML.
    xids
        Also collect Xid errors, for whoever reads for long.
    """

    def __init__(self, session: Session, *, xids: bool = False) -> None:
        self._session = session
        self._xids = XidWatch(session) if xids else None
        self._kept: dict[int, _Kept] = {}
        self._generation = -1

    def read(self, tick: int | None = None) -> Reading:
        """Read every device.

        Parameters
        ----------
        tick
            Counts up by one between readings, and selects the tiers; None reads everything.

        Returns
        -------
        Reading
            Always one: whatever fails is named in it.
        """
        session = self._session
        time_us = time.time_ns() // 1000
        slots = session.slots()
        if session.generation != self._generation:
            self._generation = session.generation
            self._kept.clear()
        if self._xids is not None and slots and (tick is None or tick % MEDIUM_TICKS == 0):
            self._xids.read(slots)
        devices = []
        failures = []
        for slot in slots:
            device, failure = self._device(slot, tick)
            devices.append(device)
            if failure is not None:
                failures.append(failure)
                session.report(slot, failure)
        if slots and len(failures) == len(slots) and failures[0].code in (Code.UNKNOWN, Code.OPERATING_SYSTEM):
            # All at once: a container that lost its devices, or a driver that was reloaded.
            session.restart(failures[0])
        return Reading(time_us, session.driver, session.problem, tuple(devices))

    def _device(self, slot: Slot, tick: int | None) -> tuple[Device, Absence | None]:
        handle = self._session.handle(slot)
        if isinstance(handle, Absence):
            self._kept.pop(slot.index, None)
            return self._lost(slot, handle), None
        kept = self._kept.get(slot.index)
        if kept is None or kept.handle is not handle:
            kept = self._kept[slot.index] = _Kept(handle)
        memory = read.read_memory(self._session, handle)
        if isinstance(memory, Absence) and (
            memory.is_device_gone or memory.is_driver_gone or memory.code == Code.INVALID_ARGUMENT
        ):
            return self._lost(slot, memory), memory
        phase = None if tick is None or not kept.ready else tick + slot.index
        if phase is None or phase % SLOW_TICKS == 0:
            self._read_slow(handle, kept)
        if phase is None or phase % MEDIUM_TICKS == 0:
            self._read_medium(handle, kept, memory)
        kept.ready = True
        failure = memory if isinstance(memory, Absence) and memory.code in _SUSPECT else None
        return self._assemble(slot, handle, kept, memory), failure

    def _read_slow(self, handle: Handle, kept: _Kept) -> None:
        session = self._session
        mode = session.ask(handle, "nvmlDeviceGetMigMode")
        mig_mode = not isinstance(mode, Absence) and mode[0] == 1
        if mig_mode != kept.mig_mode:
            # What a device supports changes with its mode.
            handle.absent.clear()
            kept.instances.clear()
        kept.mig_mode = mig_mode
        kept.power_limit = read.read_number(session, handle, "nvmlDeviceGetEnforcedPowerLimit")
        kept.health = read.read_health(session, handle)
        kept.numa_node = read.read_numa_node(session, handle)

    def _read_medium(self, handle: Handle, kept: _Kept, memory: Memory | Absence) -> None:
        session = self._session
        kept.throttle = read.read_throttle(session, handle)
        kept.processes = read.read_processes(session, handle, None if isinstance(memory, Absence) else memory.total)
        kept.mig = read.read_mig(session, handle, kept.instances) if kept.mig_mode else ()
        kept.unattributed = _unattributed(memory, kept.processes)

    def _lost(self, slot: Slot, absence: Absence) -> Device:
        return Device(
            index=slot.index,
            uuid=slot.uuid,
            name=slot.name,
            health=self._xid_words(slot),
            lost=absence.reason,
            missing=dict.fromkeys(_FIELDS, absence.reason),
        )

    def _xid_words(self, slot: Slot) -> tuple[str, ...]:
        return () if self._xids is None else self._xids.words(slot.index)

    def _assemble(self, slot: Slot, handle: Handle, kept: _Kept, memory: Memory | Absence) -> Device:
        session = self._session
        utilization = read.read_utilization(session, handle)
        temperature = read.read_number(session, handle, "nvmlDeviceGetTemperature", 0)
        power = read.read_number(session, handle, "nvmlDeviceGetPowerUsage")
        unified = isinstance(memory, Absence) and memory.code == Code.NOT_SUPPORTED and not kept.mig_mode
        missing: dict[str, str] = {}
        if unified:
            host = read_host()
            memory = Memory(host.total, host.used, host.free, None)
            missing["reserved"] = _UNIFIED_REASON
        elif isinstance(memory, Memory) and memory.reserved is None:
            missing["reserved"] = "this driver counts its own part as used"

        def known(name: str, value: Any) -> Any:
            if not isinstance(value, Absence):
                return value
            permanent_in_mig = kept.mig_mode and (value.is_permanent or value.code == Code.NO_PERMISSION)
            missing[name] = _MIG_REASON if permanent_in_mig else value.reason
            return None

        watts = known("power_w", power)
        limit = known("power_limit_w", kept.power_limit)
        return Device(
            index=slot.index,
            uuid=slot.uuid,
            name=slot.name,
            memory=known("memory", memory),
            utilization=known("utilization", utilization),
            temperature_c=known("temperature_c", temperature),
            power_w=None if watts is None else watts / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            throttle=known("throttle", kept.throttle),
            unified=unified,
            numa_node=kept.numa_node,
            health=(*kept.health, *self._xid_words(slot)),
            processes=known("processes", kept.processes),
            mig=kept.mig,
            unattributed=kept.unattributed,
            missing=missing,
        )


def _unattributed(memory: Memory | Absence, processes: tuple[Process, ...] | Absence) -> int | None:
    if isinstance(memory, Absence) or isinstance(processes, Absence):
        return None
    held = [process.used for process in processes]
    # The two calls are some 50 µs apart, in which a process may have allocated.
    return None if None in held else max(0, memory.used - sum(used for used in held if used is not None))


# A single device that fails so keeps its handle; all devices at once are the driver.
_SUSPECT = frozenset({Code.UNKNOWN, Code.OPERATING_SYSTEM})

_FIELDS = ("memory", "utilization", "temperature_c", "power_w", "power_limit_w", "throttle", "processes")
