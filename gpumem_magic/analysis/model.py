"""What a recording means: the numbers, bands, rows and markers that every report shows. Plain and immutable.

Sizes are bytes, times Unix microseconds, None means unknown; `DeviceAnalysis.missing` holds the reason under the same
name. "Peak" is always of allocated bytes, as ``torch.cuda.max_memory_allocated`` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.analysis.categories import Categories
    from gpumem_magic.analysis.held import Held
    from gpumem_magic.analysis.leaks.model import Growth, Leak, Once
    from gpumem_magic.analysis.oom.diagnose import OomVerdict
    from gpumem_magic.analysis.oom.state import OomState
    from gpumem_magic.analysis.segments import MemoryRecord
    from gpumem_magic.recording.model import Cell, Outcome, SourceKind
    from gpumem_magic.trace.model import Region, StackTable

__all__ = [
    "Analysis",
    "CellSpan",
    "DeviceAnalysis",
    "Group",
    "GroupKind",
    "Headline",
    "Lane",
    "Marker",
    "Row",
    "SampledCurve",
    "Timeline",
]

GroupKind: TypeAlias = Literal["line", "frame", "before", "unknown", "rounding"]
Origin: TypeAlias = Literal["cell", "statement", "block", "file"]


class Group(NamedTuple):
    """Whose memory: a band of the picture and a row of the tables.

    `kind` is ``"line"`` (a notebook's line), ``"frame"`` (a line of another file, from a recorded stack), ``"before"``
    (alive before the cell), ``"unknown"`` (`reason` says why) or ``"rounding"`` (rounding and unsplit remainders).
    `color` is a palette slot.
    """

    kind: GroupKind
    label: str
    source: str | None = None
    cell: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    reason: str | None = None
    color: int = 0


class Row(NamedTuple):
    """One row of a table: `group` indexes `DeviceAnalysis.groups`; `bytes` in `blocks` allocations."""

    group: int
    bytes: int
    blocks: int


class Marker(NamedTuple):
    """A moment worth a mark: ``"oom"``, ``"retry"``, ``"segment_free"``, ``"overflow"`` or ``"exception"``."""

    time_us: int
    kind: Literal["oom", "retry", "segment_free", "overflow", "exception"]
    text: str


@dataclass(frozen=True, eq=False)
class Lane:
    """A further curve over the same axis; columns of shape ``(n,)``, bytes at Unix microseconds.

    `shape` is ``"step"`` (holds until the next point) or ``"sample"`` (measured at points in time).
    """

    name: Literal["reserved", "device used", "process used", "host used", "pinned host"]
    shape: Literal["step", "sample"]
    time_us: NDArray[np.int64]
    value: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SampledCurve:
    """Bytes where no events exist; columns of shape ``(n,)``.

    `whose` is ``"allocator"`` (allocated bytes, by counters) or ``"process"`` (all that a process holds, from outside).
    """

    time_us: NDArray[np.int64]
    value: NDArray[np.int64]
    whose: Literal["allocator", "process"] = "allocator"


@dataclass(frozen=True, eq=False)
class Timeline:
    """Allocations as lifetimes over a list of changes (an allocation's beginning or end), in time order.

    Attributes
    ----------
    time_us
        Time of each change, never falling, int64, shape ``(changes,)``.
    event
        Index of each change's event in the trace, int32, shape ``(changes,)``.
    allocated
        Bytes before the first change (index 0) and after each, int64, shape ``(changes + 1,)``.
    start, end
        Change at which each lifetime begins (-1: alive before the first one) and ends (-1: alive at the end), int32,
        shape ``(lifetimes,)``, in order of `start`.
    size, requested
        Bytes as `allocated` counts them, and bytes asked for, int64.
    group
        Index into `DeviceAnalysis.groups`, int32.
    stack
        Index into `Analysis.stacks`, int32.
    stream
        Index into `streams`, uint8.
    blocks
        Number of allocations that the lifetime stands for (1 but for residuals, which stand for 0), int32.
    streams
        Stream handles; the 256th and further ones share the last slot.
    """

    time_us: NDArray[np.int64]
    event: NDArray[np.int32]
    allocated: NDArray[np.int64]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    group: NDArray[np.int32]
    stack: NDArray[np.int32]
    stream: NDArray[np.uint8]
    blocks: NDArray[np.int32]
    streams: tuple[int, ...] = ()

    @property
    def changes(self) -> int:
        """Number of changes."""
        return len(self.time_us)

    @property
    def lifetimes(self) -> int:
        """Number of lifetimes."""
        return len(self.start)

    @property
    def preexisting(self) -> int:
        """Number of lifetimes that were there before the first change; they come first."""
        return int(np.searchsorted(self.start, 0, side="left"))

    @cached_property
    def peak_change(self) -> int:
        """First change after which `allocated` is highest; -1 when it was highest before the first change."""
        return int(np.argmax(self.allocated)) - 1

    def alive(self, change: int) -> NDArray[np.bool_]:
        """Return which lifetimes are alive right after `change` (-1: before the first), shape ``(lifetimes,)``."""
        alive: NDArray[np.bool_] = (self.start <= change) & ((self.end == -1) | (self.end > change))
        return alive


@dataclass(frozen=True)
class Headline:
    """The numbers that a person wants first, in bytes. None: unknown, see `DeviceAnalysis.missing`.

    `stayed` was allocated in the cell and is alive at its end; `freed` was there before and is not any more;
    `device_used` is the whole device's and `process_used` this process's, by the driver, at the end; `headroom` is the
    limit less the reserved peak.
    """

    allocated_before: int | None = None
    allocated_peak: int | None = None
    peak_us: int | None = None
    allocated_after: int | None = None
    stayed: int | None = None
    freed: int | None = None
    reserved_before: int | None = None
    reserved_peak: int | None = None
    reserved_after: int | None = None
    device_used: int | None = None
    process_used: int | None = None
    headroom: int | None = None


@dataclass(frozen=True, eq=False)
class DeviceAnalysis:
    """One device of a recording.

    Attributes
    ----------
    key, name, kind
        torch's notation (``"cuda:0"``, ``"cpu"``), the device's own name, and ``"cuda"``, ``"xpu"``, ``"cpu"`` or
        ``"host"``.
    total, limit
        The device's bytes, and the most that this process may reserve.
    events
        Number of recorded events.
    start_us, end_us
        The axis.
    headline
        See `Headline`.
    groups
        Owners of memory.
    peak, end, stayed
        Who was alive at the peak, who at the end, and who of the latter was allocated in the cell; largest first. The
        first two add up exactly to the headline's numbers (a group of kind ``"rounding"`` closes the sum).
    peak_group
        The group whose allocation reached the peak, or None.
    markers, regions, lanes, timeline, sampled
        What is drawn. `sampled` replaces the timeline where there are no events.
    missing
        Reason of each unknown number, by its name in `Headline`.
    exact
        True when every figure follows from the recording alone.
    oom_request, oom_held, oom_group
        Of the last out-of-memory event, or None: bytes that the line asked for, bytes allocated at that moment, and
        the line's group (its own, when it never owned anything).
    oom_state
        What the allocator held at that moment, or None.
    categories
        What memory was for (parameters, activations and so on) and its module; None where nobody looked.
    memory
        Where everything lay, for the map of segments and for other settings; None without a caching allocator.
    growth
        What grew with each iteration, and what stayed for another reason; None where that was not looked for.
    held
        Who holds what stayed, where somebody looked.
    """

    key: str
    name: str | None
    kind: Literal["cuda", "xpu", "cpu", "host"]
    total: int | None
    limit: int | None
    events: int
    start_us: int
    end_us: int
    headline: Headline
    groups: tuple[Group, ...]
    peak: tuple[Row, ...]
    end: tuple[Row, ...]
    stayed: tuple[Row, ...]
    peak_group: int | None
    markers: tuple[Marker, ...]
    regions: tuple[Region, ...]
    lanes: tuple[Lane, ...]
    timeline: Timeline
    sampled: SampledCurve | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True
    oom_request: int | None = None
    oom_held: int | None = None
    oom_group: Group | None = None
    oom_state: OomState | None = None
    categories: Categories | None = None
    memory: MemoryRecord | None = field(default=None, repr=False)
    growth: Growth | None = None
    held: tuple[Held, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Return whether its times are Unix microseconds and not an order (`gpumem_magic.trace.times.in_order`)."""
        return self.start_us > 0


class CellSpan(NamedTuple):
    """One measured run in a recording of several: Unix microseconds, and what its own report says first.

    `cell_id` is the cell's id in the notebook, None where the front end sent none.
    """

    title: str
    execution_count: int | None
    cell_id: str | None
    start_us: int
    end_us: int
    sentence: str


@dataclass(frozen=True, eq=False)
class Analysis:
    """A whole recording.

    Attributes
    ----------
    title
        ``"In [7]"``, the label, or a file's name.
    sentence
        The one line that a tired person can act on, without the ``gpumem:`` prefix.
    origin
        What was recorded.
    outcome, error
        How the cell ended; None for a file.
    cell
        The code that ran; None for a file.
    source
        Where events came from; None for a file.
    started_us, ended_us
        Unix microseconds around the user's code, or of the first and last event.
    devices
        The one with the highest peak first.
    stacks
        Recorded stacks.
    notes
        What the reader must know, warnings first.
    drawable
        False when there is nothing to draw; the sentence then says why.
    oom
        Why memory ran out, or None when it did not.
    cells
        The measured runs of a notebook that lie one behind the other in here; empty for a single recording.
    """

    title: str
    sentence: str
    origin: Origin
    outcome: Outcome | None
    error: str | None
    cell: Cell | None
    source: SourceKind | None
    started_us: int
    ended_us: int
    devices: tuple[DeviceAnalysis, ...]
    stacks: StackTable
    notes: tuple[Note, ...] = ()
    drawable: bool = True
    oom: OomVerdict | None = None
    cells: tuple[CellSpan, ...] = ()

    @property
    def is_of_process(self) -> bool:
        """True where no allocator was watched: what is drawn is all that the process held, seen from outside."""
        return bool(self.devices) and all(
            device.sampled is not None and device.sampled.whose == "process" for device in self.devices
        )

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """Verdicts on all devices: memory that grew with each iteration and is still there."""
        return tuple(leak for device in self.devices if device.growth is not None for leak in device.growth.leaks)

    @property
    def told_leak(self) -> Leak | None:
        """The verdict that the sentence begins with, if any."""
        return next((leak for leak in self.leaks if f"Leak: {leak.sentence}" in self.sentence), None)

    @property
    def once(self) -> tuple[Once, ...]:
        """What stayed from the first iterations of a loop and did not grow: warm-up, optimizer state."""
        return tuple(once for device in self.devices if device.growth is not None for once in device.growth.once)

    @property
    def growth_notes(self) -> tuple[Note, ...]:
        """What grew and what only stayed, as notes; a verdict that the sentence tells is not told again."""
        told = self.told_leak
        looked = [device for device in self.devices if device.growth is not None]
        return tuple(
            note
            for device in looked
            if device.growth is not None
            for note in device.growth.notes(told, f", on {device.key}" if len(looked) > 1 else "")
        )

    @property
    def verdict_notes(self) -> tuple[Note, ...]:
        """What explains an out-of-memory error, and the way out of it or of the leak that the sentence begins with."""
        oom = () if self.oom is None else self.oom.notes()
        told = self.told_leak
        return oom if told is None or not told.remedy else (*oom, Note("info", f"Do: {told.remedy}"))
