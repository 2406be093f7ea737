"""What a report remarks on beside its numbers, from readings alone; the rest needs a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from gpumem_magic.magics.remarks import children_notes, outside_notes
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


UUID = "GPU-12345678-1234-1234-1234-1234567890ab"


def on_device(used, others):
    reading_ = DeviceReading("cuda:0", 0, process_used=used, device_used=used + others, uuid=UUID.removeprefix("GPU-"))
    return Recording(Cell(1, None, ""), SourceKind.CUDA, Outcome.OK, 0, 1, after=(reading_,))


ON = "are on cuda:0 and hold"
STARTED = "that this notebook started"
LITTLE = "little more than a CUDA context"
NEEDED = "which a worker needs only where it computes on the GPU"


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ([520, 510, 530], f"3 processes {STARTED} {ON} 1.52 GiB there: each has {LITTLE} (about 520 MiB), {NEEDED}"),
        (
            [520, 3000, 520],
            f"3 processes {STARTED} {ON} 3.95 GiB there: 2 of them have {LITTLE} (about 520 MiB each), {NEEDED}",
        ),
        ([520], f"one process {STARTED} is on cuda:0 and holds 520 MiB there: it has {LITTLE}, {NEEDED}"),
        ([3000], f"one process {STARTED} is on cuda:0 and holds 2.93 GiB there"),
    ],
)
def test_processes_that_the_notebook_started_and_that_hold_a_context_are_counted(fake_nvml, held, told):
    waits = "import sys; sys.stdin.read()"
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE)) for _ in held
        ]
        processes = [{"pid": one.pid, "used": size * MIB} for one, size in zip(started, held, strict=True)]
        # Besides them this process itself, and a stranger.
        processes += [{"pid": os.getpid(), "used": 1000 * MIB}, {"pid": os.getppid(), "used": 700 * MIB}]
        fake_nvml.control({"count": 1, "devices": [{"uuid": UUID, "processes": processes}]})
        others = (sum(held) + 700) * MIB
        assert [note.text for note in children_notes(on_device(1000 * MIB, others))] == [told]
        # The list alone: reading everything takes milliseconds of each device.
        assert "nvmlDeviceGetPcieThroughput" not in fake_nvml.calls()
        assert "nvmlDeviceGetUtilizationRates" not in fake_nvml.calls()
        for one in started:
            one.communicate()


def test_where_nobody_else_holds_anything_the_driver_is_not_asked(fake_nvml):
    assert children_notes(on_device(1000 * MIB, 10 * MIB)) == ()
    assert fake_nvml.calls().get("nvmlDeviceGetComputeRunningProcesses_v3", 0) == 0
