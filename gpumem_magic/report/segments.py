"""The map of segments in a view document: for the moment that a live view asks for, or for some moments of a file.

Arrays of moment k of device i begin with ``d<i>.m<k>.`` and are described in
``labextension/src/view/segments/document.ts``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.analysis.markers import last_oom
from gpumem_magic.analysis.segments import NOBODY, SpanKind
from gpumem_magic.report.container import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import DeviceAnalysis
    from gpumem_magic.analysis.segments import MapSegment, MemoryRecord, SegmentState

__all__ = ["Maps", "keyframes", "moment_document", "state_at"]

# Block sizes and offsets are multiples of it.
_UNIT = 512
_NOBODY = 0xFFFF
# 2 TiB, above every device: what only a damaged file holds is not drawn.
_MOST_UNITS = 0xFFFFFFFF
# Evenly over what changed, so that idle stretches take none.
_FRAMES = 60
# Beyond this even one moment is left out of a file: a live view asks for it.
_LEAST_BYTES = 4_000


class Maps:
    """Moments of one device, ready to be written.

    Attributes
    ----------
    moments
        ``{"timeUs", "name", "numbers"}`` each, in time order; the array prefix of number k is ``m<k>.``.
    arrays
        Under their names without the device's prefix.
    """

    def __init__(self) -> None:
        self.moments: list[dict[str, Any]] = []
        self.arrays: dict[str, NDArray[np.generic]] = {}

    def add(self, state: SegmentState, time_us: int, name: str) -> None:
        """Write a moment behind those that are there."""
        prefix = f"m{len(self.moments)}."
        columns = _columns(state)
        self.arrays.update({prefix + key: column for key, column in columns.items()})
        streams = sorted({segment.stream for segment in state.segments})
        self.moments.append({"timeUs": time_us, "name": name, "numbers": _numbers(state), "streams": streams})


def _numbers(state: SegmentState) -> dict[str, float]:
    found = state.fragmentation()
    return {
        **{_camel(key): value for key, value in asdict(found).items()},
        "rounding": found.rounding,
        "pinned": found.pinned,
        "scattered": found.scattered,
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _columns(state: SegmentState) -> dict[str, NDArray[np.generic]]:
    """Write segments in address order, and their spans as gap before and size, in units of 512 bytes."""
    segments = state.segments
    streams = sorted({segment.stream for segment in segments})
    spans = [span for segment in segments for span in segment.spans]
    gaps: list[int] = []
    for segment in segments:
        cursor = 0
        for span in segment.spans:
            gaps.append((span.offset - cursor) // _UNIT)
            cursor = span.offset + span.size
    group = [_NOBODY if span.group == NOBODY else min(span.group, _NOBODY - 1) for span in spans]
    return {
        "extent": np.array([segment.extent for segment in segments], np.float64),
        "mapped": np.array([segment.mapped for segment in segments], np.float64),
        "returnable": np.array([segment.returnable for segment in segments], np.float64),
        "requested": np.array([_requested(segment) for segment in segments], np.float64),
        "address": np.array([segment.address & 0xFFFFFFFF for segment in segments], np.uint32),
        "addressHigh": np.array([segment.address >> 32 for segment in segments], np.uint32),
        "stream": np.array([min(streams.index(segment.stream), 255) for segment in segments], np.uint8),
        "flags": np.array(
            [segment.is_small + 2 * segment.is_expandable + 4 * segment.is_private for segment in segments], np.uint8
        ),
        "spans": np.array([len(segment.spans) for segment in segments], np.uint32),
        "gap": np.array([max(gap, 0) for gap in gaps], np.uint32),
        "size": np.array([span.size // _UNIT for span in spans], np.uint32),
        "group": np.array(group, np.uint16),
        "kind": np.array([span.kind for span in spans], np.uint8),
    }


def _fits(state: SegmentState) -> bool:
    # A contradictory recording has blocks that reach beyond their segment.
    ends = (max(one.extent, *(span.offset + span.size for span in one.spans), 0) for one in state.segments)
    return all(end // _UNIT <= _MOST_UNITS for end in ends)


def _requested(segment: MapSegment) -> int:
    return sum(span.requested for span in segment.spans if span.kind != SpanKind.UNMAPPED)


def state_at(device: DeviceAnalysis, time_us: int) -> SegmentState | None:
    """Return the segments that the timeline's state at a time lay in; None without a caching allocator."""
    memory = device.memory
    return None if memory is None else memory.at(memory.event_at(device.timeline, time_us))


