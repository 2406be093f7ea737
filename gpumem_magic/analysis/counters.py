"""Devices without events (cudaMallocAsync, pluggable allocators, MPS): what counters alone can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.devices import sample_lanes
from gpumem_magic.analysis.model import DeviceAnalysis, Group, Headline, Lane, Row, SampledCurve
from gpumem_magic.analysis.timeline import EMPTY_TIMELINE

if TYPE_CHECKING:
    from gpumem_magic.recording.model import DeviceReading, Recording

__all__ = ["analyse_counters"]

REASON = "this allocator leaves no events, only counters"


def _points(recording: Recording, before: DeviceReading, after: DeviceReading, name: str) -> list[tuple[int, int]]:
    key = after.device
    raw = [
        (recording.started_us, getattr(before, name)),
        *((sample.time_us, getattr(sample, name)) for sample in recording.samples if sample.device == key),
        (max(recording.ended_us, recording.started_us + 1), getattr(after, name)),
    ]
    known = [(time_us, value) for time_us, value in raw if value is not None]
    return sorted((min(max(t, recording.started_us), raw[-1][0]), v) for t, v in known)


def _device(recording: Recording, before: DeviceReading, after: DeviceReading) -> DeviceAnalysis:
    allocated = _points(recording, before, after, "allocated")
    reserved = _points(recording, before, after, "reserved")
    missing = dict.fromkeys(("peak_us", "stayed", "freed"), REASON)
    missing |= after.missing
    peak: int | None = max((value for _, value in allocated), default=None)
    if after.max_allocated is not None and before.max_allocated is not None and peak is not None:
        if after.max_allocated > before.max_allocated:
            peak = max(peak, after.max_allocated)
        else:
            missing["allocated_peak"] = "at least this: only samples, and torch's peak counter did not rise"
    group = Group("unknown", "allocated (no owners known)", reason=REASON)
    lanes: tuple[Lane, ...] = ()
    if len(reserved) > 1:
        columns = np.array(reserved, np.int64)
        lanes = (Lane("reserved", "sample", columns[:, 0], columns[:, 1]),)
    limit = after.limit
    top = max((value for _, value in reserved), default=None)
    curve = np.array(allocated, np.int64).reshape(-1, 2)
    end = after.allocated
    return DeviceAnalysis(
        key=after.device,
        name=after.name,
        kind="cuda",
        total=after.device_total,
        limit=limit,
        events=0,
        start_us=recording.started_us,
        end_us=max(recording.ended_us, recording.started_us + 1),
        headline=Headline(
            allocated_before=before.allocated,
            allocated_peak=peak,
            allocated_after=end,
            reserved_before=before.reserved,
            reserved_peak=top,
            reserved_after=after.reserved,
            device_used=after.device_used,
            process_used=after.process_used,
            headroom=limit - top if limit is not None and top is not None else None,
        ),
        groups=(group, Group("rounding", "rounding and unsplit remainders")),
        peak=(Row(0, peak, 0),) if peak else (),
        end=(Row(0, end, 0),) if end else (),
        stayed=(),
        peak_group=None,
        markers=(),
        regions=(),
        lanes=(*lanes, *sample_lanes(after.device, before, after, recording.samples)),
        timeline=EMPTY_TIMELINE,
        sampled=SampledCurve(curve[:, 0], curve[:, 1]),
        missing=missing,
        exact=False,
    )


def analyse_counters(recording: Recording) -> list[DeviceAnalysis]:
    """Say what counters tell of each device that was read before and after.

    Parameters
    ----------
    recording
        A recording without a trace.
    """
    devices = []
    for after in recording.after:
        before = next((reading for reading in recording.before if reading.device == after.device), None)
        if before is not None and (after.allocated or before.allocated or after.reserved):
            devices.append(_device(recording, before, after))
    return devices
