"""Moments worth a mark: out of memory, retries, returned segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.model import Marker
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import DeviceTrace, StackTable

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


def _release_markers(device: DeviceTrace, history: History, stacks: StackTable) -> list[Marker]:
    """Mark each run of returned segments, and say what returned them as far as the recording tells.

    ``empty_cache()`` and the allocator's own retry leave the same events. A retry happens inside one allocation: the
    next event is the new segment (or the out-of-memory event), from the same place in the program.
    """
    events = device.events
    action = events.action
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    if not released.any():
        return []
    edges = np.diff(np.concatenate([[False], released, [False]]).astype(np.int8))
    markers = []
    for first, last in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        returned = int(history.reserved[first]) - int(history.reserved[last])
        following = int(action[last]) if last < len(action) else -1
        by, into = int(events.stack[first]), int(events.stack[last]) if last < len(action) else -1
        by_program = any(frame.name == "empty_cache" for frame in stacks.resolve(by))
        retry = not by_program and following in {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM}
        cause = "empty_cache()"
        if retry:
            certain = following == Action.OOM or by == into != 0
            cause = "the allocator's retry" if certain else "the allocator's retry, or empty_cache() just before"
        text = f"{format_bytes(returned)} of cached segments returned to the driver: {cause}"
        kind: Literal["retry", "segment_free"] = "retry" if retry else "segment_free"
        markers.append((returned, Marker(int(events.time_us[first]), kind, text)))
    markers.sort(key=lambda pair: -pair[0])
    return [marker for _, marker in markers[:_MOST]]


def event_markers(device: DeviceTrace, history: History, stacks: StackTable) -> tuple[Marker, ...]:
    """Return the marks of a device's events in time order.

    Parameters
    ----------
    device
        The events.
    history
        Their replay.
    stacks
        Stacks of the trace.
    """
    return tuple(sorted(_oom_markers(device)[-_MOST:] + _release_markers(device, history, stacks)))
