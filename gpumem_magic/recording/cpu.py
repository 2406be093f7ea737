"""Allocations of CPU tensors, through torch's own profiler.

torch keeps no allocator history for the CPU. Its profiler reports every allocation and free with address and time.
With user scope only (no operators) a loop of tiny steps ran 3 % slower; with its default scopes, one second of it made
685,000 events and took 4 s to stop. Asking for an activity that this machine cannot have (MTIA) in place of ``CPU``
spares Kineto's copy of every event: 430,000 events then took 0.6 s to stop in place of 2.2 s (torch 2.13), with the
same tree.

What it cannot see: allocations made in other Python threads, NumPy's memory, and frees of tensors that were made while
nothing was recorded.
"""

from __future__ import annotations

import _thread
import ctypes
import itertools
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from gpumem_magic._format import format_count
from gpumem_magic.recording.interrupts import interrupt_deferred
from gpumem_magic.recording.model import SourceKind
from gpumem_magic.recording.quiet import stderr_without
from gpumem_magic.recording.source import Evidence
from gpumem_magic.recording.ticker import call_every
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from gpumem_magic.recording.notes import Notes
    from gpumem_magic.recording.ticker import Tick
    from gpumem_magic.trace.model import Trace

__all__ = ["CpuSource"]

# Printed by Kineto to descriptor 2: "USDT:… profiler_start" (torch 2.13 on), and a warning that events have no
# counterpart in Kineto's own list, which is what makes this cheap.
_NOISE = re.compile(
    rb"USDT:.*profiler_st(art|op)"
    rb"|Failed to recover relationship between all profiler and kineto events"
    rb"|Memory block of unknown size was allocated before the profiling started"
    rb"|(ActivityProfiler|CuptiActivity|DeviceProperties|output_json|profiler_kineto|init)\w*\.cpp:\d+\]"
)
# The first free of a block from before the recording, and every thousandth after it, makes torch write a warning to
# descriptor 2. We free blocks of our own until it has been written where nobody sees it: 0.6 ms at most. A few more
# than a thousand, because some get addresses that torch still takes for known ones.
_PRIMING_BLOCKS = 1250
# torch's profiler keeps about 50 bytes an event while it runs. When the process has grown by this much for each
# event that is still allowed, it is time to count them.
_BYTES_AN_EVENT = 64
_WATCH_SECONDS = 0.1

# Work for the main thread between two bytecodes. One permanent C callback: one made per call could be collected while
# the interpreter still holds its address.
_jobs: deque[Callable[[], None]] = deque()


# Seconds in which the callback below has surely returned.
_PRESS_AGAIN_SECONDS = 0.02


def _run_jobs(_: object) -> int:
    try:
        with interrupt_deferred():
            while _jobs:
                _jobs.popleft()()
    except KeyboardInterrupt:
        # A C callback cannot raise into the cell, so the button is pressed again when it is back there.
        call_every(0, _press_again, delay=_PRESS_AGAIN_SECONDS)
    return 0


def _press_again() -> bool:
    _thread.interrupt_main()
    return False


_PENDING_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_jobs)


def _is_noise(line: bytes) -> bool:
    return _NOISE.search(line) is not None


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


