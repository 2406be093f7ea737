"""Curves of a timeline at any level of detail: bins, exact envelopes, bytes by owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Timeline

__all__ = ["bin_edges", "envelope", "group_values"]


def bin_edges(timeline: Timeline, start_us: int, end_us: int, bins: int) -> NDArray[np.int64]:
    """Choose times that divide a timeline.

    Half of the edges are even in time and half even in changes, so that both a busy millisecond and a calm hour are
    resolved. One edge lies on the peak.

    Parameters
    ----------
    timeline
        What is divided.
    start_us, end_us
        The first and last edge, Unix microseconds.
    bins
        About how many bins are wanted; fewer come back where the clock does not resolve them.

    Returns
    -------
    numpy.ndarray
        Rising times, int64, at least two.
    """
    end_us = max(end_us, start_us + 1)
    edges = [np.linspace(start_us, end_us, bins // 2 + 1).astype(np.int64)]
    if timeline.changes:
        picks = np.linspace(0, timeline.changes - 1, bins // 2 + 1).astype(np.int64)
        edges.append(timeline.time_us[picks])
        if timeline.peak_change >= 0:
            edges.append(timeline.time_us[timeline.peak_change : timeline.peak_change + 1])
    return np.unique(np.clip(np.concatenate(edges), start_us, end_us))


def envelope(timeline: Timeline, edges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lowest and highest `allocated` in each bin, exactly.

    A bin holds its left edge's value and every change after it up to and including its right edge.

    Parameters
    ----------
    timeline
        The curve.
    edges
        Rising times, shape ``(bins + 1,)``.

    Returns
    -------
    tuple of numpy.ndarray
        Lowest and highest bytes, int64, shape ``(bins,)``.
    """
    bounds = np.searchsorted(timeline.time_us, edges, "right")
    # Changes at the very first edge belong to the first bin, with the value before them.
    bounds[0] = np.searchsorted(timeline.time_us, edges[0], "left")
    low = np.minimum.reduceat(timeline.allocated, bounds)[:-1]
    high = np.maximum.reduceat(timeline.allocated, bounds)[:-1]
    last = timeline.allocated[bounds[1:]]
    return np.minimum(low, last), np.maximum(high, last)


def group_values(
    timeline: Timeline,
    changes: NDArray[np.int64],
    groups: NDArray[np.int32],
    chosen: NDArray[np.bool_] | None = None,
    *,
    of: NDArray[np.int32] | None = None,
) -> NDArray[np.int64]:
    """Return the bytes of each group right after each of the given changes.

    Parameters
    ----------
    timeline
        The lifetimes.
    changes
        Change numbers, not falling; -1 stands for the state before the first change. Shape ``(n,)``.
    groups
        Group numbers wanted, rising. Lifetimes of other groups are left out. Shape ``(k,)``.
    chosen
        Lifetimes to count, or None for all.
    of
        Group number of each lifetime, in place of `Timeline.group`.

    Returns
    -------
    numpy.ndarray
        Bytes, int64, shape ``(k, n)``. Exact up to 2^53.
    """
    count = len(changes)
    if not count or not len(groups):
        return np.zeros((len(groups), count), np.int64)
    # How many columns come before each change (index 0: before the first): a table is read faster than searched.
    taken = np.bincount(changes + 1, minlength=timeline.changes + 1)
    column = (np.cumsum(taken) - taken).astype(np.int32)
    start, end, size = timeline.start, timeline.end, timeline.size
    group = timeline.group if of is None else of
    if chosen is not None:
        start, end, size, group = start[chosen], end[chosen], size[chosen], group[chosen]
    # All groups: each number is its own row.
    row: NDArray[np.intp] = group.astype(np.intp)
    if len(group) and (groups[0] != 0 or groups[-1] != len(groups) - 1 or int(group.max()) >= len(groups)):
        row = np.searchsorted(groups, group)
        known = groups[np.minimum(row, len(groups) - 1)] == group
        if not known.all():
            start, end, size, row = start[known], end[known], size[known], row[known]
    # A lifetime counts from the first column at or after its beginning; one column more takes what ends later.
    width = count + 1
    begins = row * width + column[start + 1]
    ends = row * width + np.where(end >= 0, column[end + 1], count)
    steps = np.bincount(begins, size, len(groups) * width) - np.bincount(ends, size, len(groups) * width)
    total = np.cumsum(steps.reshape(len(groups), width), axis=1)[:, :count]
    return np.rint(total).astype(np.int64)
