"""Tell differences of a percent on a machine that is noisy by ten: for the benchmarks and the checks on the GPU.

The two ways are run in rounds of four, A B B A, so that drift (clocks, temperature, other work) falls on both alike;
each round gives one ratio. What is told of the rounds is the median of their pairs' means (Hodges and Lehmann's
estimate) with its 95 % interval by Wilcoxon's signed ranks. It assumes only that noise falls on either side alike,
which the order makes so, is as sure as a mean where noise is small, and does not follow rounds that were disturbed.

Short rounds are better than few. Better still are cells of several steps that say what each step took (`stepwise`): the
median of a cell's steps throws out what disturbed one of them, and what is paid once in a cell is told apart from what
is paid at each step. The garbage collector is off meanwhile, and what was there before is frozen: collecting half a
million objects of torch takes longer than the cell that is measured.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Paired",
    "Steps",
    "Stepwise",
    "calm",
    "interval",
    "paired",
    "pin_to_calm_cores",
    "steps_between",
    "stepwise",
]

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


class Steps(NamedTuple):
    """What one run of a cell took, in seconds: the whole, and each of its steps, which all do the same.

    `busy` is the processor time of the steps, of all threads together.
    """

    whole: float
    steps: list[float]
    busy: list[float]


Estimate = tuple[float, float, float]


class Stepwise(NamedTuple):
    """How one way compares with its base, each as (low, estimate, high).

    Attributes
    ----------
    step
        Ratio of the steps, the first of each cell left out, less 1.
    busy
        The same of processor time, which other programs that want the processor do not touch.
    once
        Seconds more in each cell than its steps explain: what is paid once.
    cell
        Ratio of whole cells, less 1.
    base
        A step of the base, in seconds.
    length
        Steps in a cell.
    rounds
        Number of rounds.
    """

    step: Estimate
    busy: Estimate
    once: Estimate
    cell: Estimate
    base: float
    length: int
    rounds: int

    def __str__(self) -> str:
        """Write what a step, a cell once, and the whole cell take more."""
        step, busy, cell = (
            "{1:+.2f} % ({0:+.2f} to {2:+.2f})".format(*(100 * value for value in one))
            for one in (self.step, self.busy, self.cell)
        )
        once = "{1:+.0f} µs ({0:+.0f} to {2:+.0f})".format(*(1e6 * value for value in self.once))
        return (
            f"a step {step} of {self.base * 1e3:.2f} ms, its processor time {busy}, once in a cell {once}, "
            f"so a cell of {self.length} steps {cell}; {self.rounds} rounds of 4"
        )


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median of the pairs' means with its 95 % interval by signed ranks: (low, estimate, high)."""
    count = len(values)
    means = sorted((one + other) / 2 for index, one in enumerate(values) for other in values[: index + 1])
    reach = 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    beyond = max(0, math.floor(len(means) / 2 - reach))
    return means[beyond], statistics.median(means), means[-1 - beyond]


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


def steps_between(times: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return what steps took between their beginnings and the end, by the wall's clock and the processor's."""
    walls, busy = (list(column) for column in zip(*times, strict=True))
    return [b - a for a, b in pairwise(walls)], [b - a for a, b in pairwise(busy)]


def stepwise(base: Callable[[], Steps], other: Callable[[], Steps], seconds: float) -> Stepwise:
    """Compare two ways of running a cell of steps in rounds, after one of each that does not count.

    Parameters
    ----------
    base, other
        Run the cell once and return what it took; always the same number of steps, two or more.
    seconds
        How long to go on.
    """
    step: list[float] = []
    busy: list[float] = []
    once: list[float] = []
    cell: list[float] = []
    bases: list[float] = []
    length = len(base().steps)
    other()
    with calm():
        began = time.monotonic()
        while len(step) < FEWEST or time.monotonic() - began < seconds:
            one, two, three, four = base(), other(), other(), base()
            usual, more = (statistics.median(a.steps[1:] + b.steps[1:]) for a, b in ((one, four), (two, three)))
            step.append(more / usual - 1)
            whole = (two.whole + three.whole - one.whole - four.whole) / 2
            once.append(whole - length * (more - usual))
            cell.append((two.whole + three.whole) / (one.whole + four.whole) - 1)
            bases.append(usual)
            usual, more = (statistics.median(a.busy[1:] + b.busy[1:]) for a, b in ((one, four), (two, three)))
            busy.append(more / usual - 1)
            if len(step) % _COLLECT_EVERY == 0:
                gc.collect()
    return Stepwise(
        interval(step), interval(busy), interval(once), interval(cell), statistics.median(bases), length, len(step)
    )


def _topology(core: int, name: str) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/{name}").read_text().strip()
    except OSError:
        return str(core) if name == "core_id" else ""


def pin_to_calm_cores() -> str:
    """Keep the calling thread on the processor core that was the least disturbed lately, and all others on another.

    Where autograd's thread is woken differs from cell to cell otherwise, and a step with it by several percent. The
    other core is one of the same package, if there is one. Threads that are started later stay with their starter.

    Returns
    -------
    str
        Which ones, and how much slower a short loop was on the first at its ninth decile than at best.
    """
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned"
    allowed, found = sorted(os.sched_getaffinity(0)), []
    for core in allowed:
        os.sched_setaffinity(0, {core})
        times = []
        for _ in range(40):
            began = time.perf_counter()
            sum(range(20_000))
            times.append(time.perf_counter() - began)
        times.sort()
        found.append((times[36] / times[0], core))
    found.sort()
    spread, own = found[0]
    place = _topology(own, "physical_package_id"), _topology(own, "core_id")
    near = [core for _, core in found[1:] if _topology(core, "physical_package_id") == place[0]]
    apart = [core for core in near if _topology(core, "core_id") != place[1]]
    rest = [*apart, *near, own][0]
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), {rest})
    os.sched_setaffinity(0, {own})
    return f"on cores {own} and {rest} of {len(allowed)}, steady within {100 * (spread - 1):.1f} %"
