"""Everything that is known about one failed request, from whichever source knows it best.

Order of trust: the recorded event and its replay (exact bytes at the moment), then the error's text (two decimals, the
same moment), then readings after the cell (exact, but later).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.oom.sizes import Size

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Group
    from gpumem_magic.analysis.oom.accidents import Accident
    from gpumem_magic.analysis.oom.message import OomMessage
    from gpumem_magic.analysis.oom.retrial import Retrial
    from gpumem_magic.analysis.oom.settings import SettingsState
    from gpumem_magic.analysis.oom.state import OomState
    from gpumem_magic.recording.model import DeviceReading, ProcessMemory

__all__ = ["USUAL_OUTSIDE", "Evidence", "Neighbour", "gather"]

MIB = 1 << 20
# A context with its kernels and libraries takes 0.3 to 0.9 GiB (0.5 GiB on an H200 with torch 2.11): no finding.
USUAL_OUTSIDE = 1 << 30
Source: TypeAlias = Literal["events", "message", "reading"]


@dataclass(frozen=True)
class Neighbour:
    """Another process on the device; `used` is None where the driver does not tell.

    `is_child`: this process has started it.
    """

    pid: int
    used: int | None
    name: str | None = None
    is_child: bool = False


@dataclass(frozen=True)
class Evidence:
    """What is known of one failed request. Bytes as intervals; None means unknown.

    Attributes
    ----------
    key
        The device in torch's notation.
    backend, kind
        As in `OomMessage`; ``"allocator"`` without a message.
    request
        What the line asked for.
    segment
        What was asked of the driver for it.
    allocated, reserved
        torch's counters at the moment.
    total, limit
        The device's bytes; the most that this process may reserve, None where no limit is set.
    device_free
        What the driver had left.
    process
        All that this process holds on the device.
    outside
        Of that, what lies outside torch.
    others
        What other processes hold.
    unexplained
        `outside` and `others` together, where they cannot be told apart.
    neighbours
        Other processes, as far as visible.
    state
        The allocator's state, where events were recorded.
    line
        The line that asked.
    accidents
        What the notebook kept by accident.
    settings
        Allocator settings, wanted and in force.
    worker
        The error came from this other process.
    retrial
        The same program under another setting, where that was replayed: the first that fits, or else the first tried.
    missing
        What cannot be known, and why: one line each.
    thread
        The error came from this other thread.
    tried
        Every setting that was replayed, the smallest change first.
    is_measured
        The code was measured, so that measuring it is no advice.
    """

    key: str
    backend: str
    kind: str
    request: Size | None = None
    segment: Size | None = None
    allocated: Size | None = None
    reserved: Size | None = None
    private: Size | None = None
    total: Size | None = None
    limit: Size | None = None
    device_free: Size | None = None
    process: Size | None = None
    outside: Size | None = None
    others: Size | None = None
    unexplained: Size | None = None
    neighbours: tuple[Neighbour, ...] = ()
    state: OomState | None = None
    line: Group | None = None
    accidents: tuple[Accident, ...] = ()
    settings: SettingsState | None = None
    worker: str | None = None
    retrial: Retrial | None = None
    missing: tuple[str, ...] = field(default_factory=tuple)
    thread: str | None = None
    tried: tuple[Retrial, ...] = ()
    is_measured: bool = False

    @property
    def obtainable(self) -> Size | None:
        """Bytes that the driver would still have given: what is free, and not beyond the limit."""
        room = None if self.limit is None or self.reserved is None else self.limit.minus(self.reserved)
        known = [size for size in (room, self.device_free) if size is not None]
        return min(known, key=lambda size: size.value) if known else None

    @property
    def shortfall(self) -> int | None:
        """Bytes by which the driver's rest was too small for the segment."""
        if self.segment is None or self.obtainable is None:
            return None
        return max(self.segment.value - self.obtainable.value, 0)

    @property
    def children(self) -> tuple[Neighbour, ...]:
        """Processes that this one has started and that hold memory of the device."""
        return tuple(one for one in self.neighbours if one.is_child and one.used)

    @property
    def taken(self) -> int | None:
        """Bytes that torch had of the device at another time of the recording, and that something else had by then.

        None where the recording does not show that: the driver had room, or torch never held as much as it asked for.
        """
        state, free = self.state, self.device_free
        if state is None or free is None or state.device_free >= state.segment:
            return None
        if state.reserved + state.segment > state.reached:
            return None
        return state.reached - state.reserved - state.device_free


def gather(
    key: str,
    *,
    message: OomMessage | None,
    state: OomState | None,
    reading: DeviceReading | None,
    processes: tuple[ProcessMemory, ...] = (),
    line: Group | None = None,
    accidents: tuple[Accident, ...] = (),
    settings: SettingsState | None = None,
    is_measured: bool = False,
) -> Evidence:
    """Put the sources together.

    Parameters
    ----------
    key
        The device.
    message, state, reading, processes
        What the error says, what the events say, what the counters said after the cell, and who was on the devices;
        each may be absent. A message from a worker process excludes the others, which are of this process.
    line, accidents, settings, is_measured
        As in `Evidence`.
    """
    backend = message.backend if message is not None else key.split(":", 1)[0]
    request, segment = _sizes(message, state)
    allocated, reserved = _counters(message, state, reading)
    total = (message and message.total) or _total(reading)
    limit = _limit(message, reading)
    device_free = _device_free(message, state, reading)
    process = (message and message.this_process) or _own_by_list(message, reserved)
    if process is None and (message is None or message.worker is None):
        process = _exact(reading.process_used if reading is not None else None)
    outside = process.minus(reserved) if process is not None and reserved is not None else None
    others, unexplained = None, None
    if total is not None and device_free is not None:
        rest = total.minus(device_free)
        if process is not None:
            others = rest.minus(process)
        elif reserved is not None:
            unexplained = rest.minus(reserved)
    if backend == "mps" and message is not None:
        outside, others, unexplained = message.other, None, None
    if backend == "cpu":
        outside, unexplained = None, None
    return Evidence(
        key=key,
        backend=backend,
        kind=message.kind if message is not None else "allocator",
        request=request,
        segment=segment,
        allocated=allocated,
        reserved=reserved,
        private=_exact(state.private) if state is not None else None,
        total=total,
        limit=limit,
        device_free=device_free,
        process=process,
        outside=outside,
        others=others,
        unexplained=unexplained,
        neighbours=_neighbours(key, message, processes, process),
        state=state,
        line=line,
        accidents=accidents,
        settings=settings,
        worker=message.worker if message is not None else None,
        missing=_missing(message, state, process, total, backend),
        thread=message.thread if message is not None else None,
        is_measured=is_measured,
    )


