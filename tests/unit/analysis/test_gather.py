"""Two devices under ``nn.DataParallel``: what it gathers on the first one is told, and nothing else is taken for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from by_hand.segment import SEGMENT, START, OneSegment

from gpumem_magic.analysis import analyse
from gpumem_magic.analysis.gather import gather_notes
from gpumem_magic.recording.model import Calls, Cell, DeviceReading, Marks, Outcome, Recording, SourceKind
from gpumem_magic.trace.convert import from_snapshot

MIB = 1 << 20
FILE = "cell.py"
SOURCE = "%%gpumem\nfor x in batches:\n    out = net(x)\n    outs.append(out)\n"
MAIN, FIRST, SECOND = 1, 2, 3
WRAPPER = (("module", "net", "DataParallel"),)
INNER = (("module", "net.module", "Net"),)


class TwoDevices:
    """Both devices' events on one clock, with the calls that were under way."""

    def __init__(self, wrapper: tuple[tuple[str, str, str], ...] = WRAPPER) -> None:
        self.devices = [OneSegment(), OneSegment()]
        self.wrapper = wrapper
        self.places: list[tuple[tuple[str, str, str], ...]] = []
        self.calls: list[tuple[int, int, int]] = []
        self.now = START

    def take(self, device: int, name: str, size: int, frames: list[dict[str, Any]] | None = None) -> None:
        one = self.devices[device]
        one.now = self.now = self.now + 5
        one.take(name, size)
        if frames is not None:
            one.events[-1]["frames"] = frames
        self.now = one.now

    def give(self, device: int, name: str) -> None:
        one = self.devices[device]
        one.now = self.now = self.now + 5
        one.give(name)
        self.now = one.now

    def call(self, thread: int, *stack: tuple[str, str, str]) -> None:
        self.now += 5
        if stack and stack not in self.places:
            self.places.append(stack)
        self.calls.append((self.now, thread, self.places.index(stack) if stack else -1))

    def forward(self, turn: int, *, gathered: int) -> None:
        """One call of the wrapper: inputs are scattered, both replicas run on threads, the outputs are gathered."""
        self.call(MAIN, *self.wrapper)
        for device in (0, 1):
            self.take(device, f"input {turn}", 2 * MIB)
        for device, thread in ((0, FIRST), (1, SECOND)):
            self.call(thread, *INNER)
            self.take(device, f"part {turn}", 8 * MIB)
            self.call(thread)
        self.take(0, f"out {turn}", gathered)
        self.call(MAIN)
        for device in (0, 1):
            self.give(device, f"part {turn}")
            self.give(device, f"input {turn}")
        self.take(0, "loss", MIB)

    def notes(self, *, has_calls: bool = True) -> list[str]:
        snapshots = [one.snapshot(one.events) for one in self.devices]
        segments = [{**shot["segments"][0], "device": n} for n, shot in enumerate(snapshots)]
        both = {**snapshots[0], "segments": segments, "device_traces": [s["device_traces"][0] for s in snapshots]}
        time_us, thread, place = (np.array(column, np.int64) for column in zip(*self.calls, strict=True))
        readings = tuple(
            DeviceReading(f"cuda:{n}", self.now, one.total, SEGMENT, device_total=1 << 34, limit=1 << 34)
            for n, one in enumerate(self.devices)
        )
        recording = Recording(
            cell=Cell(1, None, SOURCE, (FILE,)),
            source=SourceKind.CUDA,
            outcome=Outcome.OK,
            started_us=START,
            ended_us=self.now + 5,
            after=readings,
            trace=from_snapshot(both, kind="cuda"),
            marks=Marks(
                np.array([START], np.int64),
                np.array([MAIN], np.int64),
                np.array([0], np.int32),
                (((FILE, 3, "<module>"),),),
            ),
            calls=Calls(time_us, thread, place.astype(np.int32), tuple(self.places)) if has_calls else None,
        )
        return [note.text for note in gather_notes(recording, analyse(recording))]


def test_outputs_that_are_gathered_on_one_device_are_told_with_their_line() -> None:
    run = TwoDevices()
    for turn in range(3):
        run.forward(turn, gathered=16 * MIB)
    # At the peak: three outputs and the former turn's loss, with both parts and inputs of the last one.
    assert run.notes() == [
        (
            "cuda:0 peaks 49.0 MiB above cuda:1: nn.DataParallel gathers there what its replicas return, 48.0 MiB at "
            "the peak (line 3 `out = net(x)`); DistributedDataParallel gathers nothing"
        )
    ]


def test_what_the_replicas_and_the_lines_after_them_make_is_not_gathered() -> None:
    run = TwoDevices()
    run.forward(0, gathered=512)
    run.take(0, "kept", 64 * MIB)
    assert run.notes() == []


def test_another_wrapper_gathers_nothing() -> None:
    run = TwoDevices((("module", "net", "DistributedDataParallel"),))
    run.forward(0, gathered=16 * MIB)
    assert run.notes() == []


def test_a_wrapper_that_runs_no_replicas_gathers_nothing() -> None:
    run = TwoDevices()
    run.call(MAIN, *WRAPPER)
    run.take(0, "out", 16 * MIB)
    run.take(1, "other", MIB)
    run.call(MAIN)
    assert run.notes() == []


def test_recorded_stacks_tell_it_without_calls() -> None:
    run = TwoDevices()
    run.call(MAIN)
    frames = [
        {"filename": "/site-packages/torch/nn/parallel/comm.py", "line": 262, "name": "gather"},
        {"filename": "/site-packages/torch/nn/parallel/data_parallel.py", "line": 220, "name": "gather"},
    ]
    run.take(0, "out", 16 * MIB, frames)
    run.take(0, "more", 4 * MIB)
    run.take(1, "other", MIB)
    (text,) = run.notes(has_calls=False)
    assert text.startswith(
        "cuda:0 peaks 19.0 MiB above cuda:1: nn.DataParallel gathers there what its replicas return, 16"
    )
