"""Accelerators whose allocator keeps no history for us: counters before and after, samples in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.devices import Target
from gpumem_magic.recording.model import DeviceReading, SourceKind
from gpumem_magic.recording.readings import cpu_reading, cuda_readings, now_us
from gpumem_magic.recording.source import Evidence

if TYPE_CHECKING:
    from gpumem_magic.recording.notes import Notes

__all__ = ["CountersSource", "device_readings", "other_readings"]

_NO_PEAK = "this allocator keeps no peak"


class CountersSource:
    """No events; says why.

    Parameters
    ----------
    reason
        Why there are no events, as it reads after "counters only: ".
    notes
        Where the reason is told.
    """

    def __init__(self, reason: str, notes: Notes) -> None:
        self.kind = SourceKind.COUNTERS
        self._reason = reason
        self._notes = notes

    def start(self) -> None:
        """Say why."""
        self._notes.warning(f"no allocation events, counters only: {self._reason}")

    def stop(self, started_us: int, ended_us: int) -> Evidence:  # noqa: ARG002 - the protocol's signature
        """Return nothing: there were no events."""
        return Evidence()


def device_readings(torch: Any, target: Target, notes: Notes) -> tuple[DeviceReading, ...]:
    """Read every device of the kind that is watched, without initialising any."""
    if target is Target.CUDA:
        return cuda_readings(torch, notes)
    return (cpu_reading(),) if target is Target.CPU else other_readings(torch, target.value)


def other_readings(torch: Any, kind: str) -> tuple[DeviceReading, ...]:
    """Read the counters of ``"mps"`` or ``"xpu"`` devices."""
    if kind == "mps":
        mps = torch.mps
        recommended = getattr(mps, "recommended_max_memory", None)
        return (
            DeviceReading(
                device="mps",
                time_us=now_us(),
                allocated=int(mps.current_allocated_memory()),
                reserved=int(mps.driver_allocated_memory()),
                limit=int(recommended()) if recommended is not None else None,
                name="Apple GPU (memory shared with the CPU)",
                missing={"max_allocated": _NO_PEAK},
            ),
        )
    xpu = torch.xpu
    return tuple(
        DeviceReading(
            device=f"xpu:{device}",
            time_us=now_us(),
            allocated=int(xpu.memory_allocated(device)),
            reserved=int(xpu.memory_reserved(device)),
            max_allocated=int(xpu.max_memory_allocated(device)),
            device_total=int(xpu.get_device_properties(device).total_memory),
            name=str(xpu.get_device_name(device)),
            missing={"device_used": "no driver reading for XPU", "process_used": "no driver reading for XPU"},
        )
        for device in range(xpu.device_count())
    )
