"""Which group each lifetime of a device belongs to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.context import OVERFLOW
from gpumem_magic.analysis.groups import NO_STACK, NO_STACKS_AT_ALL, ROUNDING, GroupBook, colored, stacks_recorded
from gpumem_magic.analysis.model import Group
from gpumem_magic.analysis.stackless import infer_frames
from gpumem_magic.recording.model import Note
from gpumem_magic.trace.frames import is_native, user_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.context import DeviceContext
    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["assign_groups", "compact", "event_group"]

# A line of the cell that owns this share of the peak is split by the lines that it called in other cells.
_SPLIT_SHARE = 0.6
# Combinations of place, stack and the rest that a table of 8 MB can hold.
_MOST_CODES = 1_000_000
# The view's format counts to 65,535, and no reader beyond a few hundred.
_MOST_GROUPS = 4096


def _owner_columns(
    device: DeviceTrace, timeline: Timeline, context: DeviceContext, inferred: NDArray[np.int32] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, per distinct (before?, place, stack, inferred frame), a row of numbers, and each lifetime's row."""
    old = timeline.start == -1
    missing = np.full(1, -1, np.int32)
    columns: list[NDArray[Any]] = [old, missing, timeline.stack, missing]
    if len(device.events):
        all_old = bool(old.all())
        event = timeline.event[timeline.start if not old.any() else timeline.start[~old]]
        for number, known in ((1, None if context.placement is None else context.placement.place), (3, inferred)):
            if known is not None and not all_old:
                columns[number] = _spread(known[event], old)
    # One number a row: sorting numbers is ten times as fast as sorting rows.
    low = [int(column.min(initial=0)) for column in columns]
    width = [int(column.max(initial=0)) - least + 1 for column, least in zip(columns, low, strict=True)]
    code = np.zeros(timeline.lifetimes, np.int64)
    for column, least, values in zip(columns, low, width, strict=True):
        if values > 1:
            code *= values
            code += column
            code -= least
    if math.prod(width) > _MOST_CODES:
        used, inverse = np.unique(code, return_inverse=True)
        inverse = inverse.reshape(-1)
    else:
        # There are few of them, so that they need no sorting either.
        used = np.flatnonzero(np.bincount(code, minlength=1))
        number_of = np.zeros(math.prod(width), np.int64)
        number_of[used] = np.arange(len(used))
        inverse = number_of[code]
    rows = np.empty((len(used), len(columns)), np.int64)
    for number in reversed(range(len(columns))):
        used, rest = np.divmod(used, width[number])
        rows[:, number] = rest + low[number]
    return rows, inverse