class CpuSource:
    """Records the allocations of CPU tensors on the thread that starts it.

    Parameters
    ----------
    torch
        The imported module.
    max_entries
        Most events to keep. When more were made, the recording stops there and says so.
    notes
        Where failures and limits are told.
    """

    def __init__(self, torch: ModuleType, max_entries: int, notes: Notes) -> None:
        self.kind = SourceKind.CPU
        self._torch: Any = torch
        self._max_entries = max_entries
        self._notes = notes
        self._rows: list[tuple[int, int, int]] = []
        self._alive: set[int] = set()
        self._running = False
        self._truncated = False
        self._thread = 0
        self._originals: dict[str, Any] = {}
        self._blocks: list[Any] = []
        self._watch: Tick | None = None
        self._base = 0
        self._counting = False

    def start(self) -> None:
        """Start torch's profiler, unless the user's own is running."""
        with self._notes.guard("starting the CPU recording"):
            if self._profiler_is_on():
                self.kind = SourceKind.COUNTERS
                self._notes.warning(
                    "no allocation events: another profiler is already running, and torch allows one at a time; "
                    "stop it to record this cell"
                )
                return
            self._thread = threading.get_ident()
            self._enable()
            self._give_way_to_others()
            self._base = _resident_bytes()
            self._watch = call_every(_WATCH_SECONDS, self._look)

    def stop(self, started_us: int, ended_us: int) -> Evidence:
        """Stop the profiler and turn what it saw into a trace."""
        with self._notes.guard("stopping the CPU recording"):
            if self._watch is not None:
                self._watch.cancel()
            self._restore()
            self._collect()
        if self.kind is not SourceKind.CPU:
            return Evidence()
        trace: Trace | None = None
        with self._notes.guard("reading the CPU recording"):
            trace = _trace_from_rows(self._rows, started_us, ended_us)
        return Evidence(trace, self._truncated)

    # -- torch's profiler ------------------------------------------------------------------------------------------

    def _profiler_is_on(self) -> bool:
        probe = getattr(self._torch._C._autograd, "_profiler_enabled", None)
        return bool(probe()) if probe is not None else False

    def _enable(self) -> None:
        profiler = self._torch.autograd.profiler

        c_profiler = self._torch._C._profiler
        # `config()` of torch's own class fits this torch's ProfilerConfig, whose fields change between versions.
        config = profiler.profile(use_cpu=True, profile_memory=True).config()
        activity = c_profiler.ProfilerActivity
        mtia = getattr(self._torch, "mtia", None)
        absent = getattr(activity, "MTIA", None) if mtia is None or not mtia.is_available() else None
        activities = {absent if absent is not None else activity.CPU}
        autograd = self._torch._C._autograd
        self._blocks = [self._torch.UntypedStorage(1) for _ in range(_PRIMING_BLOCKS)]
        with stderr_without(_is_noise) as held:
            autograd._prepare_profiler(config, activities)
            autograd._enable_profiler(config, activities, {c_profiler.RecordScope.USER_SCOPE})
            self._running = True
            said = held()
            while self._blocks and held() == said:
                del self._blocks[-10:]

    def _collect(self) -> None:
        """Stop the profiler and keep its events, at most `max_entries` in all."""
        if not self._running:
            return
        self._running = False
        with stderr_without(_is_noise):
            result = self._torch._C._autograd._disable_profiler()
        self._blocks.clear()
        room = self._max_entries - len(self._rows)
        with paused_collector():
            seen = _without_foreign_frees(_allocations(result.experimental_event_tree()), self._alive)
            rows = list(itertools.islice(seen, room + 1))
        if len(rows) > room:
            rows.pop()
            self._truncated = True
            self._notes.warning(
                f"only the first {format_count(self._max_entries)} events were kept; "
                f"--max-entries {2 * self._max_entries} keeps more"
            )
        self._rows += rows

    # -- a profiler of the user's own ------------------------------------------------------------------------------

    def _give_way_to_others(self) -> None:
        """While we record, let whoever starts a profiler end ours first: nesting would empty the outer one."""
        profiler = self._torch.autograd.profiler
        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(profiler, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(profiler, name, self._give_way_before(original))

    def _give_way_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def started_by_the_cell(*args: Any, **kwargs: Any) -> Any:
            if self._running and threading.get_ident() == self._thread:
                with self._notes.guard("stopping the CPU recording"):
                    self._collect()
                self._truncated = True
                self._notes.warning(
                    "the cell started a profiler of its own, and torch allows one at a time: events end where it began"
                )
            return original(*args, **kwargs)

        return started_by_the_cell

    def _restore(self) -> None:
        profiler = self._torch.autograd.profiler
        for name, original in self._originals.items():
            setattr(profiler, name, original)
        self._originals.clear()

    # -- bounding --------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Count the events when the process has grown by as much as the allowed number of them would take.

        The profiler cannot be asked how many it holds, and only its own thread can stop it, so the count is taken on
        the main thread between two bytecodes. Nothing of that thread is lost: it allocates nothing meanwhile.
        """
        room = self._max_entries - len(self._rows)
        if self._running and not self._counting and _resident_bytes() - self._base >= room * _BYTES_AN_EVENT:
            self._counting = True
            _jobs.append(self._count)
            ctypes.pythonapi.Py_AddPendingCall(_PENDING_CALL, None)
        return self._running

    def _count(self) -> None:
        # A recording of another thread than the main one cannot be counted, and so not bounded, from here.
        if self._running and threading.get_ident() == self._thread:
            with self._notes.guard("counting the CPU events"):
                self._collect()
                if not self._truncated:
                    self._enable()
            self._base = _resident_bytes()
            self._counting = False


def _allocations(nodes: list[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (nanoseconds, address, signed bytes) of CPU allocation events.

    Depth first, which is the order in time: they are all of one thread.
    """
    stack = [iter(nodes)]
    while stack:
        for node in stack[-1]:
            if node.name == "[memory]":
                fields = node.extra_fields
                if fields.device.type == "cpu":
                    yield node.start_time_ns, fields.ptr, fields.alloc_size
            elif node.children:
                stack.append(iter(node.children))
                break
        else:
            stack.pop()


def _without_foreign_frees(rows: Iterable[tuple[int, int, int]], alive: set[int]) -> Iterator[tuple[int, int, int]]:
    """Drop frees of blocks that were not allocated before in `rows`; `alive` holds the addresses that were.

    torch looks their size up in a table that is kept only while a profiler runs, so it may be the size of another
    block that once had the same address.
    """
    for row in rows:
        if row[2] >= 0:
            alive.add(row[1])
        elif row[1] in alive:
            alive.remove(row[1])
        else:
            continue
        yield row


def _trace_from_rows(rows: list[tuple[int, int, int]], started_us: int, ended_us: int) -> Trace:
    import numpy as np

    from gpumem_magic.trace.model import Action, DeviceTrace, Events, Trace

    time_ns = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    addr = np.fromiter((row[1] for row in rows), np.uint64, len(rows))
    size = np.fromiter((row[2] for row in rows), np.int64, len(rows))
    time_us = time_ns // 1000
    order = np.flatnonzero((time_us >= started_us) & (time_us <= ended_us))
    # A free is two events in torch's history (asked for, done); on the CPU both are the same instant.
    times = np.where(size[order] < 0, 2, 1)
    source = np.repeat(order, times)
    action = np.full(len(source), Action.ALLOC, np.uint8)
    action[size[source] < 0] = Action.FREE_REQUESTED
    action[(np.cumsum(times) - 1)[times == 2]] = Action.FREE_COMPLETED
    count = len(source)
    events = Events(
        action=action,
        addr=addr[source],
        size=np.abs(size[source]),
        stream=np.zeros(count, np.int64),
        time_us=time_us[source],
        stack=np.zeros(count, np.int32),
        pool=np.full(count, -1, np.int32),
    )
    return Trace(devices=(DeviceTrace(device=0, kind="cpu", events=events, has_snapshot=False),) if count else ())
