"""What a report remarks on beside its numbers, from readings alone; the rest needs a kernel."""

from __future__ import annotations

import pytest

from gpumem_magic.magics.remarks import outside_notes
from gpumem_magic.recording.model import Cell, DeviceReading, Outcome, Recording, SourceKind

MIB = 1 << 20


def reading(process_used, reserved):
    return DeviceReading("cuda:0", 0, process_used=process_used, reserved=reserved)


def notes(before, after):
    recording = Recording(
        cell=Cell(1, None, ""),
        source=SourceKind.CUDA,
        outcome=Outcome.OK,
        started_us=0,
        ended_us=1,
        before=() if before is None else (before,),
        after=(after,),
    )
    return [note.text for note in outside_notes(recording)]


def test_what_a_library_took_past_torch_is_told():
    (text,) = notes(reading(1000 * MIB, 400 * MIB), reading(2144 * MIB, 1000 * MIB))
    told = "this process took 544 MiB of cuda:0 past torch's allocator in this cell, 1.12 GiB in all: "
    assert text.startswith(told)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (reading(1000 * MIB, 400 * MIB), reading(2000 * MIB, 1390 * MIB)),  # torch's own
        (reading(1000 * MIB, 400 * MIB), reading(None, 400 * MIB)),  # the driver does not tell
        (reading(None, 0), reading(900 * MIB, 300 * MIB)),
        (reading(0, 0), reading(900 * MIB, 300 * MIB)),  # the context
        (None, reading(900 * MIB, 300 * MIB)),
        (reading(1000 * MIB, None), reading(2000 * MIB, None)),  # a pluggable allocator
    ],
)
def test_what_is_torchs_own_or_not_known_is_not(before, after):
    assert notes(before, after) == []
