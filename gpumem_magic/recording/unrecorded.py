"""What can be known of code that nobody recorded and that ran out of memory: its error, and the devices after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.recording.counters import device_readings
from gpumem_magic.recording.devices import choose_target
from gpumem_magic.recording.failure import with_surroundings
from gpumem_magic.recording.imports import finished_torch
from gpumem_magic.recording.model import Recording, SourceKind
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.readings import cpu_reading, now_us

if TYPE_CHECKING:
    from gpumem_magic.recording.model import Cell, DeviceReading

__all__ = ["unrecorded"]


def unrecorded(cell: Cell, error: BaseException) -> Recording | None:
    """Return a recording without events of a cell that ran out of memory; None where another error ended it.

    Parameters
    ----------
    cell
        The code that ran.
    error
        What ended it. Neither it nor its frames are kept.
    """
    outcome, text, failure = classify(error)
    if failure is None:
        return None
    notes = Notes()
    after: tuple[DeviceReading, ...] = ()
    torch = finished_torch()
    with notes.guard("reading the counters"):
        after = (cpu_reading(),)
        if torch is not None:
            after = device_readings(torch, choose_target(torch, wants_cpu=False), notes)
    with notes.guard("asking the driver who is on the devices"):
        failure = with_surroundings(failure, after, None)
    return Recording(
        cell=cell,
        source=SourceKind.NONE,
        outcome=outcome,
        started_us=now_us(),
        ended_us=now_us(),
        after=after,
        error=text,
        notes=notes.freeze(),
        failure=failure,
        is_measured=False,
    )
