"""Readings and owners as the protocol's messages (``labextension/src/panel/protocol.ts``)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumem_magic.nvml.host import HostMemory
    from gpumem_magic.nvml.model import Device, MigInstance, Process, Reading
    from gpumem_magic.server.attribution import Directory, KernelEntry, Owner

__all__ = ["build_delta", "build_state", "strip_volatile"]

# What a delta carries; a change of anything else makes a full state.
_VOLATILE = ("memoryUsed", "memoryReserved", "memoryFree", "utilization", "temperatureC", "powerW")

_FIELDS = {
    "utilization": "utilization",
    "temperature_c": "temperatureC",
    "power_w": "powerW",
    "power_limit_w": "powerLimitW",
    "reserved": "memoryReserved",
}
_MEMORY_FIELDS = ("memoryTotal", "memoryUsed", "memoryReserved", "memoryFree", "unattributed")


def build_state(
    reading: Reading,
    owners: Mapping[int, Owner],
    directory: Directory,
    host: HostMemory | None,
    *,
    package: str,
    interval: float,
    kernel_memory: Mapping[str, int | None],
    kernel_facts: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Build the protocol's ``State``.

    Parameters
    ----------
    reading
        The devices.
    owners
        PID → whose it is, for every process of the reading.
    directory
        The kernels.
    host
        The host's memory.
    package
        Version of this package.
    interval
        Seconds between readings.
    kernel_memory
        Kernel → resident host memory of its tree in bytes.
    kernel_facts
        Kernel → further fields of its ``KernelState``.
    """
    return {
        "protocol": 1,
        "package": package,
        "timeUs": reading.time_us,
        "intervalMs": round(interval * 1000),
        "driver": reading.driver,
        "problem": reading.problem,
        "host": {
            "name": socket.gethostname(),
            "memoryTotal": None if host is None else host.total,
            "memoryUsed": None if host is None else host.used,
            "missing": {"memoryUsed": "not read yet"} if host is None else {},
        },
        "devices": [_device(device, owners) for device in reading.devices],
        "kernels": [
            {
                "id": kernel.id,
                "name": kernel.name,
                "pid": kernel.pid,
                "executionState": kernel.execution_state,
                "lastActivityUs": _rest_since(kernel),
                "hostMemory": kernel_memory.get(kernel.id),
                "notebooks": [dict(notebook) for notebook in kernel.notebooks],
                "missing": _kernel_missing(kernel.missing, kernel_memory.get(kernel.id)),
                **kernel_facts.get(kernel.id, {}),
            }
            for kernel in directory.kernels
        ],
    }


def build_delta(state: Mapping[str, Any]) -> dict[str, Any]:
    """Build the delta message that carries a state's volatile values."""
    return {
        "type": "delta",
        "timeUs": state["timeUs"],
        "devices": [
            {"index": device["index"], **{name: device[name] for name in _VOLATILE}} for device in state["devices"]
        ],
        "host": {"memoryUsed": state["host"]["memoryUsed"]},
    }


def strip_volatile(state: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is left when a delta has said its part: equal for two states between which a delta is enough."""
    rest = {key: value for key, value in state.items() if key != "timeUs"}
    rest["host"] = {key: value for key, value in state["host"].items() if key != "memoryUsed"}
    rest["devices"] = [
        {key: value for key, value in device.items() if key not in _VOLATILE} for device in state["devices"]
    ]
    return rest


def _rest_since(kernel: KernelEntry) -> int | None:
    # A kernel at work speaks all the time, and each change of this makes a full state: told of those at rest only.
    at_rest = kernel.execution_state == "idle" and kernel.last_activity_us is not None
    return kernel.last_activity_us if at_rest else None


def _device(device: Device, owners: Mapping[int, Owner]) -> dict[str, Any]:
    memory = device.memory
    missing = {_FIELDS.get(name, name): why for name, why in device.missing.items() if name != "memory"}
    if memory is None:
        missing.update(dict.fromkeys(_MEMORY_FIELDS, device.missing.get("memory", "unknown")))
    unattributed = device.unattributed
    if memory is not None and unattributed is None:
        missing["unattributed"] = device.missing.get("processes", "the driver does not tell every process's memory")
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "memoryTotal": None if memory is None else memory.total,
        "memoryUsed": None if memory is None else memory.used,
        "memoryReserved": None if memory is None else memory.reserved,
        "memoryFree": None if memory is None else memory.free,
        "utilization": device.utilization,
        "temperatureC": device.temperature_c,
        "powerW": device.power_w,
        "powerLimitW": device.power_limit_w,
        "throttle": list(device.throttle or ()),
        "unified": device.unified,
        "numaNode": device.numa_node,
        "processes": _processes(device.processes or (), owners),
        "unattributed": unattributed,
        "mig": [_instance(instance, owners) for instance in device.mig],
        "missing": missing,
        "health": list(device.health),
    }


def _instance(instance: MigInstance, owners: Mapping[int, Owner]) -> dict[str, Any]:
    memory = instance.memory
    missing = {name: why for name, why in instance.missing.items() if name != "memory"}
    if memory is None:
        why = instance.missing.get("memory", "unknown")
        missing.update({"memoryTotal": why, "memoryUsed": why})
    return {
        "index": instance.index,
        "uuid": instance.uuid,
        "name": instance.name,
        "memoryTotal": None if memory is None else memory.total,
        "memoryUsed": None if memory is None else memory.used,
        "processes": _processes(instance.processes, owners),
        "missing": missing,
    }


def _processes(processes: Sequence[Process], owners: Mapping[int, Owner]) -> list[dict[str, Any]]:
    return [
        {
            "pid": process.pid,
            "used": process.used,
            "name": owner.name,
            "owner": owner.owner,
            "kernelId": owner.kernel_id,
            "missing": {**process.missing, **owner.missing},
            "command": owner.command,
            "startedUs": owner.started_us,
            "notebooks": list(owner.notebooks),
            "terminal": owner.label,
        }
        for process in processes
        if (owner := owners.get(process.pid)) is not None
    ]


def _kernel_missing(missing: Mapping[str, str], memory: int | None) -> dict[str, str]:
    if memory is not None or "hostMemory" in missing:
        return dict(missing)
    return {**missing, "hostMemory": missing.get("pid", "not read yet")}
