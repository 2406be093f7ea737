"""What was allocated in a recording and when it went, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.context import Placement
    from gpumem_magic.analysis.model import DeviceAnalysis
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["Lives", "lives_of"]


class Lives(NamedTuple):
    """Columns of what was allocated in the recording, in order: index of its place (-1: unknown), events, sizes.

    `ended` is -1 for what stayed; `time_us` and `address` are those of all events; `number` is each one's among all
    lifetimes.
    """

    time_us: NDArray[np.int64]
    address: NDArray[np.uint64]
    place: NDArray[np.int32]
    group: NDArray[np.int32]
    began: NDArray[np.int32]
    ended: NDArray[np.int32]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    number: NDArray[np.int32]

    @property
    def stayed(self) -> NDArray[np.bool_]:
        """Which are alive at the end."""
        alive: NDArray[np.bool_] = self.ended < 0
        return alive

    def iteration(self, events: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the iteration that some events fall into, -1 before the first, given when each one began, in order."""
        return np.searchsorted(starts, self.time_us[events], "right") - 1

    def iterations(self, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the iteration that each event falls into, -1 before the first, given when each one began, in order."""
        # Starts are few: they are looked up among the events, not each event among them.
        first = np.searchsorted(self.time_us, starts)
        count = np.diff(first, prepend=0, append=len(self.time_us))
        return np.repeat(np.arange(-1, len(starts), dtype=np.int32), count)


def lives_of(trace: DeviceTrace, device: DeviceAnalysis, placement: Placement | None) -> Lives:
    """Collect what was allocated in a recording: its events, their analysis, and which line ran at each, or None."""
    timeline = device.timeline
    new = (timeline.start >= 0) & (timeline.blocks > 0)
    old = len(new) - int(np.count_nonzero(new))
    # Lifetimes are in order of their beginning, so that those from before are the first ones: nothing is copied then.
    chosen: NDArray[np.bool_] | slice = slice(old, None) if new[old:].all() else new
    event, end = timeline.event[timeline.start[chosen]], timeline.end[chosen]
    ended = np.where(end >= 0, timeline.event[end], np.int32(-1)) if timeline.changes else end
    return Lives(
        time_us=rising(trace.events.time_us),
        address=trace.events.addr,
        place=np.full(len(event), -1, np.int32) if placement is None else np.maximum(placement.place[event], -1),
        group=timeline.group[chosen],
        began=event,
        ended=ended,
        size=timeline.size[chosen],
        requested=timeline.requested[chosen],
        number=np.arange(len(new), dtype=np.int32)[chosen],
    )
