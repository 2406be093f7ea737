"""Where an axis is labelled: binary sizes upwards, seconds across, also over folds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem_magic.analysis.axis import FoldedAxis

__all__ = ["byte_ticks", "order_ticks", "time_ticks"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _nice(step: float) -> float:
    """Round a step up to 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= step * 0.999), 10 * power)


def byte_ticks(highest: float, most: int = 6) -> list[tuple[float, str]]:
    """Return (bytes, label) from zero up to `highest`, at most about `most` of them."""
    unit = min(max(math.floor(math.log2(max(highest, 1)) / 10), 0), len(_UNITS) - 1)
    size = 1024.0**unit
    step = _nice(highest / size / most)
    if unit == 0:
        step = max(step, 1.0)
    ticks = []
    for count in range(int(highest / size / step) + 1):
        value = count * step
        ticks.append((value * size, f"{value:g} {_UNITS[unit]}" if count else "0"))
    return ticks


def order_ticks(start: int, end: int, most: int = 7) -> list[tuple[float, str]]:
    """Return (number of an event, label) for an axis without times."""
    step = max(int(_nice(max(end - start, 1) / most)), 1)
    return [(n, f"event {n:,}" if n < step else f"{n:,}") for n in range(max(start, 0), end + 1, step)]


def time_ticks(axis: FoldedAxis, start_us: int, end_us: int, most: int = 7) -> list[tuple[float, str]]:
    """Return (Unix microseconds, label in seconds since `start_us`) for the stretches that are not folded."""
    shown = max(end_us - start_us - axis.folded_us, 1) / 1e6
    step = _nice(shown / most)
    unit, scale = ("s", 1.0) if end_us - start_us >= 1_000_000 else ("ms", 1e3)
    if end_us - start_us < 1000:
        unit, scale = "µs", 1e6
    digits = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    ticks: list[tuple[float, str]] = []
    edges = [start_us, *(time for fold in axis.folds for time in fold), end_us]
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        begin, end = (first - start_us) / 1e6, (last - start_us) / 1e6
        counts = range(math.ceil(begin / step - 1e-9), math.floor(end / step + 1e-9) + 1)
        ticks += [(start_us + n * step * 1e6, f"{n * step * scale:.{digits}f} {unit}") for n in counts]
    return ticks
