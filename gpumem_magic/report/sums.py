"""The small lifetimes of a view document, as sums at the ends of bins: by owner, and by what else they can be told by.

Each row of sums is one combination of owner, category, size, stream, duration and module, so that a picture in any of
these colours is exact. A few dozen rows take 10 to 30 kB: what an owner allocates is mostly of one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.curves import bin_edges, envelope, group_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import DeviceAnalysis, Timeline

__all__ = ["DURATIONS_US", "SIZES", "sampled_arrays", "sum_arrays"]

# The classes that the view colours by (`labextension/src/view/model/bands.ts`), in bytes and microseconds.
SIZES = (64 << 10, 1 << 20, 10 << 20, 100 << 20, 1 << 30)
DURATIONS_US = (1_000, 10_000, 100_000, 1_000_000)
# Rows × bins × 8 bytes are unpacked by every reader. What says least is given up first.
_MOST_ROWS = 256
_UNKNOWN = 0xFF
_NO_MODULE = 0xFFFF


def _class_below(limits: tuple[int, ...], value: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return 0 above the last limit, ``len(limits)`` up to the first. Faster than a search in so few."""
    nth = np.full(len(value), len(limits), np.int32)
    for limit in limits:
        nth -= (value > limit).view(np.int8)
    return nth


def _duration_class(timeline: Timeline) -> NDArray[np.int32]:
    """0: there throughout, 1: made and stayed, 2: there before and freed, from 3 on shorter and shorter."""
    old, kept = timeline.start < 0, timeline.end < 0
    if not timeline.changes:
        return np.where(old, 0, 1).astype(np.int32)
    last = timeline.time_us[timeline.end] - timeline.time_us[timeline.start]
    passing = 3 + _class_below(DURATIONS_US, last)
    return np.where(kept, np.where(old, 0, 1), np.where(old, 2, passing)).astype(np.int32)


def _keys(device: DeviceAnalysis, rest: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the rows, each as (owner, category, size, stream, duration, module), and every lifetime's row."""
    timeline, categories = device.timeline, device.categories
    count = timeline.lifetimes
    columns = [
        timeline.group,
        None if categories is None else categories.category,
        _class_below(SIZES, timeline.size),
        timeline.stream,
        _duration_class(timeline),
        None if categories is None else categories.module,
    ]
    unknown = [_UNKNOWN] * 5 + [_NO_MODULE]
    row_of = np.full(count, -1, np.int32)
    rows, number = np.zeros((1, 0), np.int64), np.zeros(int(np.count_nonzero(rest)), np.int32)
    for nth, column in enumerate(columns):
        told = None
        # More columns never make fewer rows.
        if column is not None and (not nth or len(rows) <= _MOST_ROWS):
            told = _told_apart(rows, number, column[rest].astype(np.int32))
        # A column more would be too much, or there is none: what it says is unknown.
        if told is None or (nth and len(told[0]) > _MOST_ROWS):
            told = np.append(rows, np.full((len(rows), 1), unknown[nth]), axis=1), number
        rows, number = told
    row_of[rest] = number
    return rows, row_of


def _told_apart(
    rows: NDArray[np.int64], number: NDArray[np.int32], column: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Split rows by one more column. A table instead of a sort: there are many lifetimes and few rows."""
    width = np.int32(column.max(initial=0) + 1)
    key = number * width + column
    there = np.zeros(len(rows) * width, bool)
    there[key] = True
    found = np.flatnonzero(there)
    place = (np.cumsum(there) - 1).astype(np.int32)
    return np.append(rows[found // width], (found % width)[:, None], axis=1), place[key]


def sum_arrays(
    device: DeviceAnalysis, keep: NDArray[np.bool_], bins: int, prefix: str
) -> tuple[dict[str, NDArray[np.generic]], dict[str, object]]:
    """Write what is not kept singly as sums, with the exact envelope of everything, and what the header says of it.

    Parameters
    ----------
    device
        Whose lifetimes.
    keep
        Those that are kept singly, shape ``(lifetimes,)``.
    bins
        About how many.
    prefix
        Of the arrays' names.
    """
    timeline = device.timeline
    edges = bin_edges(timeline, device.start_us, device.end_us, bins)
    low, high = envelope(timeline, edges)
    rest = ~keep
    rows, row_of = _keys(device, rest)
    changes = np.searchsorted(timeline.time_us, edges[1:], "right") - 1
    value = group_values(timeline, changes, np.arange(len(rows), dtype=np.int32), rest, of=row_of)
    owner, category, size, stream, duration, module = rows.T
    arrays: dict[str, NDArray[np.generic]] = {
        "rest.t": (edges - device.start_us).astype(np.float64),
        "rest.group": owner.astype(np.uint16),
        "rest.value": value.astype(np.float64).reshape(-1),
        "rest.size": size.astype(np.uint8),
        "rest.stream": stream.astype(np.uint8),
        "rest.lifetime": duration.astype(np.uint8),
        "total.min": low.astype(np.float64),
        "total.max": high.astype(np.float64),
    }
    if device.categories is not None:
        arrays |= {"rest.category": category.astype(np.uint8), "rest.module": module.astype(np.uint16)}
    summary: dict[str, object] = {
        "bins": len(edges) - 1,
        "lifetimes": int(np.count_nonzero(rest)),
        "bytes": int(timeline.size[rest].sum()),
    }
    return {prefix + name: array for name, array in arrays.items()}, summary


def sampled_arrays(device: DeviceAnalysis, prefix: str) -> tuple[dict[str, NDArray[np.generic]], dict[str, object]]:
    """Write a sampled curve as bins of one unknown owner: straight between samples is all that is known."""
    curve = device.sampled
    if curve is None or len(curve.time_us) < 2:
        return {}, {}
    value = curve.value.astype(np.float64)
    arrays: dict[str, NDArray[np.generic]] = {
        prefix + "rest.t": (curve.time_us - device.start_us).astype(np.float64),
        prefix + "rest.group": np.zeros(1, np.uint16),
        prefix + "rest.value": value[1:],
        prefix + "total.min": np.minimum(value[1:], value[:-1]),
        prefix + "total.max": np.maximum(value[1:], value[:-1]),
    }
    return arrays, {"bins": len(value) - 1, "lifetimes": 0, "bytes": 0}
