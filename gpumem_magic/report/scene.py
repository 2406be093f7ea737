"""What the static picture shows of one device, at a given number of columns: pure numbers, nothing drawn yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.axis import fold_axis
from gpumem_magic.analysis.curves import group_values
from gpumem_magic.analysis.model import Group, Row
from gpumem_magic.report.palette import OTHER, group_color
from gpumem_magic.report.wording import label_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.axis import FoldedAxis
    from gpumem_magic.analysis.model import DeviceAnalysis, Lane, Timeline

__all__ = ["Band", "Scene", "device_scene"]

_MOST_BANDS = 9

_NO_TIMES = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Band:
    """One layer of the stack: `value` in bytes at `Scene.x`; `at_peak` in bytes, None when there is no peak moment."""

    label: str
    detail: str | None
    color: str
    value: NDArray[np.int64]
    at_peak: int | None


@dataclass(frozen=True, eq=False, repr=False)
class Scene:
    """What to draw.

    Attributes
    ----------
    axis
        The folded time axis.
    x
        Places 0 to 1, not falling, shape ``(n,)``. Values hold until the next place; the last at a place counts.
    bands
        From the bottom to the top, each with values of shape ``(n,)``.
    total
        Their sum.
    highest
        The most that was allocated from each place to the next: `total` or, where it changes too fast to draw, more.
    peak_x
        Where the peak lies, or None.
    lanes
        Curves as (lane, x, bytes).
    stepped
        False for samples, which are joined by straight lines.
    """

    axis: FoldedAxis
    x: NDArray[np.float64]
    bands: tuple[Band, ...]
    total: NDArray[np.int64]
    highest: NDArray[np.int64]
    peak_x: float | None
    lanes: tuple[tuple[Lane, NDArray[np.float64], NDArray[np.int64]], ...]
    stepped: bool


def _picks(
    timeline: Timeline, axis: FoldedAxis, columns: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Choose places, the states to draw there, and the highest bytes from each place to the next.

    State ``s`` is the one after change ``s - 1``. A column with one change shows it where it is. One with more shows
    the state that lasts longest in it, and its highest bytes behind: dense ups and downs would else be a comb, and no
    spike is lost. The column of the peak shows the peak, so that its owners are seen.
    """
    x = np.linspace(0.0, 1.0, columns + 1)
    edges = axis.time(x)
    bounds = np.searchsorted(timeline.time_us, edges, "right")
    bounds[0], bounds[-1] = 0, timeline.changes
    peak = timeline.peak_change + 1
    column = np.flatnonzero(np.diff(bounds))
    first, last = bounds[column], bounds[column + 1]
    single = last == first + 1
    if not len(column):
        return np.zeros(1), np.zeros(1, np.int64), timeline.allocated[:1].astype(np.int64)
    top = np.maximum.reduceat(timeline.allocated, np.append(first, last[-1]))[:-1]
    top = np.maximum(top, timeline.allocated[last])
    longest = first + _longest(timeline.time_us, edges, column, bounds)
    shown = np.where((first <= peak) & (peak <= last), peak, longest)
    # A column with several changes gives two places, its beginning and its end; the others give one.
    where = np.where(single, axis.place(timeline.time_us[first]), x[column])
    second = ~single
    order = np.argsort(np.concatenate([column * 2, column[second] * 2 + 1]), kind="stable")
    places = np.concatenate([where, x[column[second] + 1]])[order]
    states = np.concatenate([np.where(single, last, shown), last[second]])[order]
    highest = np.concatenate([np.where(single, timeline.allocated[last], top), timeline.allocated[last[second]]])[order]
    return (
        np.append(0.0, places),
        np.append(0, states).astype(np.int64),
        np.append(timeline.allocated[0], highest).astype(np.int64),
    )


