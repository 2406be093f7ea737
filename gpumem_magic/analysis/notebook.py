"""All measured cells of a notebook as one recording: one axis, one stack, memory by the cell that made it.

Every cell's own analysis is exact; here they are put one behind the other. What one cell left and the next one found at
the same address and of the same size is one allocation. What came or went between two measured cells comes or goes at
the later one's start, as nobody saw when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.groups import ROUNDING, colored, rows
from gpumem_magic.analysis.model import Analysis, CellSpan, DeviceAnalysis, Group, Headline, Lane, Timeline
from gpumem_magic.analysis.sentence import place_text
from gpumem_magic.recording.model import Note
from gpumem_magic.trace.model import StackTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.trace.model import Frame, Region

__all__ = ["Run", "notebook_analysis"]

_BETWEEN = "made outside measured cells"
_CPU = "on the CPU only a cell's own tensors are known: what earlier cells left is not counted in later ones"
_HELD = "the record of that moment is not kept over cells"


class Run(NamedTuple):
    """One measured run of a cell, and the cell's id in the notebook where it is known."""

    analysis: Analysis
    cell_id: str | None = None


@dataclass
class _Lives:
    """Lifetimes of one device over all runs so far; changes are numbered through."""

    time_us: list[NDArray[np.int64]]
    columns: dict[str, list[NDArray[np.int64]]]
    changes: int = 0
    count: int = 0
    # What was alive at the end of the run before: number, address, bytes.
    open_id: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    open_address: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    open_size: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


_COLUMNS = ("start", "end", "size", "requested", "group", "stack", "stream", "blocks")


class _Book:
    """Groups, stacks and streams of all runs, numbered through."""

    def __init__(self) -> None:
        self.groups: dict[Group, int] = {}
        self.frames: list[Frame] = []
        self.stacks: list[tuple[int, ...]] = [()]
        self.streams: dict[int, int] = {}

    def group(self, group: Group) -> int:
        return self.groups.setdefault(group._replace(color=0), len(self.groups))

    def stream_slots(self, streams: Sequence[int]) -> NDArray[np.int64]:
        slots = [self.streams.setdefault(stream, len(self.streams)) for stream in streams]
        return np.array(slots or [0], np.int64)

    def stack_numbers(self, table: StackTable) -> NDArray[np.int64]:
        offset = len(self.frames)
        self.frames.extend(table.frames)
        first = len(self.stacks) - 1
        self.stacks.extend(tuple(frame + offset for frame in stack) for stack in table.stacks[1:])
        numbers = np.arange(len(table.stacks)) + first
        numbers[0] = 0
        return numbers


def notebook_analysis(runs: Sequence[Run], title: str = "notebook") -> Analysis:
    """Put measured runs one behind the other.

    Parameters
    ----------
    runs
        In the order in which they ran; they do not overlap.
    title
        The report's name.

    Returns
    -------
    Analysis
        With one entry of `Analysis.cells` a run. Within each run the curve is exactly that run's own.
    """
    runs = sorted(runs, key=lambda run: run.analysis.started_us)
    keys = dict.fromkeys(device.key for run in runs for device in run.analysis.devices)
    book = _Book()
    numbers = [book.stack_numbers(run.analysis.stacks) for run in runs]
    devices = tuple(
        sorted(
            (_device(key, runs, numbers, book) for key in keys),
            key=lambda d: (d.kind == "host", -(d.headline.allocated_peak or 0)),
        )
    )
    notes = [Note("info", _CPU)] if "cpu" in keys and len(runs) > 1 else []
    started = min((run.analysis.started_us for run in runs), default=0)
    ended = max((run.analysis.ended_us for run in runs), default=0)
    return Analysis(
        title=title,
        sentence=_sentence(runs, devices),
        origin="block",
        outcome=None,
        error=None,
        cell=None,
        source=None,
        started_us=started,
        ended_us=ended,
        devices=devices,
        stacks=StackTable(tuple(book.frames), tuple(book.stacks)),
        notes=tuple(notes),
        drawable=any(device.timeline.changes for device in devices),
        cells=tuple(_span(run) for run in runs),
    )


def _span(run: Run) -> CellSpan:
    analysis = run.analysis
    number = None if analysis.cell is None else analysis.cell.execution_count
    return CellSpan(_name(analysis), number, run.cell_id, analysis.started_us, analysis.ended_us, analysis.sentence)