def moment_document(device: DeviceAnalysis, time_us: int) -> bytes | None:
    """Write a container that holds one moment, as moment 0 of device 0; None without a caching allocator.

    Also None for segments beyond all devices.
    """
    state = state_at(device, time_us)
    if state is None or not _fits(state):
        return None
    maps = Maps()
    maps.add(state, time_us, "")
    header: Mapping[str, object] = {
        "devices": [],
        "strings": [],
        "frames": [],
        "stacks": [[]],
        "notes": [],
        "segments": {"moments": maps.moments},
    }
    return encode(header, {f"d0.{name}": array for name, array in maps.arrays.items()})


def keyframes(device: DeviceAnalysis, limit: int) -> Maps | None:
    """Write the moments that a file carries, as many as fit: peak, end, out of memory, and evenly spaced ones.

    Parameters
    ----------
    device
        A device.
    limit
        Most bytes that they may take in the packed document, about.

    Returns
    -------
    Maps or None
        None without a caching allocator, without segments or with some beyond all devices, or when not even the peak
        fits.
    """
    memory = device.memory
    if memory is None or not len(memory.device.events):
        return None
    named = _named_events(device, memory)
    states = {event: memory.at(event) for event in named}
    if not any(state.segments for state in states.values()) or limit < _LEAST_BYTES:
        return None
    if not all(map(_fits, states.values())):
        return None
    sizes = {event: _packed(state) for event, state in states.items()}
    # The peak first, then the other named ones.
    chosen: dict[int, tuple[int, str]] = {}
    left = limit
    for event, (time_us, name) in sorted(named.items(), key=lambda item: item[1][1] != "peak"):
        if sizes[event] <= left:
            chosen[event] = time_us, name
            left -= sizes[event]
    if not chosen:
        return None
    typical = max(*sizes.values(), 1)
    count = min(_FRAMES, left // typical)
    timeline = device.timeline
    for change in np.unique(np.linspace(0, max(timeline.changes - 1, 0), count).astype(np.int64)).tolist():
        if change >= timeline.changes:
            break
        time_us = int(timeline.time_us[change])
        event = memory.event_at(timeline, time_us)
        if event not in chosen and _fits(state := memory.at(event)):
            chosen[event] = time_us, ""
            states[event] = state
    maps = Maps()
    for event, (time_us, name) in sorted(chosen.items(), key=lambda item: (item[1][0], item[0])):
        maps.add(states[event], time_us, name)
    return maps


def _named_events(device: DeviceAnalysis, memory: MemoryRecord) -> dict[int, tuple[int, str]]:
    timeline, events = device.timeline, memory.device.events
    last = len(events) - 1
    named = {last: (device.end_us, "end")}
    failed = last_oom(memory.device)
    if failed is not None:
        named[failed] = int(events.time_us[failed]), "out of memory"
    change = timeline.peak_change
    if change < 0:
        named[-1] = device.start_us, "peak"
    elif change < timeline.changes:
        named[int(timeline.event[change])] = int(timeline.time_us[change]), "peak"
    return named


def _packed(state: SegmentState) -> int:
    """Return about how many bytes a moment takes in the packed document, its numbers included."""
    arrays = {f"m.{name}": column for name, column in _columns(state).items()}
    return len(encode({"numbers": json.dumps(_numbers(state))}, arrays)) - 250