def _longest(
    time_us: NDArray[np.int64], edges: NDArray[np.float64], column: NDArray[np.intp], bounds: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Return, for each of the given columns, which of its states lasts longest, counted from its first change on.

    State 0 is the one that it begins with, state ``k`` the one after its ``k``-th change; the first of equals counts.
    """
    # Every column's edges and changes in a row: its beginning, its changes, its end.
    first, count = bounds[column], bounds[column + 1] - bounds[column]
    start = np.cumsum(count + 2) - count - 2
    moments = np.empty(int((count + 2).sum()))
    inner = np.ones(len(moments), bool)
    inner[start] = inner[start + count + 1] = False
    moments[start], moments[start + count + 1] = edges[column], edges[column + 1]
    moments[inner] = time_us[first[0] : first[-1] + count[-1]]
    lasting = np.diff(moments)
    lasting[start[1:] - 1] = -1.0  # between two columns
    best = np.repeat(np.maximum.reduceat(lasting, start), np.diff(np.append(start, len(lasting))))
    at = np.flatnonzero(lasting == best)
    owner = np.searchsorted(start, at, "right") - 1
    leading = np.flatnonzero(np.diff(owner, prepend=-1))
    chosen: NDArray[np.int64] = (at - start[owner])[leading]
    return chosen


def _lane_points(lane: Lane, axis: FoldedAxis, columns: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    x = axis.place(lane.time_us)
    value = lane.value
    if len(x) > 4 * columns:
        # The highest of each column stands for it: for a line that is drawn, that is what must not be missed.
        column = (x * columns).astype(np.int64)
        order = np.lexsort((value, column))
        kept = np.sort(order[np.append(np.flatnonzero(np.diff(column[order])), len(order) - 1)])
        x, value = x[kept], value[kept]
    return x, value


def _sampled_scene(device: DeviceAnalysis, columns: int) -> Scene:
    curve = device.sampled
    time_us, value = (
        (curve.time_us, curve.value) if curve is not None else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    )
    axis = fold_axis(_NO_TIMES, device.start_us, device.end_us)
    group = device.groups[0]
    band = Band(group.label, group.reason, group_color(group), value, device.headline.allocated_peak)
    lanes = tuple((lane, *_lane_points(lane, axis, columns)) for lane in device.lanes)
    return Scene(axis, axis.place(time_us), (band,), value, value, None, lanes, stepped=False)


def _order(
    device: DeviceAnalysis, values: NDArray[np.int64], width: NDArray[np.float64]
) -> tuple[list[int], list[int]]:
    """Return the groups that get a band of their own, bottom to top, and the others.

    What was there before lies at the bottom, then the steady, then what comes and goes: so the floor stays flat.
    """
    highest = values.max(axis=1, initial=0)
    weight = {row.group: row.bytes for row in device.peak}
    there = [g for g in range(len(device.groups)) if g < len(highest) and highest[g] > 0]
    there.sort(key=lambda g: (-weight.get(g, 0), -int(highest[g])))
    shown = set(there[:_MOST_BANDS])
    # A group that is large at another time must not hide in "others".
    for group in sorted(there[_MOST_BANDS:], key=lambda g: -int(highest[g]))[:2]:
        if highest[group] > 0.1 * values.sum(axis=0).max(initial=1):
            shown.add(group)
    span = max(float(width.sum()), 1e-12)
    steady = {g: float(values[g] @ width) / span / int(highest[g]) for g in shown}
    order = sorted(shown, key=lambda g: (device.groups[g].kind != "before", -steady[g]))
    return order, [g for g in there if g not in shown]


def _by_cell(device: DeviceAnalysis) -> DeviceAnalysis:
    """Return the device with the lines of each cell as one owner: over a notebook the first question is which cell."""
    owners: dict[tuple[str, str], int] = {}
    groups: list[Group] = []
    owner_of = []
    for group in device.groups:
        whole = group.kind in {"line", "frame"} and group.cell is not None
        key = ("cell", group.cell or "") if whole else (group.kind, group.label)
        if key not in owners:
            owners[key] = len(groups)
            cell = Group("line", key[1], None, key[1], None, None, None, None, len(groups)) if whole else group
            groups.append(cell)
        owner_of.append(owners[key])
    peak: dict[int, tuple[int, int]] = {}
    for row in device.peak:
        size, blocks = peak.get(owner_of[row.group], (0, 0))
        peak[owner_of[row.group]] = (size + row.bytes, blocks + row.blocks)
    table = np.array(owner_of, np.int32)
    timeline = replace(device.timeline, group=table[device.timeline.group] if len(table) else device.timeline.group)
    rows = tuple(Row(owner, *held) for owner, held in peak.items())
    return replace(device, groups=tuple(groups), timeline=timeline, peak=rows)


def device_scene(device: DeviceAnalysis, columns: int, *, by_cell: bool = False) -> Scene:
    """Reduce one device to what `columns` columns can show.

    Parameters
    ----------
    device
        What to draw.
    columns
        Columns of the plot.
    by_cell
        One band a cell, not a line.
    """
    if by_cell and device.sampled is None:
        device = _by_cell(device)
    timeline = device.timeline
    if device.sampled is not None:
        return _sampled_scene(device, columns)
    axis = fold_axis(timeline.time_us if device.is_timed else _NO_TIMES, device.start_us, device.end_us)
    x, states, highest = _picks(timeline, axis, columns)
    distinct, which = np.unique(states, return_inverse=True)
    groups = np.arange(len(device.groups), dtype=np.int32)
    values = group_values(timeline, distinct - 1, groups)[:, which.reshape(-1)]
    order, others = _order(device, values, np.diff(x, append=1.0))
    at_peak = {row.group: row.bytes for row in device.peak}
    bands = []
    before = 0
    for number in order:
        group = device.groups[number]
        color = group_color(group, before)
        before += group.kind == "before"
        detail = group.source or group.reason
        label = label_of(device, group)
        bands.append(Band(label, detail, color, values[number], at_peak.get(number, 0)))
    if others:
        rest = values[others].sum(axis=0)
        count = f"{len(others)} others"
        bands.append(Band(count, None, OTHER, rest, sum(at_peak.get(g, 0) for g in others)))
    peak_us = device.headline.peak_us
    lanes = tuple((lane, *_lane_points(lane, axis, columns)) for lane in device.lanes)
    peak_x = None if peak_us is None else float(axis.place(peak_us))
    return Scene(axis, x, tuple(bands), timeline.allocated[states], highest, peak_x, lanes, stepped=True)
