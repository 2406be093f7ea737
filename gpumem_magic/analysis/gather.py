"""What ``nn.DataParallel`` gathers on one device: why that one needs more than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.categories.model import GRADIENT, OPTIMIZER
from gpumem_magic.analysis.place import place_text
from gpumem_magic.recording.model import Note
from gpumem_magic.trace.model import Action
from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.recording.model import Calls, Recording
    from gpumem_magic.trace.model import DeviceTrace, StackTable

__all__ = ["gather_notes"]

_CLASS = "DataParallel"
# Its own code that copies what the replicas returned, by the end of the file's name and the function's.
_FRAMES = (("torch/nn/parallel/scatter_gather.py", "gather"), ("torch/nn/parallel/comm.py", "gather"))
# Of the device's peak, and in bytes: less is not why one device is full and the others are not.
_SHARE, _LEAST = 0.05, 1 << 20


class _Gathered(NamedTuple):
    """Bytes that were gathered and alive at the peak of a device, and the group with most of them."""

    bytes: int
    group: int


def gather_notes(recording: Recording, analysis: Analysis) -> tuple[Note, ...]:
    """Say of a device that leads the others by what ``nn.DataParallel`` gathers there how much that is.

    Parameters
    ----------
    recording
        The cell's; which of torch's calls was under way tells who allocated, or recorded stacks.
    analysis
        What it means.
    """
    trace = recording.trace
    devices = [device for device in analysis.devices if device.kind == "cuda"]
    if trace is None or len(devices) < 2:
        return ()
    spans = _spans(recording.calls)
    traces = {device.key: device for device in trace.devices}
    notes = []
    for device in devices:
        one = traces.get(device.key)
        found = None if one is None else _at_peak(one, device, spans, trace.stacks)
        if found is not None:
            notes.append(Note("info", _text(device, [other for other in devices if other is not device], found)))
    return tuple(notes)


def _spans(calls: Calls | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of each time in which ``DataParallel`` gathers, in microseconds.

    It runs its replicas on threads of their own, and gathers when the last of these is done.
    """
    empty = np.zeros(0, np.int64)
    inner = [] if calls is None else [n for n, stack in enumerate(calls.places) if stack[0][2] == _CLASS]
    if calls is None or not inner:
        return empty, empty
    is_gathering = np.isin(calls.place, inner)
    begins, ends = [], []
    for thread in np.unique(calls.thread[is_gathering]).tolist():
        own = calls.thread == thread
        times, mine = calls.time_us[own], is_gathering[own]
        others = calls.time_us[~own]
        at = np.flatnonzero(mine)
        end = np.append(times, np.iinfo(np.int64).max)[at + 1]
        # The last mark of a replica's thread before the call ends, if there is one after the call began.
        last = np.searchsorted(others, end, "left") - 1
        known = last >= 0
        begin = np.where(known, others[np.maximum(last, 0)] if len(others) else 0, 0)
        known &= begin > times[at]
        begins.append(begin[known])
        ends.append(end[known])
    begin, end = np.concatenate(begins), np.concatenate(ends)
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def _at_peak(
    trace: DeviceTrace,
    device: DeviceAnalysis,
    spans: tuple[NDArray[np.int64], NDArray[np.int64]],
    stacks: StackTable,
) -> _Gathered | None:
    timeline = device.timeline
    if not timeline.lifetimes or timeline.peak_change < 0:
        return None
    events = trace.events
    made = events.action == Action.ALLOC
    begin, end = spans
    times = rising(events.time_us)
    which = np.searchsorted(begin, times, "left") - 1
    is_gathered = np.zeros(len(times), bool)
    if len(begin):
        is_gathered = (which >= 0) & (times <= end[np.maximum(which, 0)])
    of_stack = np.array([_gathers(stacks, number) for number in range(len(stacks.stacks))], bool)
    is_gathered = made & (is_gathered | of_stack[events.stack])
    alive = timeline.alive(timeline.peak_change) & (timeline.start >= 0)
    mine = np.flatnonzero(alive)
    mine = mine[is_gathered[timeline.event[timeline.start[mine]]]]
    size = int(timeline.size[mine].sum())
    peak = device.headline.allocated_peak or 0
    if size < max(_LEAST, _SHARE * peak):
        return None
    by_group = np.bincount(timeline.group[mine], timeline.size[mine])
    return _Gathered(size, int(np.argmax(by_group)))


def _gathers(stacks: StackTable, number: int) -> bool:
    return any(
        frame.name == name and frame.filename.replace("\\", "/").endswith(end)
        for frame in stacks.resolve(number)
        for end, name in _FRAMES
    )


def _text(device: DeviceAnalysis, others: list[DeviceAnalysis], found: _Gathered) -> str:
    peak = device.headline.allocated_peak or 0
    second = max(others, key=lambda other: other.headline.allocated_peak or 0)
    more = peak - (second.headline.allocated_peak or 0)
    lead = f"{device.key} peaks {format_bytes(more)} above {second.key}: " if more > 0 else f"{device.key}: "
    place = place_text(device.groups[found.group])
    rows = () if device.categories is None else device.categories.peak
    state = sum(row.bytes for row in rows if row.category in {GRADIENT, OPTIMIZER})
    alone = f", and keeps gradients and optimizer state there alone, {format_bytes(state)}" if state >= _LEAST else ""
    return (
        f"{lead}nn.DataParallel gathers there what its replicas return, {format_bytes(found.bytes)} at the peak "
        f"({place}){alone}; DistributedDataParallel gathers nothing"
    )
