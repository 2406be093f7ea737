"""What the analysis of one device needs beside its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.groups import Place, PlaceNamer
    from gpumem_magic.recording.model import Calls, DeviceReading, Marks, Roles, Sample
    from gpumem_magic.trace.model import Events, Region, StackTable

__all__ = ["OVERFLOW", "DeviceContext", "Placement", "Purpose"]

OVERFLOW = "the event ring overflowed, so the beginning of the cell is missing"


@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """Which line ran at each allocation.

    Attributes
    ----------
    place
        Per event of the device: index into `places`, or ``-1 - k`` for ``reasons[k]``; int32.
    places
        Line stacks, innermost first.
    reasons
        Why a line is unknown.
    last_lines
        See `Marks.last_lines`.
    firsts
        See `gpumem_magic.analysis.lines.Lines`.
    """

    place: NDArray[np.int32]
    places: Sequence[Place]
    reasons: Sequence[str]
    last_lines: Sequence[Sequence[int]] = ()
    firsts: NDArray[np.intp] | None = None

    def last_line(self, place: int, entry: tuple[str, int, str]) -> int:
        """Return the last line that an entry of a place stands for."""
        if not self.last_lines:
            return entry[1]
        return self.last_lines[place][self.places[place].index(entry)]


@dataclass(frozen=True, eq=False, repr=False)
class Purpose:
    """What a recording says of the purpose of memory.

    Attributes
    ----------
    roles, calls, marks
        As in `Recording`.
    """

    roles: Roles | None
    calls: Calls | None
    marks: Marks | None


@dataclass
class DeviceContext:
    """What a device's analysis needs beside its events. `notes` collects what the reader must know."""

    namer: PlaceNamer
    stacks: StackTable
    start_us: int
    end_us: int
    placement: Placement | None = None
    before: DeviceReading | None = None
    after: DeviceReading | None = None
    samples: Sequence[Sample] = ()
    regions: Sequence[Region] = ()
    truncated: bool = False
    is_cell: bool = True
    all_devices: Sequence[tuple[Events, History]] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    purpose: Purpose | None = None
    emptied_us: Sequence[int] | None = None

    def warn(self, text: str) -> None:
        """Add a warning once."""
        note = Note("warning", text)
        if note not in self.notes:
            self.notes.append(note)
