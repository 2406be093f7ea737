"""Readings for whoever samples often: memory of a device (8 µs) and one process's share of it (40 µs).

These never start CUDA, never raise, and cost one failed library look-up each half minute where there is no driver.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic.nvml import devices as read
from gpumem_magic.nvml.faults import Absence, Code
from gpumem_magic.nvml.model import Memory, MemoryReading
from gpumem_magic.nvml.pids import NAMESPACE_REASON, is_initial_namespace, is_same_process
from gpumem_magic.nvml.session import Session

if TYPE_CHECKING:
    from gpumem_magic.nvml.model import Process, Reading
    from gpumem_magic.nvml.session import Handle, Slot

__all__ = ["default_session", "problem", "process_used", "processes", "read_all", "readings"]


class _Place(NamedTuple):
    """A device or MIG instance that was found: the device's slot, whom to ask, and how it is called."""

    slot: Slot
    handle: Handle | Absence
    uuid: str | None
    name: str | None


_session = Session()


def _after_fork() -> None:
    # A lock that another thread of the parent held would stay locked in the child for ever.
    global _session  # noqa: PLW0603 -- one session for the process is the point
    _session = Session()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def default_session() -> Session:
    """Give the process's one session, not started before something is asked."""
    return _session


def problem() -> str | None:
    """Say in one sentence, with the next step, why no device can be read; None when devices can be read."""
    _session.slots()
    return _session.problem


def read_all() -> Reading:
    """Read everything of every device once."""
    from gpumem_magic.nvml.reader import Reader

    return Reader(_session).read()


def readings(*uuids: str, pid: int | None = None, processes: bool = True) -> list[MemoryReading]:
    """Read the memory of devices and what one process holds on them.

    Parameters
    ----------
    uuids
        Devices or MIG instances, with or without the prefix ``GPU-`` or ``MIG-`` (torch's
        ``get_device_properties(i).uuid`` has none). Without any: every device.
    pid
        The process; this one by default.
    processes
        Read the process list at all (40 µs a device, five times the rest).

    Returns
    -------
    list of MemoryReading
        In the order asked for. An unknown UUID gives a reading with index -1 whose `missing` says so; no devices at
        all gives an empty list when no UUID was given, and `problem` says why.
    """
    slots = _session.slots()
    pid = os.getpid() if pid is None else pid
    if not uuids:
        places = [_Place(slot, _session.handle(slot), slot.uuid, slot.name) for slot in slots]
        return [_read(place, pid, processes=processes) for place in places]
    found = []
    for uuid in uuids:
        place = _find(slots, _bare(uuid))
        if place is None:
            why = _session.problem or f"the driver shows no device {uuid}"
            found.append(MemoryReading(-1, uuid, None, None, None, {"memory": why, "process_used": why}))
        else:
            found.append(_read(place, pid, processes=processes))
    return found


def processes(uuid: str) -> tuple[Process, ...]:
    """List who is on a device, as far as the driver tells: 50 µs where `read_all` takes milliseconds.

    Parameters
    ----------
    uuid
        A device or MIG instance, as for `readings`.
    """
    place = _find(_session.slots(), _bare(uuid))
    if place is None or isinstance(place.handle, Absence):
        return ()
    memory = read.read_memory(_session, place.handle)
    total = None if isinstance(memory, Absence) else memory.total
    listed = read.read_processes(_session, place.handle, total)
    return () if isinstance(listed, Absence) else listed


def process_used(pid: int | None = None) -> dict[str, int | None]:
    """Read what one process holds on each device.

    Parameters
    ----------
    pid
        The process; this one by default.

    Returns
    -------
    dict
        UUID → bytes; None where the driver does not tell. Devices that do not list the process are left out.
    """
    held = {}
    for reading in readings(pid=pid):
        if reading.uuid is not None and reading.process_used != 0:
            held[reading.uuid] = reading.process_used
    return held


def _bare(uuid: str) -> str:
    bare = uuid.lower()
    return bare[4:] if bare.startswith(("gpu-", "mig-")) else bare


def _find(slots: list[Slot], bare: str) -> _Place | None:
    for slot in slots:
        if slot.uuid is not None and _bare(slot.uuid) == bare:
            return _Place(slot, _session.handle(slot), slot.uuid, slot.name)
    for slot in slots:
        parent = _session.handle(slot)
        for handle in [] if isinstance(parent, Absence) else read.mig_handles(_session, parent):
            uuid = _session.ask(handle, "nvmlDeviceGetUUID")
            if not isinstance(uuid, Absence) and _bare(uuid) == bare:
                name = _session.ask(handle, "nvmlDeviceGetName")
                return _Place(slot, handle, uuid, None if isinstance(name, Absence) else name)
    return None


def _read(place: _Place, pid: int, *, processes: bool) -> MemoryReading:
    slot, handle, uuid, name = place
    if isinstance(handle, Absence):
        missing = dict.fromkeys(("memory", "process_used"), handle.reason)
        return MemoryReading(slot.index, uuid, name, None, None, missing)
    missing = {}
    memory = read.read_memory(_session, handle)
    if isinstance(memory, Absence):
        missing["memory"] = memory.reason
        _session.report(slot, memory)
    known = _or_host(memory, missing)
    used: int | None = None
    listed = (
        read.read_processes(_session, handle, known.total if known else None, graphics=False) if processes else None
    )
    if isinstance(listed, Absence):
        missing["process_used"] = listed.reason
    elif listed is None:
        missing["process_used"] = "not asked for"
    else:
        used, why = _share(listed, pid)
        if why is not None:
            missing["process_used"] = why
    return MemoryReading(slot.index, uuid, name, known, used, missing)


def _or_host(memory: Memory | Absence, missing: dict[str, str]) -> Memory | None:
    """Give the host's memory for a device that has none of its own."""
    if not isinstance(memory, Absence):
        return memory
    if memory.code != Code.NOT_SUPPORTED:
        return None
    del missing["memory"]
    from gpumem_magic.nvml.host import read_host

    host = read_host()
    return Memory(host.total, host.used, host.free, None)


def _share(listed: tuple[Process, ...], pid: int) -> tuple[int | None, str | None]:
    mine = next((process for process in listed if process.pid == pid), None)
    if is_initial_namespace() or (mine is not None and is_same_process(pid)):
        return (0, None) if mine is None else (mine.used, mine.missing.get("used"))
    if mine is not None or not all(is_same_process(process.pid) for process in listed):
        return None, NAMESPACE_REASON
    return 0, None
