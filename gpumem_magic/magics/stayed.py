"""The blocks that a recording left behind, and what of them no Python object holds."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpumem_magic.book.blocks import survivors
from gpumem_magic.recording.alive import allocated_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpumem_magic.analysis.model import Analysis
    from gpumem_magic.holders.scratch import Remains
    from gpumem_magic.recording.model import Recording

__all__ = ["blocks_that_stayed", "unowned"]


def blocks_that_stayed(recording: Recording, analysis: Analysis) -> dict[tuple[str, int], int]:
    """Return the size of each block that was allocated in a recording and alive at its end, by (device, address)."""
    timelines = {device.key: device.timeline for device in analysis.devices}
    found: dict[tuple[str, int], int] = {}
    for device in recording.trace.devices if recording.trace is not None else ():
        timeline = timelines.get(device.key)
        if timeline is not None:
            address, size, _ = survivors(device.events, timeline)
            keys = [(device.key, place) for place in address.tolist()]
            found.update(zip(keys, size.tolist(), strict=True))
    return found


def unowned(stayed: Mapping[tuple[str, int], int], held: Collection[Remains]) -> dict[str, int]:
    """Return the bytes, by device, that an allocator still counts of these blocks, less those with a known holder."""
    rest: dict[str, int] = defaultdict(int)
    for key, (addresses, sizes) in allocated_blocks().items():
        for address, size in zip(addresses.tolist(), sizes.tolist(), strict=True):
            if stayed.get((key, address)) == size:
                rest[key] += size
    for row in held:
        if row.device in rest:
            rest[row.device] -= row.bytes
    return {key: size for key, size in rest.items() if size > 0}
