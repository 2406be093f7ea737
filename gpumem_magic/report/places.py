"""Where allocations lay: addresses and segments for the view's document.

Arrays of device i: ``addr`` u4 (an index into the table of addresses, 0: unknown), ``addrs`` u4 (its addresses as
differences in units of 512 bytes; the first entry stands for "unknown"), and by segment ``seg.base``, ``seg.size``,
``seg.from``, ``seg.to`` f8 (microseconds; -1: before the recording, or still there) and ``seg.pool`` u1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic._errors import BadUsageError
from gpumem_magic.allocator.settings_model import MIB
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import DeviceAnalysis
    from gpumem_magic.trace.model import Segment

__all__ = ["address_arrays", "neighbours", "segment_arrays"]

_UNIT = 512
_GAP = 2**32 - 1
_SMALL_SEGMENT = 2 * MIB
_MOST_SEGMENTS = 4096
_MOST_POOLS = 255


def address_arrays(addresses: NDArray[np.uint64]) -> dict[str, NDArray[np.generic]]:
    """Write one address a lifetime; nothing where addresses are not what torch's allocators give."""
    if not addresses.any() or (addresses % _UNIT).any():
        return {}
    table, index = np.unique(np.append(addresses, np.uint64(0)), return_inverse=True)
    gaps = np.diff((table // _UNIT).astype(np.int64))
    # What does not fit 32 bits gets entries in between that no lifetime refers to.
    extra = (gaps - 1) // _GAP
    place = np.concatenate([[0], np.arange(1, len(table)) + np.cumsum(extra)])
    wide = np.full(len(table) + int(extra.sum()), _GAP, np.int64)
    wide[0] = 0
    wide[place[1:]] = gaps - extra * _GAP
    return {"addr": place[index.reshape(-1)[:-1]].astype(np.uint32), "addrs": wide.astype(np.uint32)}


class _Segment(NamedTuple):
    base: int
    size: int
    from_us: int
    to_us: int
    pool: str


def segment_arrays(device: DeviceAnalysis) -> tuple[dict[str, NDArray[np.generic]], list[str]]:
    """Write the segments of a device over the recording, and the names of their pools."""
    if device.memory is None:
        return {}, []
    found = sorted(_segments(device), key=lambda segment: -segment.size)[:_MOST_SEGMENTS]
    pools = list(dict.fromkeys(segment.pool for segment in found))[:_MOST_POOLS]
    found = [segment for segment in found if segment.pool in pools]
    if not found:
        return {}, []
    columns = np.array([segment[:4] for segment in found], np.float64)
    names = ("seg.base", "seg.size", "seg.from", "seg.to")
    arrays: dict[str, NDArray[np.generic]] = {name: columns[:, k].copy() for k, name in enumerate(names)}
    arrays["seg.pool"] = np.array([pools.index(segment.pool) for segment in found], np.uint8)
    return arrays, pools


def _segments(device: DeviceAnalysis) -> list[_Segment]:
    memory = device.memory
    if memory is None:
        return []
    events = memory.device.events
    which = np.flatnonzero((events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_FREE))
    open_since: dict[int, int] = {}
    gone: list[_Segment] = []
    for event in which.tolist():
        base, size = int(events.addr[event]), int(events.size[event])
        time_us = int(events.time_us[event]) - device.start_us
        if events.action[event] == Action.SEGMENT_ALLOC:
            open_since[base] = time_us
            continue
        kind = "small" if size == _SMALL_SEGMENT else "large"
        pool = int(events.pool[event])
        private = memory.device.pool_ids[pool] if pool >= 0 else (0, 0)
        label = _label(kind, int(events.stream[event]), private, expandable=False)
        gone.append(_Segment(base, size, open_since.pop(base, -1), time_us, label))
    return [*gone, *(_final(segment, open_since) for segment in memory.device.segments)]


def _final(segment: Segment, open_since: dict[int, int]) -> _Segment:
    kind = "small" if segment.is_small else "large"
    label = _label(kind, segment.stream, segment.pool_id, expandable=segment.is_expandable)
    return _Segment(segment.address, segment.size, open_since.get(segment.address, -1), -1, label)


def _label(kind: str, stream: int, pool_id: tuple[int, int], *, expandable: bool) -> str:
    parts = [f"{kind} blocks", "default stream" if stream == 0 else f"stream {stream}"]
    if pool_id != (0, 0):
        parts.insert(0, f"private pool {pool_id[0]}.{pool_id[1]}")
    if expandable:
        parts.append("expandable")
    return ", ".join(parts)


def neighbours(device: DeviceAnalysis, address: int, start_us: int | None) -> dict[str, dict[str, object] | None]:
    """Say who had an allocation's addresses before and after it, from the whole recording.

    Parameters
    ----------
    device
        The device.
    address
        Where the allocation lay.
    start_us
        When it began, Unix microseconds; the nearest at that address is meant. None: before the recording.

    Returns
    -------
    dict
        ``before`` and ``after``: its bytes, its owner's label, cell and source, and its beginning and end in
        microseconds (None: before the recording, still alive); None where nobody was there.

    Raises
    ------
    BadUsageError
        Nothing is known of that address.
    """
    memory = device.memory
    here = np.zeros(0, np.intp) if memory is None else np.flatnonzero(memory.lifetimes.address == np.uint64(address))
    if memory is None or not len(here):
        raise BadUsageError("nothing is known of that address")
    lives, times = memory.lifetimes, memory.device.events.time_us
    begun = np.where(lives.alloc_event >= 0, times[np.maximum(lives.alloc_event, 0)], 0) if len(times) else here * 0
    wanted = 0 if start_us is None else start_us
    own = int(here[np.argmin(np.abs(begun[here] - wanted))])
    size = lives.size.astype(np.uint64)
    same = (lives.address < np.uint64(address) + size[own]) & (np.uint64(address) < lives.address + size)
    same[own] = False
    gone = np.flatnonzero(same & (lives.free_event >= 0) & (lives.free_event < lives.alloc_event[own]))
    ends = int(lives.free_event[own])
    came = np.flatnonzero(same & (lives.alloc_event > ends)) if ends >= 0 else gone[:0]

    def told(index: int) -> dict[str, object]:
        number = int(memory.group[index])
        group = device.groups[number] if number >= 0 else None
        alloc, free = int(lives.alloc_event[index]), int(lives.free_event[index])
        return {
            "bytes": int(lives.size[index]),
            "label": "" if group is None else group.label,
            "cell": None if group is None else group.cell,
            "fromUs": int(times[alloc]) - device.start_us if alloc >= 0 else None,
            "toUs": int(times[free]) - device.start_us if free >= 0 else None,
        }

    return {
        "before": told(int(gone[np.argmax(lives.free_event[gone])])) if len(gone) else None,
        "after": told(int(came[np.argmin(lives.alloc_event[came])])) if len(came) else None,
    }
