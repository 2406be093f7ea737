"""The numbers of a snapshot file, device by device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.allocator.replay import history
from gpumem_magic.allocator.retries import count_retries
from gpumem_magic.allocator.squeeze import Means, find_squeeze
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.trace.model import DeviceTrace, Trace

__all__ = ["Counter", "DeviceSummary", "summarize"]


@dataclass(frozen=True)
class Counter:
    """One of torch's byte counters over a recording; `peak_time_us` is None where no times exist."""

    start: int
    peak: int
    end: int
    peak_time_us: int | None


@dataclass(frozen=True)
class DeviceSummary:
    """What one device did.

    Attributes
    ----------
    device
        torch's notation.
    events
        Number of events.
    span_us
        Times of the first and last event, or None.
    requested, allocated, active, reserved
        torch's counters.
    truncated
        True when something was there before the first event, so that earlier events exist that this file lacks.
    ooms
        Requests that failed.
    retries
        Times the cache was freed for a request; None when the recording cannot tell.
    exact
        True when all counters are exact.
    warnings
        One line each.
    """

    device: str
    events: int
    span_us: tuple[int, int] | None
    requested: Counter
    allocated: Counter
    active: Counter
    reserved: Counter
    truncated: bool
    ooms: int
    retries: int | None
    exact: bool
    warnings: tuple[str, ...]


def summarize(trace: Trace) -> tuple[DeviceSummary, ...]:
    """Replay every device of a trace and read its counters."""
    return tuple(_device(device, trace) for device in trace.devices)


def _device(device: DeviceTrace, trace: Trace) -> DeviceSummary:
    replayed = history(device, trace.settings)
    times = device.events.time_us
    warnings = list(replayed.warnings)
    before = int(np.count_nonzero(replayed.lifetimes.alloc_event < 0))
    truncated = bool(before or replayed.reserved[0])
    if truncated and len(times):
        warnings.append(
            f"{device.key}: {format_bytes(int(replayed.allocated[0]))} in {before:,} blocks were there before the "
            "first event: the recording began late or its ring overflowed, and an earlier peak is not in it"
        )
    retries = count_retries(device, replayed, trace.stacks)
    if retries is None:
        warnings.append(
            f"{device.key}: retries are unknown: the cache was freed right before a request, by the program or for "
            "it, and without stacks the recording does not tell"
        )
    squeeze = find_squeeze(device, replayed, trace.stacks, trace.settings, Means())
    if squeeze is not None:
        warnings.append(squeeze.text(device.key))
    return DeviceSummary(
        device=device.key,
        events=len(times),
        span_us=(int(times.min()), int(times.max())) if len(times) and times.any() else None,
        requested=_counter(replayed.requested, times),
        allocated=_counter(replayed.allocated, times),
        active=_counter(replayed.active, times),
        reserved=_counter(replayed.reserved, times),
        truncated=truncated,
        ooms=int(np.count_nonzero(device.events.action == Action.OOM)),
        retries=retries,
        exact=replayed.exact,
        warnings=tuple(warnings),
    )


def _counter(column: NDArray[np.int64], times: NDArray[np.int64]) -> Counter:
    index = int(np.argmax(column))
    # Row 0 lies before the first event, whose time is then the last moment known to hold it.
    time_us = int(times[max(index - 1, 0)]) if len(times) else 0
    return Counter(int(column[0]), int(column[index]), int(column[-1]), time_us or None)
