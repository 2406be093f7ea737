"""A peak in a line like ``z = layer(z)``: the old value lives until the new one is complete, so two are paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic._parsing import binding
from gpumem_magic.analysis.categories.build import line_runs
from gpumem_magic.analysis.place import place_text
from gpumem_magic.recording.model import Note
from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.recording.model import Recording
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["rebound_notes"]

# Of the peak; what is less is not why it is a peak.
_SHARE = 0.1


def rebound_notes(recording: Recording, analysis: Analysis) -> tuple[Note, ...]:
    """Say of each device whose peak is such a line that both values are alive in it."""
    traces = {} if recording.trace is None else {device.key: device for device in recording.trace.devices}
    found = []
    for device in analysis.devices:
        trace = traces.get(device.key)
        text = None if trace is None or recording.marks is None else _told(recording, trace, device)
        if text is not None:
            found.append(Note("info", text))
    return tuple(found)


def _told(recording: Recording, trace: DeviceTrace, device: DeviceAnalysis) -> str | None:
    timeline, peak = device.timeline, device.timeline.peak_change if device.timeline.changes else -1
    group = None if device.peak_group is None else device.groups[device.peak_group]
    bound = None if group is None or group.kind != "line" else binding(group.source or "")
    if group is None or bound is None or not bound.is_from_itself or peak < 0:
        return None
    alive = timeline.alive(peak) & (timeline.blocks > 0)
    mine = np.flatnonzero(alive & (timeline.group == device.peak_group))
    if not len(mine):
        return None
    new = int(mine[-1])
    size = int(timeline.size[new])
    # The old value: as large, made before this execution of the line, and let go of right after the new one was made.
    runs = line_runs(recording.marks, rising(trace.events.time_us))
    old = np.flatnonzero(alive & (timeline.size == size) & (timeline.end > peak))
    old = old[old != new]
    if runs is None or not len(old) or size < _SHARE * int(timeline.allocated[peak + 1]):
        return None
    first = int(old[np.argmin(timeline.end[old])])
    begun = int(timeline.start[first])
    now = int(runs[timeline.event[timeline.start[new]]])
    came_before = begun < 0 or int(runs[timeline.event[begun]]) < now
    falls = bool(np.all(np.diff(timeline.allocated[peak + 1 : int(timeline.end[first]) + 2]) <= 0))
    if not (came_before and falls):
        return None
    return (
        f"at the peak both values of `{bound.name}` are alive, 2 × {format_bytes(size)}: {place_text(group)} lets go "
        "of the old one only when the new one is made"
    )