def _device(key: str, runs: Sequence[Run], stacks: Sequence[NDArray[np.int64]], book: _Book) -> DeviceAnalysis:
    lives = _Lives([], {name: [] for name in _COLUMNS})
    own = [
        (run, device, numbers)
        for run, numbers in zip(runs, stacks, strict=True)
        for device in run.analysis.devices
        if device.key == key
    ]
    for run, device, numbers in own:
        _append(lives, (run, device), numbers, book)
    timeline = _timeline(lives, tuple(book.streams))
    groups, timeline = _own_groups(timeline, book)
    last = own[-1][1]
    start_us, end_us = min(device.start_us for _, device, _ in own), max(device.end_us for _, device, _ in own)
    at_peak, at_end = timeline.alive(timeline.peak_change), timeline.end == -1
    columns = (timeline.group, timeline.size, timeline.requested, timeline.blocks)
    rounding = len(groups) - 1
    peak = timeline.peak_change
    return DeviceAnalysis(
        key=key,
        name=last.name,
        kind=last.kind,
        total=last.total,
        limit=last.limit,
        events=sum(device.events for _, device, _ in own),
        start_us=start_us,
        end_us=end_us,
        headline=_headline([device for _, device, _ in own], timeline, start_us),
        groups=groups,
        peak=rows(at_peak, *columns, rounding=rounding),
        end=rows(at_end, *columns, rounding=rounding),
        stayed=rows(at_end & (timeline.start >= 0), *columns, rounding=rounding),
        peak_group=_begun_by(timeline, peak),
        markers=tuple(marker for _, device, _ in own for marker in device.markers),
        regions=tuple(dict.fromkeys(region for _, device, _ in own for region in _closed(device.regions, device))),
        lanes=_lanes([device for _, device, _ in own]),
        timeline=timeline,
        missing={"outside": _HELD} if any(device.sampled is not None for _, device, _ in own) else {},
        exact=all(device.exact for _, device, _ in own),
    )


def _append(lives: _Lives, part: tuple[Run, DeviceAnalysis], numbers: NDArray[np.int64], book: _Book) -> None:
    """Put one run's lifetimes of a device behind those before it."""
    run, device = part
    timeline = device.timeline
    addresses = np.zeros(timeline.lifetimes, np.uint64) if device.memory is None else device.memory.addresses(timeline)
    old = timeline.start == -1
    is_first = not lives.time_us
    # One change for what came and went since the run before, then the run's own.
    offset = lives.changes + (0 if is_first else 1)
    if not is_first:
        lives.time_us.append(np.array([device.start_us], np.int64))
    lives.time_us.append(timeline.time_us)
    end = np.where(timeline.end >= 0, timeline.end.astype(np.int64) + offset, -1)
    joined = _join(lives, addresses, timeline.size, old)
    known = joined >= 0
    if known.any():
        lives.columns["end"] = [np.concatenate(lives.columns["end"])]
        lives.columns["end"][0][joined[known]] = end[known]
    gone = np.setdiff1d(lives.open_id, joined[known])
    if len(gone):
        lives.columns["end"] = [np.concatenate(lives.columns["end"])]
        lives.columns["end"][0][gone] = lives.changes
    new = ~known
    first = np.where(old, -1 if is_first else lives.changes, timeline.start.astype(np.int64) + offset)
    own = np.array([book.group(_group(group, _name(run.analysis))) for group in device.groups], np.int64)
    slots = book.stream_slots(timeline.streams)
    columns: dict[str, NDArray[np.int64]] = {
        "start": first[new],
        "end": end[new],
        "size": timeline.size[new],
        "requested": timeline.requested[new],
        "group": own[timeline.group[new]] if len(own) else np.zeros(0, np.int64),
        "stack": numbers[timeline.stack[new]],
        "stream": np.minimum(slots[timeline.stream[new]], 255),
        "blocks": timeline.blocks[new].astype(np.int64),
    }
    for name, column in columns.items():
        lives.columns[name].append(column)
    number = np.empty(timeline.lifetimes, np.int64)
    number[known] = joined[known]
    number[new] = lives.count + np.arange(np.count_nonzero(new))
    lives.count += int(np.count_nonzero(new))
    lives.changes = offset + timeline.changes
    left = timeline.end == -1
    lives.open_id, lives.open_address, lives.open_size = number[left], addresses[left], timeline.size[left]


