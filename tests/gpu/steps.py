"""How long each step takes on the way from the end of a cell or a block to its report on screen.

The functions of the steps are wrapped where they are looked up, in this process; also imported by kernels that checks
start.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gpumem_magic
from gpumem_magic import _reports, widget
from gpumem_magic.holders.roles import RoleBook
from gpumem_magic.magics import measurement
from gpumem_magic.recording import cuda
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["watch"]

# The steps of one kind are within those that are indented less.
_STEPS: tuple[tuple[str, Any, str], ...] = (
    ("stop", Recorder, "stop"),
    ("· snapshot", cuda, "snapshot"),
    ("· to columns", cuda, "_trace"),
    ("· torch off", cuda.CudaSource, "_stop_history"),
    ("· roles", RoleBook, "end"),
    ("holders", measurement.Measurement, "_holders"),
    ("holders", gpumem_magic.record, "_holders"),
    ("analyse", _reports, "build"),
    ("show", measurement, "show_report"),
    ("· picture, text", Report, "static_bundle"),
    ("· document", Report, "to_document"),
    ("· all of it", widget, "bundle"),
)


def watch() -> tuple[dict[str, float], Callable[[], None]]:
    """Begin to sum up the steps' seconds; return the sums by step, and what ends it."""
    seconds: dict[str, float] = {}

    def noted(name: str, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin

        return call

    originals = [(owner, name, getattr(owner, name)) for _, owner, name in _STEPS]
    for (step, owner, name), (_, _, original) in zip(_STEPS, originals, strict=True):
        setattr(owner, name, noted(step, original))

    def restore() -> None:
        for owner, name, original in originals:
            setattr(owner, name, original)

    return seconds, restore
