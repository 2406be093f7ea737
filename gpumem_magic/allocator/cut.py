"""Cut a recording to a stretch of time, with the true state at its end.

For a recording that the user runs anyway: what belongs to one cell is cut out of it, and every figure still adds up.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.replay import history
from gpumem_magic.allocator.start import segments_before
from gpumem_magic.trace.model import Block, BlockState, Events, Segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import Lifetimes
    from gpumem_magic.trace.model import DeviceTrace, Trace

__all__ = ["cut"]

_SMALL_SEGMENT = 2 * 2**20


def cut(trace: Trace, start_us: int, end_us: int) -> Trace:
    """Keep the events from `start_us` to `end_us`, both included.

    Returns
    -------
    Trace
        The same devices and stacks; `DeviceTrace.segments` is the state after the last event kept.
    """
    return replace(trace, devices=tuple(_cut(device, trace.settings, start_us, end_us) for device in trace.devices))


def _cut(device: DeviceTrace, settings: Mapping[str, object], start_us: int, end_us: int) -> DeviceTrace:
    times = device.events.time_us
    inside = np.flatnonzero((times >= start_us) & (times <= end_us))
    # One stretch of the recorded order, so that a clock that steps back for an event leaves no hole.
    if len(inside):
        first, last = int(inside[0]), int(inside[-1]) + 1
    else:
        first = last = int(np.count_nonzero(times < start_us))
    segments = device.segments
    if last < len(times) and device.has_snapshot:
        segments = _state_before(device, settings, last)
    columns = {field.name: getattr(device.events, field.name)[first:last] for field in fields(Events)}
    return replace(device, events=Events(**columns), segments=segments)


def _state_before(device: DeviceTrace, settings: Mapping[str, object], event: int) -> tuple[Segment, ...]:
    lives = history(device, settings).lifetimes
    alive = (lives.alloc_event < event) & ((lives.release_event == -1) | (lives.release_event >= event))
    alive = np.flatnonzero(alive)
    alive = alive[np.argsort(lives.address[alive], kind="stable")]
    addresses = lives.address[alive]
    native, ranges = segments_before(device, event)
    segments = []
    spans = [(at, size, False) for at, size in native] + [(at, size, True) for at, size in ranges]
    for at, size, is_expandable in sorted(spans):
        low, high = np.searchsorted(addresses, np.array([at, min(at + size, 2**64 - 1)], dtype=np.uint64)).tolist()
        segments.append(_segment(device, lives, alive[low:high], event, (at, size, is_expandable)))
    return tuple(segments)


def _segment(
    device: DeviceTrace, lives: Lifetimes, inside: NDArray[np.intp], event: int, span: tuple[int, int, bool]
) -> Segment:
    at, size, is_expandable = span
    blocks = []
    cursor = at
    for number in inside.tolist():
        address = int(lives.address[number])
        if address > cursor:
            blocks.append(Block(cursor, address - cursor, 0, BlockState.INACTIVE, 0))
        is_pending = lives.free_event[number] != -1 and lives.free_event[number] < event
        blocks.append(
            Block(
                address,
                int(lives.size[number]),
                int(lives.requested[number]),
                BlockState.ACTIVE_PENDING_FREE if is_pending else BlockState.ACTIVE_ALLOCATED,
                int(lives.stack[number]),
            )
        )
        cursor = address + int(lives.size[number])
    if cursor < at + size:
        blocks.append(Block(cursor, at + size - cursor, 0, BlockState.INACTIVE, 0))
    known = next((one for one in device.segments if one.address <= at < one.address + one.size), None)
    return Segment(
        address=at,
        size=size,
        stream=known.stream if known else int(lives.stream[inside[0]]) if len(inside) else 0,
        # Only one size of small segment exists; larger ones of that size hold nothing smaller than 1 MiB.
        is_small=known.is_small if known else size == _SMALL_SEGMENT,
        pool_id=known.pool_id if known else (0, 0),
        is_expandable=is_expandable,
        stack=known.stack if known else 0,
        blocks=tuple(blocks),
    )