def _join(
    lives: _Lives, addresses: NDArray[np.uint64], size: NDArray[np.int64], old: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Find each pre-existing allocation among those that the run before left: its number, or -1."""
    found = np.full(len(addresses), -1, np.int64)
    if not len(lives.open_id):
        return found
    order = np.argsort(lives.open_address, kind="stable")
    sorted_addresses = lives.open_address[order]
    at = np.minimum(np.searchsorted(sorted_addresses, addresses), len(order) - 1)
    same = old & (addresses != 0) & (sorted_addresses[at] == addresses) & (lives.open_size[order][at] == size)
    found[same] = lives.open_id[order][at][same]
    return found


def _name(analysis: Analysis) -> str:
    """Return the run's title; with its number when it is a label, which several runs may share."""
    number = None if analysis.cell is None else analysis.cell.execution_count
    name = f"In [{number}]"
    return analysis.title if number is None or analysis.title == name else f"{analysis.title} ({name})"


def _group(group: Group, title: str) -> Group:
    """Name an owner so that it is told apart from the other cells' owners."""
    if group.kind == "before":
        return Group("before", _BETWEEN)
    return group if group.kind == "rounding" else group._replace(cell=group.cell or title)


def _timeline(lives: _Lives, streams: tuple[int, ...]) -> Timeline:
    merged = {name: np.concatenate([np.zeros(0, np.int64), *parts]) for name, parts in lives.columns.items()}
    order = np.argsort(merged["start"], kind="stable")
    merged = {name: column[order] for name, column in merged.items()}
    time_us = np.maximum.accumulate(np.concatenate([np.zeros(0, np.int64), *lives.time_us]))
    start, end, size = merged["start"], merged["end"], merged["size"]
    steps = np.zeros(lives.changes + 1, np.int64)
    np.add.at(steps, start + 1, size)
    np.subtract.at(steps, end[end >= 0] + 1, size[end >= 0])
    return Timeline(
        time_us=time_us,
        event=np.full(lives.changes, -1, np.int32),
        allocated=np.cumsum(steps),
        start=start.astype(np.int32),
        end=end.astype(np.int32),
        size=size,
        requested=merged["requested"],
        group=merged["group"].astype(np.int32),
        stack=merged["stack"].astype(np.int32),
        stream=merged["stream"].astype(np.uint8),
        blocks=merged["blocks"].astype(np.int32),
        streams=streams[:256],
    )


def _own_groups(timeline: Timeline, book: _Book) -> tuple[tuple[Group, ...], Timeline]:
    """Keep the groups that this device has lifetimes of, give them colours, and add the one for rounding."""
    used = np.unique(timeline.group)
    number = np.zeros(len(book.groups) + 1, np.int32)
    number[used] = np.arange(len(used))
    group = number[timeline.group]
    names = list(book.groups)
    weight = np.bincount(group, timeline.size, len(used)).tolist()
    groups = colored([*(names[index] for index in used.tolist()), Group("rounding", ROUNDING)], [*weight, 0.0])
    columns = {name: getattr(timeline, name) for name in timeline.__dataclass_fields__}
    return groups, Timeline(**{**columns, "group": group})


def _begun_by(timeline: Timeline, change: int) -> int | None:
    begun = np.flatnonzero(timeline.start == change)
    return int(timeline.group[begun[np.argmax(timeline.size[begun])]]) if change >= 0 and len(begun) else None


def _headline(devices: Sequence[DeviceAnalysis], timeline: Timeline, start_us: int) -> Headline:
    peak = timeline.peak_change
    reserved = [d.headline.reserved_peak for d in devices if d.headline.reserved_peak is not None]
    last = devices[-1].headline
    most = max(reserved, default=None)
    limit = devices[-1].limit
    old = timeline.start == -1
    return Headline(
        allocated_before=int(timeline.allocated[0]),
        allocated_peak=int(timeline.allocated.max()),
        peak_us=int(timeline.time_us[peak]) if peak >= 0 else start_us,
        allocated_after=int(timeline.allocated[-1]),
        stayed=int(timeline.size[~old & (timeline.end == -1)].sum()),
        freed=int(timeline.size[old & (timeline.end >= 0)].sum()),
        reserved_before=devices[0].headline.reserved_before,
        reserved_peak=most,
        reserved_after=last.reserved_after,
        device_used=last.device_used,
        process_used=last.process_used,
        headroom=limit - most if limit is not None and most is not None else None,
    )


def _lanes(devices: Sequence[DeviceAnalysis]) -> tuple[Lane, ...]:
    """Put each curve's parts one behind the other."""
    parts: dict[str, list[Lane]] = {}
    for device in devices:
        for lane in device.lanes:
            parts.setdefault(lane.name, []).append(lane)
    return tuple(
        Lane(
            lanes[0].name,
            lanes[0].shape,
            np.maximum.accumulate(np.concatenate([lane.time_us for lane in lanes])),
            np.concatenate([lane.value for lane in lanes]),
        )
        for lanes in parts.values()
    )


def _closed(regions: Iterable[Region], device: DeviceAnalysis) -> Iterable[Region]:
    """End what was open at the end of its own run there."""
    for region in regions:
        start = device.start_us if region.start_us is None else region.start_us
        yield region._replace(start_us=start, end_us=device.end_us if region.end_us is None else region.end_us)


def _sentence(runs: Sequence[Run], devices: Sequence[DeviceAnalysis]) -> str:
    count = f"{len(runs)} measured {'run' if len(runs) == 1 else 'runs'}"
    if not devices or not devices[0].timeline.changes:
        return f"{count}: none allocated or freed anything."
    device = devices[0]
    peak = device.headline.allocated_peak or 0
    group = None if device.peak_group is None else device.groups[device.peak_group]
    at = "" if group is None else f", reached by {group.cell or 'the notebook'}, {place_text(group)}"
    where = f" on {device.key}" if len(devices) > 1 else ""
    held: dict[str, int] = {}
    for row in device.end:
        owner = device.groups[row.group]
        held[owner.cell or owner.label] = held.get(owner.cell or owner.label, 0) + row.bytes
    text = f"{count}: peak {format_bytes(peak)}{where}{at}"
    held.pop(ROUNDING, None)
    if not held:
        return f"{text}; nothing is left."
    most = max(held, key=lambda name: held[name])
    total = format_bytes(device.headline.allocated_after or 0)
    return f"{text}; {total} left at the end, {format_bytes(held[most])} of it from {most}."
