"""What a finished recording of one cell (or statement, or ``with`` block) holds: plain, immutable, no tensor in it.

The recorder produces a :class:`Recording`; ``analysis`` turns it into meaning. Nothing here imports torch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from gpumem_magic.trace.model import Trace

__all__ = [
    "Calls",
    "Cell",
    "Counts",
    "DeviceReading",
    "Failure",
    "Marks",
    "Note",
    "Outcome",
    "ProcessMemory",
    "ProcessSamples",
    "ProcessSeries",
    "Recording",
    "Roles",
    "Sample",
    "SourceKind",
]


class SourceKind(enum.Enum):
    """Where the events came from."""

    CUDA = "cuda"  # torch's allocator history (CUDA, and ROCm through the same API)
    CPU = "cpu"  # torch's profiler, allocation events of CPU tensors
    COUNTERS = "counters"  # no events: counters before and after, samples in between
    NONE = "none"  # torch was never used (or is absent)


class Outcome(enum.Enum):
    """How the cell ended."""

    OK = "ok"
    ERROR = "error"
    OUT_OF_MEMORY = "out of memory"
    INTERRUPTED = "interrupted"


class Note(NamedTuple):
    """Something the reader must know. `level` is ``"info"`` or ``"warning"``; `text` is one line."""

    level: str
    text: str


@dataclass(frozen=True)
class Cell:
    """The code that ran.

    Attributes
    ----------
    execution_count
        The notebook's ``In [n]``, None outside IPython.
    label
        What the user called it with ``--label``, or None.
    source
        The text as the user typed it, the magic's line included, so that line numbers agree with tracebacks.
    filenames
        Code object file names that belong to this cell (``co_filename``).
    others
        Earlier cells of the same notebook whose functions ran here: file name → (execution count, source).
    runs
        How often the body ran (more than 1 under ``%%timeit``).
    is_statement
        Whether it is one statement that a line magic measured; `source` is then that statement alone.
    """

    execution_count: int | None
    label: str | None
    source: str
    filenames: tuple[str, ...] = ()
    others: Mapping[str, tuple[int | None, str]] = field(default_factory=dict)
    runs: int = 1
    is_statement: bool = False


@dataclass(frozen=True, eq=False)
class Marks:
    """Which notebook line was running since when, as columns of shape ``(n,)`` in time order.

    Attributes
    ----------
    time_us
        Unix microseconds, int64.
    thread
        Python thread identifier, int64.
    place
        Index into `places`; -1 means that no notebook code was running on that thread, int32.
    places
        Distinct line stacks, innermost first: tuples of (file name, line, function name).
    has_functions
        False when lines inside functions are unknown (Python before 3.12).
    dropped
        Marks that did not fit; 0 when complete.
    last_lines
        Per place, the last line of each of its entries. It differs from the entry's own line where lines ran too
        often to be told apart: the entry then stands for "one of these lines". Empty when every entry is one line.
        A place without entries stands for "notebook code, line unknown".
    foreign
        Threads that Python's ``threading`` did not start: autograd's. They run notebook code (a checkpoint's
        recomputation, a custom backward) only while the thread that called them waits.
    """

    time_us: NDArray[np.int64]
    thread: NDArray[np.int64]
    place: NDArray[np.int32]
    places: tuple[tuple[tuple[str, int, str], ...], ...]
    has_functions: bool = True
    dropped: int = 0
    last_lines: tuple[tuple[int, ...], ...] = ()
    foreign: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Calls:
    """Which of torch's calls was under way since when, as columns of shape ``(n,)`` in time order.

    Attributes
    ----------
    time_us, thread, place
        As in `Marks`; -1 means that none was under way.
    places
        Distinct stacks of calls, innermost first: tuples of (kind, name, class name). `kind` is ``"module"`` (`name`
        is its path, ``model.layers[3]``), ``"backward"``, ``"step"``, ``"zero_grad"`` or ``"loader"``.
    dropped, foreign
        As in `Marks`.
    """

    time_us: NDArray[np.int64]
    thread: NDArray[np.int64]
    place: NDArray[np.int32]
    places: tuple[tuple[tuple[str, str, str], ...], ...]
    dropped: int = 0
    foreign: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Roles:
    """What memory was for, seen by storage while the code ran and after it: columns of shape ``(n,)`` in time order.

    Attributes
    ----------
    time_us
        Moment of each look, Unix microseconds, int64.
    device
        Index into `devices`, int16.
    address
        First byte of the storage, uint64.
    role
        Index into `roles`, uint8. A storage seen in several roles at one moment stands there once, in the first.
    name
        Index into `names`; -1 for none, int32.
    devices, roles, names
        torch's notation of devices; ``"parameter"``, ``"buffer"``, ``"gradient"``, ``"optimizer"``,
        ``"activation"``, ``"input"`` and ``"tensor"`` (held by a variable, purpose unknown); the path of each.
    complete
        True when the look after the code saw every live tensor: what it did not see belongs to no tensor.
    """

    time_us: NDArray[np.int64]
    device: NDArray[np.int16]
    address: NDArray[np.uint64]
    role: NDArray[np.uint8]
    name: NDArray[np.int32]
    devices: tuple[str, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    complete: bool = False


class Counts(NamedTuple):
    """What torch's allocator counted on a device until then.

    `allocations` ever made; `flushes` of the cache, those that gave nothing back included (torch calls them
    ``num_sync_all_streams``); and how many of these were for a request that found no room (`retries`).
    """

    allocations: int
    flushes: int
    retries: int


@dataclass(frozen=True)
class DeviceReading:
    """Counters of one device at one moment, in bytes. None means unknown, and `missing` says why.

    `allocated` and `reserved` are torch's; `process_used` is what this process holds on the device and
    `device_used`, `device_total` what the driver says of the whole device (NVML). `limit` is the most this process
    may reserve (memory fraction), or the device's total. `counts` are None where torch does not count them all.
    """

    device: str
    time_us: int
    allocated: int | None = None
    reserved: int | None = None
    max_allocated: int | None = None
    process_used: int | None = None
    device_used: int | None = None
    device_total: int | None = None
    limit: int | None = None
    name: str | None = None
    uuid: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    counts: Counts | None = None


class Sample(NamedTuple):
    """One reading of the live sampler; None means unknown. `device_used` is the whole device's."""

    time_us: int
    device: str
    allocated: int | None
    reserved: int | None
    device_used: int | None
    process_used: int | None


