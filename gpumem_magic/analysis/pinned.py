"""Pinned host memory (torch 2.14 and newer) as a curve beside the devices' own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.model import Lane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import DeviceAnalysis

__all__ = ["with_pinned_lane"]


def with_pinned_lane(devices: Sequence[DeviceAnalysis]) -> tuple[DeviceAnalysis, ...]:
    """Give every GPU the curve of pinned host memory, where that was recorded; the host itself comes last.

    The host keeps its own entry, with who allocated.
    """
    host = [device for device in devices if device.kind == "host"]
    others = [device for device in devices if device.kind != "host"]
    if not host or not host[0].timeline.changes:
        return (*others, *host)
    timeline = host[0].timeline
    return (*(_with_lane(device, timeline.time_us, timeline.allocated) for device in others), *host)


def _with_lane(device: DeviceAnalysis, time_us: NDArray[np.int64], allocated: NDArray[np.int64]) -> DeviceAnalysis:
    start, end = device.start_us, device.end_us
    times = np.concatenate([[start], np.clip(time_us, start, end), [end]]).astype(np.int64)
    lane = Lane("pinned host", "step", times, np.concatenate([allocated, allocated[-1:]]))
    return replace(device, lanes=(*device.lanes, lane))
