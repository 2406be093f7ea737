"""How often the allocator freed its whole cache to satisfy a request (torch's ``num_alloc_retries``).

The recording has no event for it. What it leaves is segments released directly before one that is allocated, and that
is also what ``empty_cache`` followed by a large request leaves; stacks tell them apart, else the amounts may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import DeviceTrace, StackTable

__all__ = ["count_retries"]


def count_retries(device: DeviceTrace, history: History, stacks: StackTable) -> int | None:
    """Count the times the cache was freed for a request.

    Returns
    -------
    int or None
        None when the recording holds releases that may or may not have been one.
    """
    events = device.events
    # A request that failed has been through the whole ladder.
    count = int(np.count_nonzero(events.action == Action.OOM))
    released = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    taken = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    last_of_burst = np.flatnonzero(released[:-1] & taken[1:])
    highest = int(history.reserved.max())
    for last in last_of_burst.tolist():
        first = last
        while first > 0 and released[first - 1]:
            first -= 1
        release_stack, request_stack = int(events.stack[last]), int(events.stack[last + 1])
        if any(frame.name == "empty_cache" for frame in stacks.resolve(release_stack)):
            continue
        if release_stack and release_stack == request_stack:
            count += 1
        elif int(history.reserved[first]) + int(events.size[last + 1]) > highest:
            # Had the segment been added without the release, reserved would have passed everything ever reached: a
            # limit may have been in the way. Below that, no limit was, so it was empty_cache.
            return None
    return count
