"""What %gpumem_free says of what it did."""

from __future__ import annotations

import pytest

from gpumem_magic.holders import Freed, release_text
from gpumem_magic.holders.release import in_steps

MIB = 1 << 20


def test_nothing_is_not_called_released():
    steps = [Freed(step, {}, {}) for step in ("reference cycles", "last error", "torch's free cache")]
    assert release_text(steps) == (
        "gpumem: nothing to release: reference cycles, last error and torch's free cache hold no memory; "
        "%gpumem_who names what holds the rest"
    )


def test_what_was_freed_in_all_and_by_each_step():
    steps = [
        Freed("reference cycles", {"cuda:0": MIB, "cpu": MIB}, {}),
        Freed("last error", {}, {}),
        Freed("variables x", {"cuda:0": 2 * MIB}, {}),
        Freed("torch's free cache", {}, {"cuda:0": 20 * MIB}),
    ]
    assert release_text(steps).splitlines() == [
        (
            "gpumem: released 3.00 MiB of tensors on cuda:0, 1.00 MiB of tensors on cpu, "
            "20.0 MiB back to the driver on cuda:0"
        ),
        "  reference cycles: 1.00 MiB of tensors on cuda:0, 1.00 MiB of tensors on cpu",
        "  variables x: 2.00 MiB of tensors on cuda:0",
        "  torch's free cache: 20.0 MiB back to the driver on cuda:0",
        "  nothing in last error",
    ]


def test_a_step_that_fails_ends_no_other():
    done = []

    def fail():
        raise RuntimeError("CUDA error: device-side assert triggered\nFor debugging consider …")

    steps = in_steps([("broken", fail), ("whole", lambda: done.append(True))])
    assert done == [True]
    assert [(step.step, step.failed) for step in steps][:2] == [
        ("broken", "RuntimeError: CUDA error: device-side assert triggered"),
        ("whole", None),
    ]
    assert release_text(steps).splitlines()[-1] == "  ! broken: RuntimeError: CUDA error: device-side assert triggered"
    assert "broken" not in release_text(steps).splitlines()[0]


def test_an_allocator_without_statistics_is_told_and_the_steps_are_taken(monkeypatch):
    cuda = pytest.importorskip("torch").cuda

    def unknown(_device):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "memory_reserved", unknown)
    done = []
    steps = in_steps([("names", lambda: done.append(True))])
    assert done == [True]
    assert "  ! torch's free cache: RuntimeError: CUDAPluggable" in release_text(steps)


def test_what_the_output_history_still_keeps_is_said():
    steps = [Freed("reference cycles", {}, {}), Freed("last error", {"cpu": MIB}, {})]
    told = "  left in Out and _, as it may be wanted: 6.00 MiB on cpu; %gpumem_free --out gives that back too"
    assert release_text(steps, {"cpu": 6 * MIB}).splitlines()[-1] == told
    assert release_text(steps[:1], {"cpu": 6 * MIB}).splitlines()[1:] == [told]
    assert "--out" not in release_text(steps, {})
