"""A report's recording as a torch memory snapshot, for torch's own viewer and every tool that reads those.

A recording that was made without stacks carries the line that each allocation belongs to as its only frame, so that the
viewer's tooltips say more than a number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._errors import ExportError
from gpumem_magic.trace.beside import Beside
from gpumem_magic.trace.model import Action, Frame, StackTable, Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Group
    from gpumem_magic.analysis.segments import MemoryRecord
    from gpumem_magic.trace.model import Block, DeviceTrace, Segment

__all__ = ["trace_of"]


class _Stacks:
    """The recorded stacks, and one more for each line that stands in for a missing one."""

    def __init__(self, table: StackTable, title: str) -> None:
        self.frames = list(table.frames)
        self.stacks = list(table.stacks)
        self._title = title
        self._known: dict[tuple[str, int, str], int] = {}

    def of(self, group: Group) -> int:
        """Return the stack that stands for an owner; 0 for none."""
        if group.kind == "rounding":
            return 0
        name = group.source or group.function or ""
        file = (group.cell or self._title) if group.kind == "line" else (group.file or group.label)
        if group.kind in {"before", "unknown"}:
            name = group.reason or ""
        key = (file, group.line or 0, name.strip())
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.stacks)
            self.stacks.append((len(self.frames),))
            self.frames.append(Frame(*key))
        return number

    def table(self) -> StackTable:
        return StackTable(tuple(self.frames), tuple(self.stacks))


def trace_of(analysis: Analysis) -> Trace:
    """Return the recording behind an analysis, as a trace.

    Parameters
    ----------
    analysis
        Of a cell or of a file.

    Raises
    ------
    ExportError
        It has no events of torch's caching allocator.
    """
    stacks = _Stacks(analysis.stacks, analysis.title)
    devices = tuple(
        _with_stacks(device, device.memory, stacks)
        for device in sorted(analysis.devices, key=lambda device: device.key)
        if device.memory is not None
    )
    if not devices:
        raise ExportError(
            f"{analysis.title}: nothing to save as a torch snapshot: no events of torch's caching allocator "
            "(CUDA, ROCm or XPU) are in it; save it as HTML"
        )
    settings = next(device.memory.settings for device in analysis.devices if device.memory is not None)
    regions = dict.fromkeys(region for device in analysis.devices for region in device.regions)
    return Trace(devices, stacks.table(), tuple(regions), settings)


def _with_stacks(device: DeviceAnalysis, memory: MemoryRecord, stacks: _Stacks) -> DeviceTrace:
    lives, events = memory.lifetimes, memory.device.events
    if not device.is_timed:
        # An order is no time of the recording.
        events = replace(events, time_us=np.zeros(len(events), np.int64))
    used = np.unique(memory.group)
    numbers = {int(group): stacks.of(device.groups[group]) if group >= 0 else 0 for group in used.tolist()}
    stand_in = np.array([numbers[group] for group in memory.group.tolist()], np.int32)
    begun = lives.alloc_event >= 0
    stack = events.stack.copy()
    allocs = lives.alloc_event[begun]
    stack[allocs] = np.where(stack[allocs] == 0, stand_in[begun], stack[allocs])
    alive = lives.release_event == -1
    by_address = dict(zip(lives.address[alive].tolist(), stand_in[alive].tolist(), strict=True))
    segments = tuple(_segment(segment, by_address.get) for segment in memory.device.segments)
    beside = Beside(memory.calls, device.limit, device.total)
    return replace(
        memory.device,
        events=replace(events, stack=_oom_lines(device, stack, stacks, events.action)),
        segments=segments,
        beside=None if beside == Beside() else beside,
    )


def _oom_lines(
    device: DeviceAnalysis, stack: NDArray[np.int32], stacks: _Stacks, action: NDArray[np.uint8]
) -> NDArray[np.int32]:
    """Give the last out-of-memory event its line, when it has no stack."""
    ooms = np.flatnonzero(action == Action.OOM)
    if len(ooms) and device.oom_group is not None and stack[ooms[-1]] == 0:
        stack[ooms[-1]] = stacks.of(device.oom_group)
    return stack


def _segment(segment: Segment, stack_at: Callable[[int], int | None]) -> Segment:
    def block(one: Block) -> Block:
        return one if one.stack else one._replace(stack=stack_at(one.address) or 0)

    return replace(segment, blocks=tuple(map(block, segment.blocks)))
