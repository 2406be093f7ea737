"""Who holds what stayed: a device's survivors joined with a scan for holders, by address."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import DeviceAnalysis
    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["Held", "held_by"]

_MOST_PATHS = 4


class Held(NamedTuple):
    """What one Python path keeps of what stayed.

    `group` indexes `DeviceAnalysis.groups`; `path` reaches the largest of `blocks` allocations, of `bytes` in all;
    `kind` is in the holders' words (``"variable"``, ``"autograd graph"``).
    """

    group: int
    path: str
    kind: str
    bytes: int
    blocks: int


def held_by(trace: DeviceTrace, device: DeviceAnalysis, scan: HolderScan) -> tuple[Held, ...]:
    """Say who holds what was allocated in the recording and stayed, for each owner the largest first.

    What no Python object was found for is left out; the sum over an owner's rows may be less than its row of `stayed`.

    Parameters
    ----------
    trace
        The device's events.
    device
        What they mean.
    scan
        Looked up after the code.
    """
    timeline = device.timeline
    lasting = np.flatnonzero((timeline.start >= 0) & (timeline.end == -1) & (timeline.blocks > 0))
    address = trace.events.addr[timeline.event[timeline.start[lasting]]]
    known = {storage.address: storage for storage in scan.storages if storage.device == device.key}
    sums: dict[tuple[int, str, str], list[int]] = defaultdict(lambda: [0, 0])
    paths: dict[tuple[int, str, str], tuple[int, str]] = {}
    for index, place in zip(lasting.tolist(), address.tolist(), strict=True):
        storage = known.get(place)
        if storage is None or storage.holders[0].kind.name == "UNKNOWN":
            continue
        holder, size = storage.holders[0], int(timeline.size[index])
        key = (int(timeline.group[index]), holder.root, holder.kind.value)
        sums[key][0] += size
        sums[key][1] += 1
        if size > paths.get(key, (-1, ""))[0]:
            paths[key] = (size, holder.path)
    rows = [
        Held(group, paths[group, root, kind][1], kind, size, count)
        for (group, root, kind), (size, count) in sums.items()
    ]
    rows.sort(key=lambda row: (row.group, -row.bytes))
    seen: dict[int, int] = defaultdict(int)
    kept = []
    for row in rows:
        seen[row.group] += 1
        if seen[row.group] <= _MOST_PATHS:
            kept.append(row)
    return tuple(kept)
