"""What the ledger holds: plain, immutable, no tensor in it. Sizes are bytes, times Unix microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic._format import encodable, printed_encoding

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Group
    from gpumem_magic.recording.model import Outcome

__all__ = ["AliveDevice", "AliveRow", "Entry", "EntryDevice", "LedgerView", "LiveBlocks", "Origin", "Tensors"]


class EntryDevice(NamedTuple):
    """One device of a run, in bytes; None where unknown.

    `peak` is of all that was allocated (on the CPU: of this run's own tensors), `stayed` was allocated in the run and
    was alive at its end, `freed` had been there before. `place` is where the peak was reached, in words.
    """

    key: str
    peak: int | None
    stayed: int | None
    freed: int | None
    place: str = ""


@dataclass(frozen=True)
class Entry:
    """One measured run of a cell. Runs of the same cell are entries of their own.

    Attributes
    ----------
    title
        ``"In [7]"``, or what the user called it with ``--label``.
    execution_count
        The notebook's number of the run, or None.
    cell_id
        The cell's id in the notebook, None where the front end sent none.
    first_line
        The first line of code that is not a magic's.
    outcome, sentence
        How it ended, and the report's first line.
    started_us, seconds
        When, and for how long.
    devices
        The one with the highest peak first.
    run
        The how-manieth measured run of the same cell this is, from 1.
    leak
        The verdict on what this run left, in one sentence, or None.
    cell_key
        What runs of one cell have in common: its id in the notebook, else its text.
    """

    title: str
    execution_count: int | None
    cell_id: str | None
    first_line: str
    outcome: Outcome
    sentence: str
    started_us: int
    seconds: float
    devices: tuple[EntryDevice, ...] = ()
    run: int = 1
    leak: str | None = None
    cell_key: str = ""

    @property
    def peak(self) -> int | None:
        """The highest peak of its devices."""
        return max((device.peak for device in self.devices if device.peak is not None), default=None)

    @property
    def stayed(self) -> int | None:
        """What stayed on all devices; None when it is unknown for one of them."""
        return _sum([device.stayed for device in self.devices])

    @property
    def freed(self) -> int | None:
        """What was freed on all devices; None when it is unknown for one of them."""
        return _sum([device.freed for device in self.devices])


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


class LiveBlocks(NamedTuple):
    """Blocks of one device that are allocated now, as the allocator says; columns of shape ``(n,)``."""

    address: NDArray[np.uint64]
    size: NDArray[np.int64]


class Tensors(NamedTuple):
    """Tensor storages that Python objects hold now.

    `names` says how each is reached, by (device, address). `complete` is False when the search was cut short, so that
    an absent one may yet be alive.
    """

    names: Mapping[tuple[str, int], str]
    complete: bool


class Origin(NamedTuple):
    """Where a block was made: the run, and the line of code, or None when that is unknown."""

    entry: Entry
    line: Group | None

    def __str__(self) -> str:
        if self.line is None:
            return self.entry.title
        label = self.line.label
        # A line of another cell's function says so itself.
        return f"{self.entry.title} {label}" if label.startswith("line ") else f"{self.entry.title} ({label})"


class AliveRow(NamedTuple):
    """What one run made and is alive. `names` are the largest first; `entry` None stands for all that was not seen.

    `last_used` is the last cell that mentions one of the names, where somebody looked.
    """

    entry: Entry | None
    bytes: int
    blocks: int
    names: tuple[str, ...] = ()
    last_used: str | None = None


class AliveDevice(NamedTuple):
    """What is alive on one device, largest row first.

    `total` is torch's count, to which the rows add up; None where torch does not count (the CPU). `unsure` are bytes
    of blocks whose end, if it came, nobody reported: no Python object holds them, as far as the search came
    (`searched`).
    """

    key: str
    total: int | None
    rows: tuple[AliveRow, ...]
    unsure: int = 0
    searched: bool = True


@dataclass(frozen=True)
class LedgerView:
    """The ledger at one moment.

    Attributes
    ----------
    entries
        Measured runs, oldest first.
    alive
        What is alive, by device and by the run that made it.
    text
        The same as ``%gpumem_ledger`` prints it.
    """

    entries: tuple[Entry, ...]
    alive: tuple[AliveDevice, ...]
    text: str

    def __str__(self) -> str:
        # Mostly to be printed.
        return encodable(self.text, printed_encoding())

    def __repr__(self) -> str:
        return str(self)