class ProcessSeries(NamedTuple):
    """What this process held of one kind of memory, sampled: bytes at Unix microseconds, in time order.

    `key` is ``"host"``, ``"child processes"`` or ``"GPU 0"`` (the driver's number). `whole_device` is True where the
    driver does not tell this process's share (`reason`): the bytes are then all processes'. A `reason` where it is
    False says what of this process's is not counted. `highest` is the system's own high-water mark, in bytes, where
    that rose in the cell.
    """

    key: str
    name: str | None
    total: int | None
    time_us: tuple[int, ...]
    used: tuple[int, ...]
    whole_device: bool = False
    reason: str | None = None
    highest: int | None = None


@dataclass(frozen=True)
class ProcessSamples:
    """What this process held while code ran that may not use torch.

    Attributes
    ----------
    series
        One per GPU, for the host, and for the processes that this one started.
    before, after, samples
        JAX's own counters of the devices that keep some.
    remarks
        What the frameworks in use tell or hide.
    looks
        How often memory was read between the first reading and the last: more than the points of a long recording,
        which is thinned. None: as often as the points tell.
    """

    series: tuple[ProcessSeries, ...]
    before: tuple[DeviceReading, ...] = ()
    after: tuple[DeviceReading, ...] = ()
    samples: tuple[Sample, ...] = ()
    remarks: tuple[str, ...] = ()
    looks: int | None = None


class ProcessMemory(NamedTuple):
    """What the driver says of one process on one device; `name` only where the PID means something here.

    `is_child`: this process has started it, or one that has.
    """

    device: str
    pid: int
    used: int | None
    name: str | None
    is_self: bool
    is_child: bool = False


@dataclass(frozen=True)
class Failure:
    """An out-of-memory error as plain values.

    Attributes
    ----------
    text
        Its whole text.
    frames
        Its lines, innermost first: (file name, line, function).
    environment
        The allocator's variables in ``os.environ`` when it happened.
    torch_version
        For example ``"2.11.0+cu130"``, None without torch.
    processes
        Who was on the devices right after it.
    previous_error
        Type of the error that the interpreter kept for inspection when the code began, or None.
    host
        The host right after it; its `DeviceReading.limit` is what this process may address.
    """

    text: str
    frames: tuple[tuple[str, int, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    torch_version: str | None = None
    processes: tuple[ProcessMemory, ...] = ()
    previous_error: str | None = None
    host: DeviceReading | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """A finished recording.

    Attributes
    ----------
    cell
        The code that ran.
    source
        Where events came from.
    outcome
        How it ended; `error` is ``"Type: message"`` of the cell's own exception.
    started_us, ended_us
        Unix microseconds around the user's code alone.
    before, after
        One reading per device.
    trace
        Events between start and end (already cut to this cell), or None.
    marks
        Line marks, or None when ``--stacks none``.
    samples
        Live sampler's readings in time order.
    truncated
        True when the event ring overflowed: the trace then lacks its beginning.
    own_seconds
        What recording itself cost before and after the cell, by name.
    notes
        What the reader must know.
    failure
        The out-of-memory error that ended the code, or that what ended it came from; None without one.
    calls
        Which of torch's calls ran when (modules, backward, optimizer steps), or None where that was not watched.
    roles
        What memory was for, or None where that was not looked at.
    process
        What this process held, sampled; None where torch's own recording tells more, or nobody asked.
    is_measured
        False where nothing was watched and only its end is known.
    """

    cell: Cell
    source: SourceKind
    outcome: Outcome
    started_us: int
    ended_us: int
    before: tuple[DeviceReading, ...] = ()
    after: tuple[DeviceReading, ...] = ()
    trace: Trace | None = None
    marks: Marks | None = None
    samples: tuple[Sample, ...] = ()
    truncated: bool = False
    error: str | None = None
    own_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    failure: Failure | None = None
    calls: Calls | None = None
    roles: Roles | None = None
    process: ProcessSamples | None = None
    is_measured: bool = True
