"""Releases of cached segments: the program's ``empty_cache``, or the allocator's way to satisfy a request.

torch records both alike. Stacks tell them apart where there are some; else what stands next to them, the limit on
reserved bytes, and in the end whether the model repeats the recording (`gpumem_magic.allocator.lab`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.rounding import round_sizes
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.evidence import Evidence
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.trace.model import Events

__all__ = ["Release", "find_releases", "late_completions", "wanted_bytes"]

# A request of an expandable segment maps this many ranges at most before it is looked for no further.
_MOST_PIECES = 64


class Release(NamedTuple):
    """A burst of releases.

    Attributes
    ----------
    start, first, last
        The first event of the burst, the first that releases, the last. Frees that waited for a stream may complete
        before and between.
    asked
        Whether the program asked for it; None when the allocator did, unless something else says otherwise.
    is_ladder
        True when the request after it would have passed the limit.
    is_whole
        True when the allocator then had nothing milder to try (garbage collection, oversize blocks) than to complete
        every free that waits and release all that is free, and no free block was refused for its size.
    """

    start: int
    first: int
    last: int
    asked: bool | None
    is_ladder: bool
    is_whole: bool


def late_completions(events: Events) -> NDArray[np.bool_]:
    """Mark the completions that do not follow their request directly."""
    action = events.action
    late: NDArray[np.bool_] = action == Action.FREE_COMPLETED
    late[1:] &= (action[:-1] != Action.FREE_REQUESTED) | (events.addr[:-1] != events.addr[1:])
    return late


def find_releases(evidence: Evidence) -> list[Release]:
    """Find the bursts of releases, and say whose they are."""
    events, history = evidence.device.events, evidence.history
    action = events.action
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    if not np.any(released):
        return []
    course, known, limit = evidence.course, evidence.known_limit, evidence.limit
    inside = released | late_completions(events)
    starts = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]])).tolist()
    found: list[Release] = []
    for start in starts:
        last = start
        while last + 1 < len(events) and inside[last + 1]:
            last += 1
        burst = np.flatnonzero(released[start : last + 1])
        if not len(burst):
            continue
        first, final = start + int(burst[0]), start + int(burst[-1])
        typed = course.at(first)
        threshold = typed.garbage_collection_threshold
        following = int(action[last + 1]) if last + 1 < len(events) else Action.UNKNOWN
        asked: bool | None = True
        is_ladder = False
        names = {frame.name for frame in evidence.stacks.resolve(int(events.stack[final]))}
        # In expandable segments what was free can serve after a release without new pages.
        own = {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM}
        own |= {Action.ALLOC} if typed.expandable_segments else set()
        if following in own and "empty_cache" not in names:
            # Without stacks: the allocator releases only when the request would pass a limit.
            reserved = int(history.reserved[first])
            is_ladder = limit is not None and reserved + wanted_bytes(events, last + 1, typed) > limit
            if events.stack[final] != 0 and events.stack[final] == events.stack[last + 1]:
                asked = False
            elif is_ladder or (known is not None and threshold and reserved > int(threshold * known)):
                asked = None
        has_milder = typed.max_split_size is not None or (threshold > 0 and not typed.expandable_segments)
        found.append(Release(start, first, last, asked, is_ladder, is_ladder and not has_milder))
    return found


def wanted_bytes(events: Events, event: int, settings: AllocatorSettings) -> int:
    """Return the bytes of the segment that is asked for at `event`, or by the request that it belongs to."""
    end = min(event + _MOST_PIECES, len(events))
    asks = np.flatnonzero((events.action[event:end] == Action.ALLOC) | (events.action[event:end] == Action.OOM))
    if not len(asks):
        return int(events.size[event])
    size = events.size[event + int(asks[0])]
    return segment_size(int(round_sizes(np.array([size]), settings)[0]), settings)
