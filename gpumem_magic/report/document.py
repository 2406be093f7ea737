"""The view document: what the widget and the HTML report draw, within a given size.

The format is fixed by ``labextension/src/view/document.ts``. A document is complete when it fits; else the largest
lifetimes (bytes × duration) are kept singly, the others are summed by owner into bins, and the exact envelope of all
allocated bytes goes with them, so that totals stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import gpumem_magic
from gpumem_magic.analysis.leaks.plain import plain as plain_growth
from gpumem_magic.report.columns import Interner, kept_columns, timeline_arrays
from gpumem_magic.report.container import encode
from gpumem_magic.report.places import address_arrays, segment_arrays
from gpumem_magic.report.purposes import category_columns, purposes_header
from gpumem_magic.report.segments import keyframes
from gpumem_magic.report.sums import sampled_arrays, sum_arrays
from gpumem_magic.report.whatif.limits import why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Lane, Row, Timeline
    from gpumem_magic.report.segments import Maps
    from gpumem_magic.report.whatif.model import Answer

__all__ = ["Extras", "detail_document", "view_document"]

# A complete document takes 3 to 15 bytes a lifetime after gzip on the recordings, 2 of a generated loop; not less.
_LEAST_BYTES_PER_LIFETIME = 2
_BINS = 1024
# Paths of who holds what stayed; the largest of each owner come first.
_MOST_HELD = 400
# More points than any screen has columns; the envelope of a longer lane is kept.
_LANE_POINTS = 8192
# Most bytes that the moments of the segment map may take in a file, and their share of its limit.
_MAP_BYTES = 60_000
_MAP_SHARE = 6


def _thin_lane(lane: Lane) -> Lane:
    """Keep a long lane's envelope: the lowest and the highest point of each bin, in their order."""
    count = len(lane.value)
    if count <= _LANE_POINTS:
        return lane
    edges = np.linspace(0, count, _LANE_POINTS // 2 + 1).astype(np.int64)[:-1]
    bin_of = np.searchsorted(edges, np.arange(count), "right") - 1
    order = np.lexsort((lane.value, bin_of))
    first = np.searchsorted(bin_of, np.arange(len(edges)), "left")
    last = np.append(first[1:], count) - 1
    kept = np.unique(np.concatenate([order[first], order[last], [0, count - 1]]))
    return replace(lane, time_us=lane.time_us[kept], value=lane.value[kept])


def _rows(rows: Iterable[Row]) -> list[dict[str, int]]:
    return [{"group": row.group, "bytes": row.bytes, "blocks": row.blocks} for row in rows]


def _device_header(device: DeviceAnalysis, lanes: list[Lane], timeline: dict[str, object]) -> dict[str, object]:
    headline = device.headline
    return {
        "key": device.key,
        "name": device.name,
        "kind": device.kind,
        "total": device.total,
        "limit": device.limit,
        "events": device.events,
        "startUs": device.start_us,
        "endUs": device.end_us,
        "headline": {
            "allocatedBefore": headline.allocated_before,
            "allocatedPeak": headline.allocated_peak,
            "peakUs": headline.peak_us,
            "allocatedAfter": headline.allocated_after,
            "stayed": headline.stayed,
            "freed": headline.freed,
            "reservedBefore": headline.reserved_before,
            "reservedPeak": headline.reserved_peak,
            "reservedAfter": headline.reserved_after,
            "deviceUsed": headline.device_used,
            "processUsed": headline.process_used,
            "headroom": headline.headroom,
        },
        "missing": dict(device.missing),
        "groups": [group._asdict() for group in device.groups],
        "peak": _rows(device.peak),
        "end": _rows(device.end),
        "markers": [{"timeUs": m.time_us, "kind": m.kind, "text": m.text} for m in device.markers],
        "regions": [{"name": r.name, "startUs": r.start_us, "endUs": r.end_us} for r in device.regions],
        "lanes": [{"name": lane.name, "shape": lane.shape} for lane in lanes],
        "timeline": timeline,
        **purposes_header(device),
        **({} if (growth := plain_growth(device.growth)) is None else {"growth": growth}),
        **({} if device.sampled is None or device.sampled.whose == "allocator" else {"whose": device.sampled.whose}),
        **({"held": [row._asdict() for row in device.held[:_MOST_HELD]]} if device.held else {}),
    }


def _discloses(analysis: Analysis, interner: Interner) -> str:
    lines = {group.source for device in analysis.devices for group in device.groups if group.source is not None}
    paths = {interner.strings[file] for file, _, _ in interner.frames}
    paths.update(group.file for device in analysis.devices for group in device.groups if group.file is not None)
    if not lines and not paths:
        return "Contains no source and no file paths."
    counted = [
        f"{len(found)} {name if len(found) == 1 else f'{name}s'}{of}"
        for found, name, of in ((lines, "line", " of source"), (paths, "file path", ""))
        if found
    ]
    return f"Contains {' and '.join(counted)}{'' if lines else ', no source'}."


@dataclass(frozen=True)
class Extras:
    """What a file carries because no kernel will answer: maps of segments, and what other settings would have done.

    All are by the device's key. `addresses` are those of a part of a device's lifetimes; a whole device knows its own.
    """

    maps: Mapping[str, Maps] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    addresses: Mapping[str, NDArray[np.uint64]] = field(default_factory=dict)

    @classmethod
    def for_file(cls, analysis: Analysis, answers: Mapping[str, Answer], limit: int) -> Extras:
        """Choose the moments of a file whose document may take `limit` bytes."""
        share = min(_MAP_BYTES, limit // _MAP_SHARE) // max(len(analysis.devices), 1)
        found = ((device.key, keyframes(device, share)) for device in analysis.devices)
        return cls({key: maps for key, maps in found if maps is not None}, answers)


def _tools(analysis: Analysis, device: DeviceAnalysis, extras: Extras) -> dict[str, object]:
    """Write what the tabs for segments and settings need to know."""
    maps, answer = extras.maps.get(device.key), extras.answers.get(device.key)
    return {
        "mapped": device.memory is not None,
        "segments": None if maps is None else {"moments": maps.moments},
        "notReplayed": why_not(analysis, device),
        "whatIf": None if answer is None else _plain(answer),
    }


def _plain(answer: Answer) -> dict[str, Any]:
    # The names of all settings come with the words: for those who asked.
    from gpumem_magic.report.whatif.words import plain

    return plain(answer)


def _place_arrays(
    device: DeviceAnalysis, address: NDArray[np.uint64] | None
) -> tuple[dict[str, NDArray[np.generic]], list[str]]:
    arrays = {} if address is None else address_arrays(address)
    if not arrays:
        return {}, []
    segments, pools = segment_arrays(device)
    return {**arrays, **segments}, pools


def _write(analysis: Analysis, keeps: list[NDArray[np.bool_] | None], bins: int, extras: Extras) -> bytes:
    interner = Interner(analysis.stacks)
    arrays: dict[str, NDArray[np.generic]] = {}
    devices: list[dict[str, object]] = []
    for index, (device, keep) in enumerate(zip(analysis.devices, keeps, strict=True)):
        prefix = f"d{index}."
        categories = device.categories
        purposes = None if categories is None else category_columns(categories)
        address = extras.addresses.get(device.key)
        if address is None and device.memory is not None:
            address = device.memory.addresses(device.timeline)
        columns = kept_columns(device.timeline, keep, purposes, address)
        own, shape = timeline_arrays(columns, device.start_us, interner, prefix)
        arrays.update(own)
        shape["streams"] = list(device.timeline.streams)
        own, pools = _place_arrays(device, columns.address)
        if pools:
            shape["pools"] = pools
        arrays.update({prefix + name: array for name, array in own.items()})
        shape["rest"] = None
        if device.sampled is not None:
            own, summary = sampled_arrays(device, prefix)
        elif keep is not None:
            own, summary = sum_arrays(device, keep, bins, prefix)
        else:
            own, summary = {}, {}
        arrays.update(own)
        shape["rest"] = summary or None
        lanes = [_thin_lane(lane) for lane in device.lanes]
        for number, lane in enumerate(lanes):
            arrays[f"{prefix}lane{number}.t"] = (lane.time_us - device.start_us).astype(np.float64)
            arrays[f"{prefix}lane{number}.v"] = lane.value.astype(np.float64)
        maps = extras.maps.get(device.key)
        if maps is not None:
            arrays.update({prefix + name: column for name, column in maps.arrays.items()})
        devices.append({**_device_header(device, lanes, shape), **_tools(analysis, device, extras)})
    cell = analysis.cell
    header: dict[str, object] = {
        "package": _package_version(),
        "title": analysis.title,
        "sentence": analysis.sentence,
        "createdUs": analysis.ended_us,
        "origin": analysis.origin,
        "outcome": None if analysis.outcome is None else analysis.outcome.value,
        "error": analysis.error,
        "cell": None
        if cell is None
        else {"executionCount": cell.execution_count, "label": cell.label, "runs": cell.runs},
        # What grew has a section of its own.
        "notes": [{"level": note.level, "text": note.text} for note in (*analysis.verdict_notes, *analysis.notes)],
        "discloses": _discloses(analysis, interner),
        "strings": interner.strings,
        "frames": interner.frames,
        "stacks": interner.stacks,
        "devices": devices,
    }
    if analysis.cells:
        header["cells"] = [
            {
                "title": span.title,
                "executionCount": span.execution_count,
                "cellId": span.cell_id,
                "startUs": span.start_us,
                "endUs": span.end_us,
                "sentence": span.sentence,
            }
            for span in analysis.cells
        ]
    return encode(header, arrays)


@cache
def _package_version() -> str:
    # Looking it up walks the search path: 5 ms, so once.
    version: str = gpumem_magic.__version__
    return version


def _largest(timeline: Timeline, end_us: int, count: int) -> NDArray[np.bool_]:
    """Choose the `count` lifetimes with the largest bytes × duration."""
    moments = np.append(timeline.time_us, end_us)
    first = np.where(timeline.start >= 0, moments[timeline.start], moments[0])
    last = np.where(timeline.end >= 0, moments[timeline.end], end_us)
    # A microsecond more, so that size still counts where the clock did not move.
    weight = timeline.size.astype(np.float64) * (last - first + 1)
    keep = np.zeros(timeline.lifetimes, bool)
    keep[np.argpartition(weight, -count)[-count:] if 0 < count < len(weight) else slice(0, count)] = True
    return keep


_NO_EXTRAS = Extras()


def view_document(analysis: Analysis, limit: int | None = None, extras: Extras = _NO_EXTRAS) -> bytes:
    """Write the view document of an analysis.

    Parameters
    ----------
    analysis
        What to show.
    limit
        Most bytes that the container may take; None: everything is written singly.
    extras
        What no kernel will answer later.

    Returns
    -------
    bytes
        A container (gzip). Where single lifetimes were left out, ``timeline.rest`` says how many.
    """
    total = sum(device.timeline.lifetimes for device in analysis.devices)
    everything: list[NDArray[np.bool_] | None] = [None] * len(analysis.devices)
    if limit is None or total * _LEAST_BYTES_PER_LIFETIME <= limit:
        data = _write(analysis, everything, _BINS, extras)
        if limit is None or len(data) <= limit or not total:
            return data
    # The first try spends two thirds of the limit on lifetimes at 8 bytes each, the rest on bins and the header.
    count, bins = max(limit // 12, 1), _BINS
    while True:
        keeps: list[NDArray[np.bool_] | None] = []
        for device in analysis.devices:
            share = count * device.timeline.lifetimes // total
            whole = share >= device.timeline.lifetimes
            keeps.append(None if whole else _largest(device.timeline, device.end_us, share))
        data = _write(analysis, keeps, bins, extras)
        if len(data) <= limit or (count <= 1 and bins <= 16):
            return data
        count, bins = count // 2, max(bins // 2, 16)


def detail_document(analysis: Analysis, device: int, start_us: int, end_us: int, limit: int) -> bytes:
    """Write the document of one stretch of one device, for a view that zooms in.

    Parameters
    ----------
    analysis
        The whole recording.
    device
        Index into `Analysis.devices`.
    start_us, end_us
        The stretch, Unix microseconds, both ends included.
    limit
        Most bytes that the container may take; beyond it single lifetimes are summed again.
    """
    whole = analysis.devices[device]
    timeline = whole.timeline
    first = int(np.searchsorted(timeline.time_us, start_us, "left"))
    last = int(np.searchsorted(timeline.time_us, end_us, "right"))
    here = (timeline.start < last) & ((timeline.end == -1) | (timeline.end >= first))
    start = np.where(timeline.start[here] < first, -1, timeline.start[here] - first)
    end = timeline.end[here]
    end = np.where((end == -1) | (end >= last), -1, end - first)
    part = replace(
        timeline,
        time_us=timeline.time_us[first:last],
        event=timeline.event[first:last],
        allocated=timeline.allocated[first : last + 1],
        start=start.astype(np.int32),
        end=end.astype(np.int32),
        **{name: getattr(timeline, name)[here] for name in ("size", "requested", "group", "stack", "stream", "blocks")},
    )
    lanes = tuple(_cut_lane(lane, start_us, end_us) for lane in whole.lanes)
    categories = None if whole.categories is None else whole.categories.of(here)
    cut = replace(whole, start_us=start_us, end_us=end_us, timeline=part, lanes=lanes, categories=categories)
    addresses = {} if whole.memory is None else {whole.key: whole.memory.addresses(timeline)[here]}
    return view_document(replace(analysis, devices=(cut,)), limit, Extras(addresses=addresses))


def _cut_lane(lane: Lane, start_us: int, end_us: int) -> Lane:
    first = max(int(np.searchsorted(lane.time_us, start_us, "right")) - 1, 0)
    last = int(np.searchsorted(lane.time_us, end_us, "right")) + (lane.shape == "sample")
    time_us = lane.time_us[first:last]
    return replace(lane, time_us=np.maximum(time_us, start_us), value=lane.value[first:last])
