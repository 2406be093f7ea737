"""Room that the driver gave away outside of its usual order, as a recording shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.settings_model import MIB
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["Foreign", "find_foreign"]

_CHUNK = 32 * MIB
# Placements this close belong to one hole.
_NEAR = 64 * MIB


class Foreign(NamedTuple):
    """A hole in memory that something else in the process reserved: from which event on, and how large."""

    event: int
    size: int


def find_foreign(device: DeviceTrace) -> tuple[Foreign, ...]:
    """Find large holes above where the driver otherwise puts segments.

    When a process first launches work on several streams, its context reserves more, and segments then fill a hole of
    416 MiB in it before anything else (seen in all eight recordings with three streams). Segments that lie above the
    first one's chunk are taken as lying in such holes; a hole of one chunk is the context's own, which `Driver` knows.
    """
    events = device.events
    taken = np.flatnonzero(events.action == Action.SEGMENT_ALLOC).tolist()
    clusters: list[list[int]] = []  # low, high, event
    ceiling = None
    previous = -1
    for event in taken:
        low = int(events.addr[event])
        high = low + int(events.size[event])
        if ceiling is None:
            ceiling = _up(high)
        if low >= ceiling:
            for cluster in clusters:
                if low <= cluster[1] + _NEAR and high >= cluster[0] - _NEAR:
                    cluster[0], cluster[1] = min(cluster[0], low), max(cluster[1], high)
                    break
            else:
                # It may have been there since the segment before.
                clusters.append([low, high, previous + 1])
        previous = event
    holes = [Foreign(event, _up(high) - low) for low, high, event in clusters]
    return tuple(hole for hole in holes if hole.size > _CHUNK)


def _up(address: int) -> int:
    return (address + _CHUNK - 1) // _CHUNK * _CHUNK