def _exact(count: int | None) -> Size | None:
    return None if count is None else Size.exact(max(count, 0))


def _total(reading: DeviceReading | None) -> Size | None:
    if reading is None:
        return None
    # A limit without a total is the device's own size.
    return _exact(reading.device_total if reading.device_total is not None else reading.limit)


def _sizes(message: OomMessage | None, state: OomState | None) -> tuple[Size | None, Size | None]:
    if state is not None:
        return Size.exact(state.requested), Size.exact(state.segment)
    if message is None or message.tried is None:
        return None, None
    tried = message.tried
    if message.kind in {"host", "rejected", "library"} or message.backend == "mps":
        return tried, tried
    # The text names the segment: 2 MiB for anything up to 1 MiB, 20 MiB below 10 MiB, else a multiple of 2 MiB.
    if tried.value == 2 * MIB:
        return Size(1, MIB), tried
    if tried.value == 20 * MIB:
        return Size(MIB + 1, 20 * MIB), tried
    return Size(max(tried.low - 2 * MIB + 1, 1), tried.high), tried


def _counters(
    message: OomMessage | None, state: OomState | None, reading: DeviceReading | None
) -> tuple[Size | None, Size | None]:
    if state is not None:
        return Size.exact(state.allocated), Size.exact(state.reserved)
    if message is not None and message.allocated is not None:
        if message.backend == "mps":
            # The limit counts both.
            return message.allocated, message.allocated.plus(message.other or Size.exact(0))
        return message.allocated, message.reserved
    if message is not None and message.worker is not None:
        return None, None
    if reading is None:
        return None, None
    return _exact(reading.allocated), _exact(reading.reserved)


def _limit(message: OomMessage | None, reading: DeviceReading | None) -> Size | None:
    if message is not None and message.allowed is not None:
        return message.allowed
    if reading is None or reading.limit is None or reading.device_total is None:
        return None
    # The driver's total and torch's differ by what the driver keeps for itself; a fraction near one limits nothing.
    return Size.exact(reading.limit) if reading.limit < 0.97 * reading.device_total else None


def _device_free(message: OomMessage | None, state: OomState | None, reading: DeviceReading | None) -> Size | None:
    if state is not None:
        return Size.exact(state.device_free)
    if message is not None and message.free is not None:
        return message.free
    if reading is None or reading.device_total is None or reading.device_used is None:
        return None
    return Size.exact(max(reading.device_total - reading.device_used, 0))


def _own_by_list(message: OomMessage | None, reserved: Size | None) -> Size | None:
    """Find this process among the listed ones: in a container torch does not recognise its own number.

    It holds at least what torch reserved; when exactly one listed process does, that is this one.
    """
    if message is None or reserved is None or "this_process" not in message.missing:
        return None
    fitting = [use.used for use in message.processes if use.used is not None and use.used.high >= reserved.low]
    return fitting[0] if len(fitting) == 1 and reserved.value >= 64 * MIB else None


def _neighbours(
    key: str, message: OomMessage | None, processes: tuple[ProcessMemory, ...], process: Size | None
) -> tuple[Neighbour, ...]:
    names = {one.pid: (one.name, one.is_child) for one in processes}
    if message is not None and message.processes:
        found = [
            Neighbour(use.pid, use.used and use.used.value, *names.get(use.pid, (None, False)))
            for use in message.processes
        ]
        if message.this_process is None and process is not None:
            found = [one for one in found if one.used != process.value]
    else:
        found = [
            Neighbour(one.pid, one.used, one.name, one.is_child)
            for one in processes
            if one.device == key and not one.is_self
        ]
    return tuple(sorted(found, key=lambda one: -(one.used or 0)))


def _missing(
    message: OomMessage | None, state: OomState | None, process: Size | None, total: Size | None, backend: str
) -> tuple[str, ...]:
    gone = []
    if message is not None and message.worker is not None:
        gone.append(f"it happened in {message.worker}, whose memory is not recorded here")
    elif state is None and backend in {"cuda", "hip", "xpu"}:
        gone.append("without recorded events: who held the memory by line, and the largest free piece, are unknown")
    elif backend == "mps":
        gone.append("MPS records no events: who held the memory is unknown")
    if backend in {"cuda", "hip"} and process is None:
        gone.append("the driver does not tell this process from others, nor what lies outside torch")
    if state is not None and total is None and state.device_free < state.segment:
        own = state.reserved + state.device_free + USUAL_OUTSIDE
        gone.append(
            f"how large the card is: on one of more than {format_bytes(own)}, other processes or libraries hold the "
            "rest, and freeing tensors is not the cure"
        )
    if message is not None and backend != "cpu":
        gone.extend(
            reason[0].upper() + reason[1:] for name, reason in message.missing.items() if "the message says" in reason
        )
    return tuple(dict.fromkeys(gone))
