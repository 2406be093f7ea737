"""Runs in which something else filled the device: requests found no room where torch itself was not in the way.

A request that finds no room has the cached segments given back, and may fail all the same. Under a memory fraction that
is torch's own doing. Without one the driver had nothing left: then the recorded peak says how much others left over,
not what the program and its settings would have reserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.allocator.releases import wanted_bytes
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.trace.model import DeviceTrace, Events, StackTable

__all__ = ["Means", "Squeeze", "find_squeeze"]

# What the driver and the libraries of one process take beside torch: 0.5 to 1.6 GiB on an H200.
_CONTEXT = 2 << 30


@dataclass(frozen=True)
class Means:
    """What is known of a recorded process besides its events; None: not known.

    Attributes
    ----------
    fraction
        Most bytes that torch might reserve; the device's size where no memory fraction was set.
    total
        Bytes of the device.
    emptied
        How often the program called ``empty_cache``.
    """

    fraction: int | None = None
    total: int | None = None
    emptied: int | None = None


@dataclass(frozen=True)
class Squeeze:
    """Requests for which there was no room.

    Attributes
    ----------
    event
        The first event at which the device was full.
    count
        How many requests found it so.
    asked, reserved
        Bytes of the segment that the first one needed, and reserved when it did.
    reached
        Bytes that were reserved at another time, when that was more; None otherwise.
    total
        Bytes of the device, where they say that something else was there; None otherwise.
    """

    event: int
    count: int
    asked: int
    reserved: int
    reached: int | None
    total: int | None

    @property
    def is_certain(self) -> bool:
        """False where a memory fraction of which nothing is known explains it too."""
        return self.reached is not None or self.total is not None

    def text(self, key: str) -> str:
        """Say what happened on device `key`, in one line."""
        times = "once" if self.count == 1 else f"{format_count(self.count)} times"
        found = (
            f"a request found no room {times} (first at event {format_count(self.event)}: "
            f"{format_bytes(self.asked)} more than the {format_bytes(self.reserved)} reserved"
        )
        after = "what was reserved tells how much room was left, not what this setting needs"
        if self.reached is not None:
            return (
                f"{key}: something else filled the device, another process as a rule: {found}, and "
                f"{format_bytes(self.reached)} had room at another time); {after}"
            )
        if self.total is not None:
            return (
                f"{key}: something else filled the device, another process as a rule: {found}, of "
                f"{format_bytes(self.total)}, and no memory fraction in the way); {after}"
            )
        return (
            f"{key}: {found}): a memory fraction was in the way, or another process filled the device; if it was "
            f"another process, {after}"
        )


def find_squeeze(
    device: DeviceTrace, history: History, stacks: StackTable, settings: Mapping[str, object], means: Means
) -> Squeeze | None:
    """Find requests that found the device full though torch's own limit was not reached.

    Parameters
    ----------
    device, history, stacks, settings
        The recording, its replay, and `Trace.settings`.
    means
        What else is known.

    Returns
    -------
    Squeeze or None
        None when nothing points to it: no request found the device full, or torch's own limit or this process alone
        explains it.
    """
    typed = from_torch(settings)
    reserved = history.reserved
    events = device.events
    moments = []
    for event, request in _full(events, stacks, typed, means):
        asked = wanted_bytes(events, request, typed)
        # An error says what the driver had left. Enough: a memory fraction stopped the request, whichever it was then.
        if events.action[request] != Action.OOM or int(events.addr[request]) < asked:
            moments.append((event, asked, int(reserved[event])))
    if means.fraction is not None:
        moments = [moment for moment in moments if moment[1] + moment[2] <= means.fraction]
    if not moments:
        return None
    reached = int(reserved.max())
    below = [moment for moment in moments if moment[1] + moment[2] <= reached]
    if below:
        return _squeeze(below, reached, None)
    if means.total is not None and means.fraction is not None:
        room = means.total - _CONTEXT
        below = [moment for moment in moments if moment[1] + moment[2] <= room]
        return _squeeze(below, None, means.total) if below else None
    # A failed request by itself may have met any limit; its verdict is another matter.
    retried = [moment for moment in moments if events.action[moment[0]] != Action.OOM]
    return _squeeze(retried, None, None) if retried else None


def _squeeze(moments: list[tuple[int, int, int]], reached: int | None, total: int | None) -> Squeeze:
    event, asked, reserved = moments[0]
    return Squeeze(event, len(moments), asked, reserved, reached, total)


def _full(events: Events, stacks: StackTable, settings: AllocatorSettings, means: Means) -> list[tuple[int, int]]:
    """Return (first event, event of the request) of every request that found no room, in order."""
    action = events.action
    released = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    asks = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP) | (action == Action.OOM)
    if settings.expandable_segments:
        asks |= action == Action.ALLOC  # What was free can serve after a release without new pages.
    sure: list[tuple[int, int]] = []
    unsure: list[tuple[int, int]] = []
    # torch collects garbage under a memory fraction only, and then a request is not all that releases.
    collects = settings.garbage_collection_threshold > 0
    for last in [] if collects else np.flatnonzero(released[:-1] & asks[1:]).tolist():
        first = last
        while first and released[first - 1]:
            first -= 1
        stack = int(events.stack[last])
        if not stack:
            unsure.append((first, last + 1))
        elif stack == events.stack[last + 1] and not any(
            frame.name == "empty_cache" for frame in stacks.resolve(stack)
        ):
            sure.append((first, last + 1))
    if unsure and means.emptied is not None:
        # Every burst that no call explains was a request's.
        bursts = int(np.count_nonzero(released & ~np.concatenate([[False], released[:-1]])))
        sure += unsure if bursts - len(sure) > means.emptied else []
    after = {request for _, request in sure}
    failed = np.flatnonzero(action == Action.OOM).tolist()
    return sorted([*sure, *((event, event) for event in failed if event not in after)])
