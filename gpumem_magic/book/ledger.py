"""The book: entries in the order of their runs, and the blocks that are alive of each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.leaks.evidence import LEAST_ITERATIONS
from gpumem_magic.book.blocks import BlockTable, survivors
from gpumem_magic.book.intake import read_entry
from gpumem_magic.book.model import AliveDevice, AliveRow, Origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.analysis.leaks import Leak
    from gpumem_magic.analysis.model import Analysis, Group
    from gpumem_magic.book.model import Entry, LiveBlocks, Tensors
    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.recording.model import Recording

__all__ = ["Ledger"]

_MOST_ENTRIES = 1000
_MOST_NAMES = 3


class Ledger:
    """Measured runs of a notebook's cells.

    Parameters
    ----------
    most
        Entries to keep. Those of which nothing is alive go first, then the oldest.
    """

    def __init__(self, most: int = _MOST_ENTRIES) -> None:
        self._most = most
        self._entries: dict[int, Entry] = {}
        self._numbers = itertools.count()
        self._tables: dict[str, BlockTable] = {}
        self._left_out = 0
        self._runs: dict[str, int] = {}
        self._lines: list[Group] = []
        self._line_numbers: dict[Group, int] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Oldest first."""
        return tuple(self._entries.values())

    @property
    def entries_left_out(self) -> int:
        """Number of entries that did not fit."""
        return self._left_out

    @property
    def blocks_left_out(self) -> int:
        """Number of blocks that did not fit; what is alive of them counts as not seen."""
        return sum(table.left_out for table in self._tables.values())

    def add(self, recording: Recording, analysis: Analysis, cell_id: str | None = None) -> Entry | None:
        """Enter a run, and drop what it proves to be gone.

        Returns
        -------
        Entry or None
            None when the run neither allocated nor freed anything.
        """
        entry = read_entry(recording, analysis, cell_id)
        if entry is None:
            return None
        number = next(self._numbers)
        self._runs[entry.cell_key] = run = self._runs.get(entry.cell_key, 0) + 1
        entry = self._entries[number] = replace(entry, run=run)
        analysed = {device.key: device for device in analysis.devices}
        for device in recording.trace.devices if recording.trace is not None else ():
            table = self._tables.setdefault(device.key, BlockTable())
            table.apply(device.events)
            meant = analysed.get(device.key)
            if meant is not None:
                stayed = survivors(device.events, meant.timeline)
                lines = np.array([self._line(group) for group in meant.groups], np.int32)
                table.add(stayed.address, stayed.size, number, lines[stayed.group] if len(lines) else None)
        self._prune()
        return entry

    def _line(self, group: Group) -> int:
        """Return the number of a line of code; -1 for what is none."""
        if group.kind not in {"line", "frame"}:
            return -1
        known = self._line_numbers.setdefault(group._replace(color=0), len(self._lines))
        if known == len(self._lines):
            self._lines.append(group)
        return known

    def told(self, entry: Entry, leak: str) -> Entry:
        """Note the verdict on a run, and return its entry."""
        changed = replace(entry, leak=leak)
        for number, known in reversed(self._entries.items()):
            if known is entry:
                self._entries[number] = changed
                break
        return changed

    def cleared(self, now: Mapping[str, LiveBlocks], scan: HolderScan) -> None:
        """Correct the newest run after what its cell created was removed: what that freed did not stay.

        Parameters
        ----------
        now
            Allocated blocks by device, as for `alive`.
        scan
            Who holds what; the evidence for devices that no allocator counts, where it is complete.
        """
        if not self._entries:
            return
        number, entry = next(reversed(self._entries.items()))
        gone: dict[str, int] = {}
        for device, table in self._tables.items():
            mine = table.owner == number
            before = int(table.size[mine].sum())
            blocks = now.get(device)
            if blocks is not None:
                table.retain(*blocks)
            elif scan.cut is None:
                held = [storage.address for storage in scan.storages if storage.device == device]
                table.drop(mine & ~np.isin(table.address, np.array(held, np.uint64)))
            gone[device] = before - int(table.size[table.owner == number].sum())
        devices = tuple(
            device if device.stayed is None else device._replace(stayed=device.stayed - gone.get(device.key, 0))
            for device in entry.devices
        )
        self._entries[number] = replace(entry, devices=devices)

    def origin(self, device: str, address: int) -> Origin | None:
        """Return where the block that begins at `address` was made, as far as is known; None when no run made it.

        A block that was freed, and another of its place and size made, outside of measured cells is mistaken for it.
        """
        table = self._tables.get(device)
        index = None if table is None else table.find(address)
        if table is None or index is None:
            return None
        line = int(table.line[index])
        return Origin(self._entries[int(table.owner[index])], self._lines[line] if line >= 0 else None)

    def reruns(self, entry: Entry, now: Mapping[str, LiveBlocks], scan: HolderScan | None) -> tuple[Leak, ...]:
        """Say what earlier runs of an entry's cell left that is still there, when three in a row did.

        Parameters
        ----------
        entry
            The newest run.
        now
            Allocated blocks by device, as for `alive`.
        scan
            Who holds what; the only evidence for devices that no allocator counts.
        """
        if entry.run < LEAST_ITERATIONS:
            return ()
        key = entry.cell_key
        runs = [number for number, known in self._entries.items() if known.cell_key == key]
        leaks = []
        for device, table in self._tables.items():
            blocks = now.get(device)
            if blocks is not None:
                table.retain(*blocks)
                counted = np.ones(len(table), bool)
            elif scan is not None:
                held = [storage.address for storage in scan.storages if storage.device == device]
                counted = np.isin(table.address, np.array(held, np.uint64))
            else:
                continue
            from gpumem_magic.book.reruns import rerun_leak

            leak = rerun_leak(device, table, counted, runs, self._lines)
            if leak is not None:
                leaks.append(leak)
        return tuple(leaks)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._tables.clear()
        self._runs.clear()
        self._lines.clear()
        self._line_numbers.clear()
        self._left_out = 0

    def alive(self, now: Mapping[str, LiveBlocks], tensors: Tensors | None = None) -> tuple[AliveDevice, ...]:
        """Say what is alive, by the run that made it.

        Parameters
        ----------
        now
            Allocated blocks by device, where an allocator tells; every run's share is then exact, as far as no block
            was freed and another made in its place by something that was not measured. Blocks that are gone are
            dropped for good.
        tensors
            Storages that Python objects hold, for their names, and as the only evidence for other devices.
        """
        devices = []
        for key in sorted({*self._tables, *now}):
            table = self._tables.get(key) or BlockTable()
            blocks = now.get(key)
            if blocks is not None:
                table.retain(*blocks)
                devices.append(self._counted(key, table, blocks, tensors))
            elif len(table):
                devices.append(self._uncounted(key, table, tensors))
        return tuple(devices)

    def _counted(self, key: str, table: BlockTable, blocks: LiveBlocks, tensors: Tensors | None) -> AliveDevice:
        total = int(blocks.size.sum())
        rows = self._rows(key, table, np.ones(len(table), bool), tensors)
        rest = total - int(table.size.sum())
        if rest:
            rows.append(AliveRow(None, rest, len(blocks.address) - len(table)))
        return AliveDevice(key, total, tuple(sorted(rows, key=lambda row: -row.bytes)))

    def _uncounted(self, key: str, table: BlockTable, tensors: Tensors | None) -> AliveDevice:
        held = np.zeros(len(table), bool)
        if tensors is not None:
            addresses = [address for device, address in tensors.names if device == key]
            held = np.isin(table.address, np.array(addresses, np.uint64))
        rows = self._rows(key, table, held, tensors)
        unsure = int(table.size[~held].sum())
        searched = tensors is not None and tensors.complete
        return AliveDevice(key, None, tuple(sorted(rows, key=lambda row: -row.bytes)), unsure, searched)

    def _rows(self, key: str, table: BlockTable, counted: NDArray[np.bool_], tensors: Tensors | None) -> list[AliveRow]:
        which = np.flatnonzero(counted)
        which = which[np.argsort(table.owner[which], kind="stable")]
        owners, first = np.unique(table.owner[which], return_index=True)
        return [  # one sort, not a look at all blocks for each of a thousand runs
            AliveRow(
                self._entries[owner],
                int(table.size[mine].sum()),
                len(mine),
                _names(key, table.address[mine], table.size[mine], tensors),
            )
            for owner, mine in zip(owners.tolist(), np.split(which, first)[1:], strict=True)
        ]

    def _prune(self) -> None:
        excess = len(self._entries) - self._most
        if excess <= 0:
            return
        alive = {owner for table in self._tables.values() for owner in np.unique(table.owner).tolist()}
        for number in sorted(self._entries, key=lambda number: (number in alive, number))[:excess]:
            del self._entries[number]
            self._left_out += 1
            for table in self._tables.values():
                table.forget(number)


def _names(key: str, address: NDArray[np.uint64], size: NDArray[np.int64], tensors: Tensors | None) -> tuple[str, ...]:
    if tensors is None:
        return ()
    names: list[str] = []
    for index in np.argsort(-size, kind="stable").tolist():
        name = tensors.names.get((key, int(address[index])))
        if name and name not in names:
            names.append(name)
            if len(names) == _MOST_NAMES:
                break
    return tuple(names)
