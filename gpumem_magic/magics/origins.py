"""Which cell and line made a storage, and how certain that is.

The ledger knows a block by its address and size. Memory that a cell frees which is not measured may be given out again
at the same address, so the ledger's word is only taken where every cell since was measured, or where the very storage
that was seen right after the measured cell, before anything else ran, still lies there.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumem_magic.book import Ledger, LiveBlocks, Origin
    from gpumem_magic.holders import HolderScan, StorageWitness
    from gpumem_magic.holders.text import Unowned

__all__ = ["Origins", "unowned_blocks"]

# 300 bytes each.
_MOST_WITNESSES = 50_000


class Origins:
    """Remembers storages that were seen, weakly, and when something ran that was not measured."""

    def __init__(self) -> None:
        self._witnesses: dict[tuple[str, int], StorageWitness] = {}
        self._is_measured = False
        # Entries up to this start, in Unix microseconds, were followed by something that was not measured.
        self._gap_us = 0

    def measured(self) -> None:
        """Note that the running cell is measured."""
        self._is_measured = True

    def cell_ended(self) -> None:
        """Note the end of a cell."""
        if not self._is_measured:
            from gpumem_magic.recording.readings import now_us

            self._gap_us = now_us()
        self._is_measured = False

    def _is_certain(self, origin: Origin) -> bool:
        """Tell whether everything that ran since was measured, so that the ledger missed no free."""
        return origin.entry.started_us > self._gap_us

    def see(self, scan: HolderScan | None, ledger: Ledger) -> None:
        """Remember the storages that lie where a measured run left a block, as far as that is certain."""
        if scan is None:
            return
        from gpumem_magic.holders import StorageWitness

        for key in [key for key, witness in self._witnesses.items() if witness.is_gone()]:
            del self._witnesses[key]
        for storage in scan.storages:
            key = (storage.device, storage.address)
            if len(self._witnesses) >= _MOST_WITNESSES:
                break
            origin, tensor = ledger.origin(*key), scan.witnesses[key]()
            if origin is None or tensor is None or not self._is_certain(origin):
                continue
            known = self._witnesses.get(key)
            if known is None or not known.is_of(tensor):
                # The former one's memory lies elsewhere now, or another was put into its tensor.
                self._witnesses[key] = StorageWitness(tensor)

    def of(self, scan: HolderScan, ledger: Ledger) -> dict[tuple[str, int], str]:
        """Return cell and line by (device, address), where they are certain."""
        found = {}
        for storage in scan.storages:
            key = (storage.device, storage.address)
            origin = ledger.origin(*key)
            if origin is None:
                continue
            witness = self._witnesses.get(key)
            if self._is_certain(origin) or (witness is not None and witness.is_of(scan.witnesses[key]())):
                found[key] = str(origin)
        return found


def unowned_blocks(scan: HolderScan, now: Mapping[str, LiveBlocks], ledger: Ledger) -> list[Unowned]:
    """Sum the allocated blocks that no storage of a scan lies in, by the cell and line that made them.

    Parameters
    ----------
    scan
        A whole scan; what was cut short says nothing about owners.
    now
        Allocated blocks by device.
    ledger
        Knows which run made what.
    """
    from gpumem_magic.holders.text import Unowned

    if scan.cut is not None:
        return []
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    shown = sorted(scan.foreign.items())
    for device, blocks in now.items():
        owned = {storage.address for storage in scan.storages if storage.device == device}
        for address, size in zip(blocks.address.tolist(), blocks.size.tolist(), strict=True):
            if address in owned:
                continue
            origin = ledger.origin(device, address)
            entry = sums[device, "" if origin is None else str(origin), _what(address, size, shown)]
            entry[0] += size
            entry[1] += 1
    rows = [Unowned(device, size, count, origin, what) for (device, origin, what), (size, count) in sums.items()]
    return sorted(rows, key=lambda row: -row.bytes)


def _what(address: int, size: int, shown: Sequence[tuple[int, str]]) -> str:
    """Say what a block without a tensor is for, as far as its place and size tell."""
    at = bisect.bisect_left(shown, (address, ""))
    if at < len(shown) and shown[at][0] < address + size:
        return f"memory that {shown[at][1]} shows"
    from gpumem_magic.analysis.categories.model import WORKSPACE_SIZES

    if size in WORKSPACE_SIZES:
        return (
            f"workspaces of {format_bytes(size)} of cuBLAS or cuBLASLt, one for each thread and stream that multiplied "
            "matrices: as many as these, no leak"
        )
    return "a library's workspace, a captured graph's pool or memory that only C++ holds; no leak by itself"
