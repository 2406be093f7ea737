"""Times as recorded, times that never fall, and an order in the place of times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.trace.model import Trace

__all__ = ["first_not_before", "has_times", "in_order", "is_ordered", "rising"]

# So many moments among so many more times are looked up one by one: there, that is as fast.
_FEW_MOMENTS, _TIMES_A_MOMENT = 1024, 8


def has_times(time_us: NDArray[np.int64]) -> bool:
    """Return whether a device's events carry times: torch before 2.3 recorded none, which reads as zeros."""
    return not len(time_us) or bool(time_us[0]) or bool(time_us.any())


def is_ordered(time_us: NDArray[np.int64]) -> bool:
    """Return whether `in_order` put numbers in the place of these times."""
    return bool(len(time_us)) and int(time_us[0]) == 1


def in_order(trace: Trace) -> Trace:
    """Return a trace in which events without times have their number in their place, from 1.

    What is placed by time, such as markers, reserved memory and maps of segments, is then placed by order. Such a
    device's axis begins at 0, which tells it from one with times: those are Unix microseconds.
    """
    devices = tuple(
        device
        if has_times(device.events.time_us)
        else replace(
            device, events=replace(device.events, time_us=np.arange(1, len(device.events) + 1, dtype=np.int64))
        )
        for device in trace.devices
    )
    return replace(trace, devices=devices)


def rising(time_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return times that never fall: where a clock ran backwards it stands still instead.

    Parameters
    ----------
    time_us
        Times in recorded order; returned as they are where they do not fall, which costs a tenth to see.
    """
    if np.all(time_us[1:] >= time_us[:-1]):
        return time_us
    return np.maximum.accumulate(time_us)


def first_not_before(time_us: NDArray[np.int64], moments: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return, of each moment, the index of the first time that is not before it; what ``searchsorted`` returns.

    Both never fall, so that they can be merged: 2 ms for 300,000 moments among 600,000 times, against 4 to 7.

    Parameters
    ----------
    time_us, moments
        Microseconds, between the bounds of what a trace may hold; shapes ``(n,)`` and ``(m,)``.
    """
    count = len(moments)
    if count < _FEW_MOMENTS or count * _TIMES_A_MOMENT < len(time_us):
        return np.searchsorted(time_us, moments)
    # A moment comes before the times that equal it. Two rising halves are what a stable sort only has to merge.
    keys = np.empty(count + len(time_us), np.int64)
    np.left_shift(moments, 1, out=keys[:count])
    np.left_shift(time_us, 1, out=keys[count:])
    keys[count:] |= 1
    keys.sort(kind="stable")
    keys &= 1
    index = np.flatnonzero(keys == 0)
    index -= np.arange(count)
    return index
