"""Tell differences of a percent on a machine that is noisy by ten: for the benchmarks and the checks on the GPU.

The two ways are run in rounds of four, A B B A, so that drift (clocks, temperature, other work) falls on both; each
round gives one ratio, and what is told is the rounds' median with its 95 % interval by order statistics, which assumes
nothing about the noise. Short rounds are better than few: what disturbs one is then thrown out by the median. The
garbage collector is off meanwhile, and what was there before is frozen: collecting half a million objects of torch
takes longer than the cell that is measured.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Paired", "calm", "interval", "paired"]

FEWEST = 4
_COLLECT_EVERY = 16  # rounds


class Paired(NamedTuple):
    """How one way compares with its base: ratio less 1, and seconds more, each as (low, median, high).

    `base` is the median time of the base in seconds, `rounds` their number.
    """

    ratio: tuple[float, float, float]
    more: tuple[float, float, float]
    base: float
    rounds: int

    def __str__(self) -> str:
        """Write the ratio in percent, with its interval."""
        low, middle, high = (100 * value for value in self.ratio)
        return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f}; {self.rounds} rounds of 4)"


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median with the 95 % interval of it, by order statistics."""
    values = sorted(values)
    count = len(values)
    reach = math.ceil(0.98 * math.sqrt(count))
    low, high = max(0, count // 2 - reach), min(count - 1, (count - 1) // 2 + reach)
    return values[low], statistics.median(values), values[high]


@contextmanager
def calm() -> Iterator[None]:
    """Keep the garbage collector from what was there before, and from running by itself."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def paired(base: Callable[[], float], other: Callable[[], float], seconds: float) -> Paired:
    """Compare two ways in rounds, after one of each that does not count.

    Parameters
    ----------
    base, other
        Run the work once and return what it took, in seconds of any clock.
    seconds
        How long to go on.
    """
    ratios: list[float] = []
    more: list[float] = []
    bases: list[float] = []
    base(), other()
    with calm():
        began = time.monotonic()
        while len(ratios) < FEWEST or time.monotonic() - began < seconds:
            first, second, third, fourth = base(), other(), other(), base()
            ratios.append((second + third) / (first + fourth) - 1)
            more.append((second + third - first - fourth) / 2)
            bases.append((first + fourth) / 2)
            if len(ratios) % _COLLECT_EVERY == 0:
                gc.collect()
    return Paired(interval(ratios), interval(more), statistics.median(bases), len(ratios))
