"""Errors of libraries that say the same on every kind of device."""

from __future__ import annotations

import pytest

from gpumem_magic.analysis.oom.diagnose import diagnose
from gpumem_magic.recording.model import Cell, DeviceReading, Outcome, ProcessSamples, Recording, SourceKind

TEXT = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."
WHY = "The message says of no device that it ran out: a GPU, a TPU or the host"


@pytest.mark.parametrize(
    ("counted", "device"),
    [
        ((), "an unknown device"),
        (("TPU_0(process=0,(0,0,0,0))",), "an unknown device"),
        (("cuda:0",), "cuda:0"),
    ],
)
def test_jax_ran_out_on_a_gpu_only_where_something_says_so(counted, device):
    process = ProcessSamples((), after=tuple(DeviceReading(name, 1, allocated=1) for name in counted))
    recording = Recording(
        cell=Cell(3, None, "x = make()", filenames=("cell",)),
        source=SourceKind.NONE,
        outcome=Outcome.OUT_OF_MEMORY,
        started_us=0,
        ended_us=2,
        error=TEXT,
        process=process,
    )
    verdict = diagnose((), recording)
    assert verdict is not None
    assert verdict.device == device
    assert (WHY in verdict.unknown) == (device == "an unknown device")
    assert verdict.suggestions[0].startswith("call torch.cuda.empty_cache()") == (device == "cuda:0")
