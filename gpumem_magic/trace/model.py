"""The recorded allocator history of a process, as columns.

A :class:`Trace` holds one :class:`DeviceTrace` per device that saw events or holds segments. Events are columns
(struct of arrays), stacks and frames are interned once for the whole trace. Times are Unix microseconds, sizes are
bytes, addresses are the device's own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from gpumem_magic.trace.beside import Beside

__all__ = [
    "Action",
    "Block",
    "BlockState",
    "DeviceTrace",
    "Events",
    "Frame",
    "Region",
    "Segment",
    "StackTable",
    "Trace",
]


class Action(enum.IntEnum):
    """What an event says, in torch's words (``c10/cuda/CUDACachingAllocator.h``, ``TraceEntry::Action``)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    ANNOTATE = 9
    UNKNOWN = 255


class BlockState(enum.IntEnum):
    """State of a block in a segment: torch's three strings, as numbers."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2


class Frame(NamedTuple):
    """One frame of a stack: file as recorded, executing line (0 when unknown), function name."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True)
class StackTable:
    """Interned stacks of a trace.

    Attributes
    ----------
    frames
        Distinct frames.
    stacks
        Distinct stacks: indices into `frames`, innermost first. ``stacks[0]`` is always the empty stack, which
        stands for "no stack was recorded".
    """

    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ((),)

    def resolve(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of stack number `stack`, innermost first."""
        return tuple(self.frames[index] for index in self.stacks[stack])


@dataclass(frozen=True, eq=False)
class Events:
    """Events of one device in recorded order; every column has shape ``(n,)``.

    Attributes
    ----------
    action
        `Action` values, uint8.
    addr
        Address; for `Action.OOM` the device's free bytes, uint64.
    size
        Bytes as recorded: requested bytes for allocations and frees, whole bytes for segments, int64.
    stream
        Stream handle, int64.
    time_us
        Unix microseconds, int64.
    stack
        Index into `StackTable.stacks` (0: none), int32.
    pool
        Index into `DeviceTrace.pool_ids`, or -1 where the recording does not tell (torch before 2.12), int32.
    """

    action: NDArray[np.uint8]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    time_us: NDArray[np.int64]
    stack: NDArray[np.int32]
    pool: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.action)


class Block(NamedTuple):
    """A block of a segment at the end of the trace. `requested` is stale for inactive blocks."""

    address: int
    size: int
    requested: int
    state: BlockState
    stack: int


@dataclass(frozen=True)
class Segment:
    """A segment at the end of the trace, its blocks in address order.

    `pool_id` is torch's ``segment_pool_id``: ``(0, 0)`` is the default pool, a non-zero first part a pool that a
    graph capture created, a non-zero second part a ``MemPool`` or ``graph_pool_handle``.
    """

    address: int
    size: int
    stream: int
    is_small: bool
    pool_id: tuple[int, int]
    is_expandable: bool
    stack: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, eq=False)
class DeviceTrace:
    """Events and final state of one device.

    Attributes
    ----------
    device
        Ordinal in the recording process (after ``CUDA_VISIBLE_DEVICES``).
    kind
        ``"cuda"`` (also ROCm), ``"xpu"``, ``"cpu"`` or ``"host"`` (pinned host memory).
    events
        The columns.
    segments
        State at the end, in address order; empty where the source has no segments (CPU).
    pool_ids
        Pools that `Events.pool` refers to.
    has_snapshot
        True when `segments` is the allocator's real final state, so that an empty tuple means "nothing reserved".
    beside
        What its recorder knew besides, where a file says so.
    """

    device: int
    kind: str
    events: Events
    segments: tuple[Segment, ...] = ()
    pool_ids: tuple[tuple[int, int], ...] = ()
    has_snapshot: bool = True
    beside: Beside | None = None

    @property
    def key(self) -> str:
        """Name in torch's notation, for example ``"cuda:0"`` or ``"cpu"``."""
        return self.kind if self.kind in {"cpu", "host"} else f"{self.kind}:{self.device}"


class Region(NamedTuple):
    """A ``record_function`` span. `end_us` is None when it was still open; `start_us` when it opened before."""

    name: str
    device: int
    start_us: int | None
    end_us: int | None


@dataclass(frozen=True, eq=False)
class Trace:
    """Everything one snapshot says.

    Attributes
    ----------
    devices
        Devices with events or segments, by ordinal.
    stacks
        Interned stacks of all devices.
    regions
        ``record_function`` spans (torch 2.5+).
    settings
        torch's ``allocator_settings`` as recorded, empty when absent.
    warnings
        One line each: what is missing or contradictory, in words for the user.
    emptied_us
        When the program called ``empty_cache``, which leaves no event where there is nothing to give back (Unix
        microseconds); None where nobody watched.
    """

    devices: tuple[DeviceTrace, ...]
    stacks: StackTable = field(default_factory=StackTable)
    regions: tuple[Region, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    emptied_us: tuple[int, ...] | None = None
