"""Moments worth a mark: out of memory, retries, returned segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.model import Marker
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["event_markers", "last_oom"]

# The largest of these are kept; a picture with more marks than this shows none.
_MOST = 200


def last_oom(device: DeviceTrace) -> int | None:
    """Return the index of the last out-of-memory event, or None.

    Its size is the request rounded to 512 B; torch's message names the segment that would have been needed, 2 or 20 MiB
    for anything under 10 MiB.
    """
    failed = np.flatnonzero(device.events.action == Action.OOM)
    return int(failed[-1]) if len(failed) else None


def _oom_markers(device: DeviceTrace) -> list[Marker]:
    events = device.events
    markers = []
    for index in np.flatnonzero(events.action == Action.OOM).tolist():
        asked, free = format_bytes(int(events.size[index])), format_bytes(int(events.addr[index]))
        markers.append(
            Marker(int(events.time_us[index]), "oom", f"out of memory: {asked} asked for, the driver had {free} free")
        )
    return markers


def _release_markers(device: DeviceTrace, history: History) -> list[Marker]:
    """Mark each run of returned segments; one that an allocation of a segment follows at once was a retry's.

    ``empty_cache()`` and the allocator's own retry leave the same events. A retry happens inside one allocation, so
    the next event is the new segment (or the out-of-memory event).
    """
    action = device.events.action
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    if not released.any():
        return []
    edges = np.diff(np.concatenate([[False], released, [False]]).astype(np.int8))
    markers = []
    for first, last in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        returned = int(history.reserved[first]) - int(history.reserved[last])
        following = int(action[last]) if last < len(action) else -1
        retry = following in {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM}
        text = f"{format_bytes(returned)} of cached segments returned to the driver"
        text += ", then a new segment: a retry, or empty_cache() just before" if retry else ": empty_cache()"
        markers.append(
            (returned, Marker(int(device.events.time_us[first]), "retry" if retry else "segment_free", text))
        )
    markers.sort(key=lambda pair: -pair[0])
    return [marker for _, marker in markers[:_MOST]]


def event_markers(device: DeviceTrace, history: History) -> tuple[Marker, ...]:
    """Return the marks of a device's events in time order.

    Parameters
    ----------
    device
        The events.
    history
        Their replay.
    """
    return tuple(sorted(_oom_markers(device)[-_MOST:] + _release_markers(device, history)))
