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

    `ended` is -1 for what stayed; `time_us` are the times of all events; `number` is each one's among all lifetimes.
    """

    time_us: NDArray[np.int64]
    place: NDArray[np.int64]
    group: NDArray[np.int64]
    began: NDArray[np.int32]
    ended: NDArray[np.int32]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    address: NDArray[np.uint64]
    number: NDArray[np.int64]

    @property
    def stayed(self) -> NDArray[np.bool_]:
        """Which are alive at the end."""
        alive: NDArray[np.bool_] = self.ended < 0
        return alive

    def iterations(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the iteration that each event falls into, -1 before the first, given when each one began."""
        # Starts are few: they are looked up among the events, not each event among them.
        first = np.searchsorted(self.time_us, starts)
        number: NDArray[np.int64] = np.cumsum(np.bincount(first, minlength=len(self.time_us) + 1))
        return number - 1


def lives_of(trace: DeviceTrace, device: DeviceAnalysis, placement: Placement | None) -> Lives:
    """Collect what was allocated in a recording: its events, their analysis, and which line ran at each, or None."""
    timeline = device.timeline
    new = (timeline.start >= 0) & (timeline.blocks > 0)
    event = timeline.event[timeline.start[new]]
    end = timeline.end[new]
    times = rising(trace.events.time_us)
    ended = np.where(end >= 0, timeline.event[end], np.int32(-1)) if timeline.changes else end
    place = np.full(len(event), -1, np.int64) if placement is None else placement.place[event].astype(np.int64)
    return Lives(
        time_us=times,
        place=np.maximum(place, -1),
        group=timeline.group[new].astype(np.int64),
        began=event,
        ended=ended,
        size=timeline.size[new],
        requested=timeline.requested[new],
        address=trace.events.addr[event],
        number=np.flatnonzero(new),
    )