def _spread(value: NDArray[np.int32], old: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return a column of all lifetimes from that of the new ones; -1 for the others."""
    if len(value) == len(old):
        return value
    column = np.full(len(old), -1, np.int32)
    column[~old] = value
    return column


def _name_owner(
    key: tuple[int, int, int, int], context: DeviceContext, book: GroupBook, *, any_stacks: bool, deep: bool
) -> int:
    """Find the group of one (before?, place, stack, inferred frame)."""
    old, place, stack, inferred = key
    namer = context.namer
    frames = context.stacks.resolve(stack)
    if old and (context.is_cell or not frames):
        if context.truncated:
            reason = OVERFLOW if context.is_cell else "allocated before the recorded part begins"
            return book.number(*namer.unknown(reason, "before the recorded part"))
        return book.number(*namer.before(frames))
    if context.placement is not None and place >= 0:
        line = namer.pick(context.placement.places[place], deep=deep)
        if line is not None:
            return book.number(*namer.line(*line, last=context.placement.last_line(place, line)))
    # Frames of notebook code come first: "innermost" as for line marks.
    notebook = tuple((f.filename, f.line, f.name) for f in frames if namer.in_notebook(f.filename))
    if notebook:
        line = namer.pick(notebook, deep=deep)
        if line is not None:
            return book.number(*namer.line(*line))
    frame = user_frame(frames) if inferred < 0 else context.stacks.frames[inferred]
    if frame is not None and not is_native(frame.filename):
        return book.number(*namer.line(*frame))
    if context.placement is not None and place < 0:
        reasons = context.placement.reasons
        if -1 - place < len(reasons):
            return book.number(*namer.unknown(reasons[-1 - place]))
    if context.is_cell:
        return book.number(*namer.unknown("lines were not recorded"))
    reason, label = (NO_STACK, "no Python stack") if any_stacks else (NO_STACKS_AT_ALL, "no stacks")
    return book.number(*namer.unknown(reason, label))


def _tell_inferred(key: str, timeline: Timeline, inferred: NDArray[np.int32], context: DeviceContext) -> None:
    new = timeline.start >= 0
    given = np.zeros(timeline.lifetimes, bool)
    given[new] = inferred[timeline.event[timeline.start[new]]] >= 0
    if not given.any():
        return
    at_peak = int(timeline.size[given & timeline.alive(timeline.peak_change)].sum())
    note = (
        f"{key}: {int(given.sum()):,} allocations without a stack (autograd's thread; {format_bytes(at_peak)} at the "
        "peak) are shown at the line that the program was in before and after them"
    )
    context.notes.append(Note("info", note))


def assign_groups(
    device: DeviceTrace, history: History, timeline: Timeline, context: DeviceContext, book: GroupBook
) -> NDArray[np.int32]:
    """Give every lifetime its group; a line of the cell that owns most of the peak is split by what it called."""
    any_stacks = stacks_recorded(timeline.stack, context.stacks)
    inferred = None
    if any_stacks and context.placement is None:
        inferred = infer_frames(device.events, context.all_devices or [(device.events, history)], context.stacks)
        _tell_inferred(device.key, timeline, inferred, context)
    keys, inverse = _owner_columns(device, timeline, context, inferred)
    triples: list[tuple[int, int, int, int]] = [tuple(key) for key in keys.tolist()]
    numbers = np.array(
        [_name_owner(key, context, book, any_stacks=any_stacks, deep=False) for key in triples], np.int32
    )
    if not len(numbers):
        return np.zeros(0, np.int32)
    group = numbers[inverse]
    alive = timeline.alive(timeline.peak_change)
    weight = np.bincount(group[alive], timeline.size[alive], len(book.groups))
    top = int(weight.argmax()) if len(weight) else 0
    if not context.is_cell or weight.sum() == 0 or weight[top] < _SPLIT_SHARE * weight.sum():
        return group
    if book.groups[top].kind != "line":
        return group
    for index, key in enumerate(triples):
        if numbers[index] == top:
            numbers[index] = _name_owner(key, context, book, any_stacks=any_stacks, deep=True)
    return numbers[inverse]


def compact(
    group: NDArray[np.int32], groups: Sequence[Group], weight: NDArray[np.float64]
) -> tuple[NDArray[np.int32], tuple[Group, ...]]:
    """Drop groups that nothing belongs to, order the others, and give colours.

    Order: before, then code by cell, file and line, then unknown; the order of the bands and of the legend.
    """
    used = np.flatnonzero(np.bincount(group, minlength=1)).tolist()
    few: list[int] = []
    if len(used) > _MOST_GROUPS:
        used.sort(key=lambda i: -weight[i])
        used, few = used[: _MOST_GROUPS - 1], used[_MOST_GROUPS - 1 :]
    rank = {"before": 0, "line": 1, "frame": 1, "unknown": 2, "rounding": 3}
    used.sort(key=lambda i: (rank[groups[i].kind], groups[i].cell or "", groups[i].file or "", groups[i].line or 0, i))
    new = np.zeros(len(groups), np.int32)
    new[used] = np.arange(len(used))
    ordered = [groups[i] for i in used]
    if few:
        new[few] = len(ordered)
        ordered.append(Group("unknown", f"{len(few):,} smaller owners", reason="too many to tell apart"))
    ordered.append(Group("rounding", ROUNDING))
    colors = colored(ordered, [*(float(weight[i]) for i in used), *[0.0] * (len(ordered) - len(used))])
    return new[group], colors


def event_group(device: DeviceTrace, event: int, context: DeviceContext) -> Group | None:
    """Return the owner that a single event would have, or None when its line is unknown."""
    book = GroupBook()
    place = -1 if context.placement is None else int(context.placement.place[event])
    key = (0, place, int(device.events.stack[event]), -1)
    group = book.groups[_name_owner(key, context, book, any_stacks=True, deep=False)]
    return None if group.kind == "unknown" else group
