"""Allocator events of CUDA devices (and ROCm's, through the same API), from torch's own history.

What torch does, and what follows for us (measured on an H200 with torch 2.11 unless said otherwise):

- Asking for the history initialises the driver behind Python's back, so before CUDA is in use the request waits in
  ``torch.cuda._lazy_call`` and then runs inside torch's own initialisation, before the first allocation.
- ``_cuda_isHistoryEnabled`` before initialisation is a segmentation fault.
- Stopping erases the events: the snapshot comes first.
- Changing the size of a ring that is in use scrambles or corrupts it (read in ``c10/core/RingBuffer.h``).
- Nothing tells how large the user's own ring is. Whether it lost events is seen from the allocator's count of
  allocations.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpumem_magic._format import format_count
from gpumem_magic.recording.emptied import EmptyCalls
from gpumem_magic.recording.model import SourceKind
from gpumem_magic.recording.notes import one_line
from gpumem_magic.recording.readings import cuda_counters, now_us
from gpumem_magic.recording.source import Evidence
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumem_magic.recording.notes import Notes
    from gpumem_magic.recording.options import RecordOptions
    from gpumem_magic.trace.model import Trace

__all__ = ["CudaSource", "snapshot"]

# Both spellings of the C function behind torch.cuda.memory._record_memory_history; the second serves a bool `enabled`.
_RECORD = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
# Freed in a millisecond or two.
_ENTRIES_AT_ONCE = 10_000
# That thread needs the interpreter's lock some five times, and may wait 5 ms for each: before many, it goes first.
_MANY_ENTRIES, _SENDING_SECONDS = 100_000, 0.01


@contextmanager
def _inductor_left_alone(torch: Any) -> Iterator[None]:
    """Keep symbolising from importing ``torch._inductor``: about 880 modules, 4.5 s.

    To name frames of generated code, torch asks ``torch._inductor`` for its code cache, and a lazy attribute then
    imports it. An empty module in its place has no code cache, and nobody else sees it: the lock of the interpreter
    is held by the call.
    """
    if "_inductor" in vars(torch):
        yield
        return
    stub = ModuleType("torch._inductor")
    torch._inductor = stub
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stub:
            del torch._inductor


def snapshot(torch: Any) -> dict[str, Any]:
    """Take torch's memory snapshot with its traces, without the imports that the first one causes."""
    with paused_collector(), _inductor_left_alone(torch):
        taken: dict[str, Any] = torch.cuda.memory._snapshot()
    return taken


class CudaSource:
    """Records all devices of this process.

    Parameters
    ----------
    torch
        The imported module.
    options
        Stacks and size of the ring.
    notes
        Where failures and limits are told.
    initialised
        Called once CUDA is in use, on the thread that initialises it. Must not raise.
    """

    def __init__(
        self, torch: ModuleType | Any, options: RecordOptions, notes: Notes, initialised: Callable[[], None]
    ) -> None:
        self.kind = SourceKind.CUDA
        self._torch: Any = torch
        self._options = options
        self._notes = notes
        self._initialised = initialised
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._armed = False
        self._began = False
        self._ours = False  # the history is on because we switched it on
        self._calling = False  # a call of the recorder is our own
        self._originals: dict[str, Any] = {}
        self._parts: list[tuple[int, dict[str, Any]]] = []
        self._counts: dict[int, int] = {}
        self._kept_until_shown: dict[str, Any] | None = None
        self._empty_calls = EmptyCalls(torch)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the history now, or inside torch's initialisation when CUDA is not in use yet."""
        with self._notes.guard("starting the CUDA recording"):
            self._armed = True
            self._watch_the_recorder()
            self._empty_calls.start()
            if self._torch.cuda.is_initialized():
                self._begin()
            else:
                self._torch.cuda._lazy_call(self._begin)

    def stop(self, started_us: int, ended_us: int) -> Evidence:
        """Take the snapshot, put everything back, and build the trace of the time asked for."""
        evidence = Evidence()
        emptied: tuple[int, ...] | None = None
        with self._notes.guard("noting the calls of empty_cache"):
            emptied = self._empty_calls.stop()
        with self._notes.guard("reading the CUDA recording"), self._lock:
            self._armed = False
            if self._began and self.kind is SourceKind.CUDA:
                evidence = self._evidence(started_us, ended_us)
                if evidence.trace is not None:
                    evidence = evidence._replace(trace=replace(evidence.trace, emptied_us=emptied))
        with self._notes.guard("stopping the CUDA recording"), self._lock:
            if self._ours:
                self._stop_history()
            self._unwatch_the_recorder()
            self._withdraw()
        return evidence

    def _begin(self) -> None:
        """Start, with CUDA in use or being initialised. torch reports what this raises to the user, so it may not."""
        if not self._armed or self._began or os.getpid() != self._process:
            return  # withdrawn, or a forked child that inherited the queue
        with self._notes.guard("starting the CUDA recording"), self._lock:
            self._began = True
            try:
                foreign = bool(self._torch._C._cuda_isHistoryEnabled())
                if not foreign:
                    self._start_history()
                for device in range(self._torch.cuda.device_count()):
                    self._counts[device] = cuda_counters(self._torch, device).allocations
            except RuntimeError as error:
                # cudaMallocAsync and pluggable allocators say so in their own words.
                self.kind = SourceKind.COUNTERS
                self._notes.warning(f"no allocation events, counters only: {one_line(error)}")
            else:
                if foreign:
                    self._notes.info("a memory history was already being recorded; it was left as it is")
            self._initialised()

    def _withdraw(self) -> None:
        queue = getattr(self._torch.cuda, "_queued_calls", None)
        if queue is not None:
            # In place: torch iterates over this very list. Bound methods compare equal, not identical.
            queue[:] = [call for call in queue if call[0] != self._begin]

    def let_go(self) -> None:
        """Free the entries of torch's snapshot, which nobody needs once `stop` has returned.

        That of 600,000 takes 0.1 s, which a report on its way to the screen need not wait for; so they are kept until
        somebody asks for this. They would go by themselves only with the cycle of references that they hang on, and
        each collection until then would walk over them. In parts, so that the thread that sends the report gets its
        turn.
        """
        with self._lock:
            taken, self._kept_until_shown, self._parts = self._kept_until_shown, None, []
        traces = [] if taken is None else taken["device_traces"]
        if sum(map(len, traces)) > _MANY_ENTRIES:
            time.sleep(_SENDING_SECONDS)
        for entries in traces:
            while entries:
                del entries[-_ENTRIES_AT_ONCE:]

    # -- the recorder ----------------------------------------------------------------------------------------------

    def _start_history(self) -> None:
        options = self._options
        wanted = {
            "enabled": "all",
            "context": "all" if options.stacks in {"python", "cpp"} else None,
            "stacks": "all" if options.stacks == "cpp" else "python",
            "max_entries": options.entries,
            # Off until now, so the ring is empty and this costs nothing; it settles the size of a ring before 2.11.
            "clear_history": True,
        }
        record = self._torch.cuda.memory._record_memory_history
        known = inspect.signature(record).parameters
        if "max_entries" not in known:
            raise RuntimeError("this torch has no bounded memory history (2.1 or newer has)")
        self._call_recorder(record, {name: value for name, value in wanted.items() if name in known})
        self._ours = True

    def _stop_history(self) -> None:
        self._call_recorder(self._torch.cuda.memory._record_memory_history, {"enabled": None})
        self._ours = False

    def _call_recorder(self, record: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._calling = True
        try:
            record(**arguments)
        finally:
            self._calling = False

    def _watch_the_recorder(self) -> None:
        """For the length of the cell, notice when it starts or stops a history of its own."""
        for name in _RECORD:
            original = getattr(self._torch._C, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(self._torch._C, name, self._watched(original))

    def _unwatch_the_recorder(self) -> None:
        for name, original in self._originals.items():
            setattr(self._torch._C, name, original)
        self._originals.clear()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called_by_the_cell(*args: Any, **kwargs: Any) -> Any:
            if self._calling or not self._began or os.getpid() != self._process:
                return original(*args, **kwargs)
            enabled = args[0] if args else kwargs.get("enabled")
            with self._lock:
                with self._notes.guard("keeping what was recorded so far"):
                    self._parts.append((now_us(), snapshot(self._torch)))
                    if self._ours:
                        # Off, not resized: a ring in use must not change its size. Off also empties it, so that the
                        # cell's own snapshots show its own events alone.
                        self._stop_history()
                result = original(*args, **kwargs)
                if enabled:
                    self._notes.info("the cell records a memory history of its own; it was left as the cell set it")
                else:
                    with self._notes.guard("going on after the cell stopped its recording"):
                        self._start_history()
                return result

        return called_by_the_cell

    # -- what was seen ---------------------------------------------------------------------------------------------

    def _evidence(self, started_us: int, ended_us: int) -> Evidence:
        counts = {device: cuda_counters(self._torch, device).allocations for device in self._counts}
        last = snapshot(self._torch)
        full = self._ours and any(len(trace) >= self._options.entries for trace in last["device_traces"])
        joined = _join([*self._parts, (ended_us + 1, last)], started_us)
        self._kept_until_shown = last
        truncated = full
        if full:
            self._notes.warning(
                f"more than {format_count(self._options.entries)} events overflowed the ring: the beginning is "
                f"missing; --max-entries {2 * self._options.entries} keeps more"
            )
        elif not self._ours or self._parts:
            lost = _lost(joined, self._counts, counts)
            truncated = lost > 0
            if lost > 0:
                self._notes.warning(
                    f"{format_count(lost)} allocations are missing: the history that the notebook records itself "
                    "keeps too few entries (its max_entries)"
                )
        ours = self._ours and not self._parts
        return Evidence(_trace(joined, ours=ours, has_stacks=self._options.stacks in {"python", "cpp"}), truncated)


def _join(parts: list[tuple[int, dict[str, Any]]], started_us: int) -> dict[str, Any]:
    """Make one snapshot of several: each contributes the events up to its own time, the last the final state."""
    joined = dict(parts[-1][1])
    devices = max(len(part["device_traces"]) for _, part in parts)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    annotations: list[dict[str, Any]] = []
    since = started_us
    for until, part in parts:
        for number, trace in enumerate(part["device_traces"]):
            own = _between(trace, since, until)
            traces[number] = own if len(parts) == 1 else traces[number] + own
        annotations += [
            annotation for annotation in part.get("external_annotations", ()) if since <= annotation["time_us"] < until
        ]
        since = until
    joined["device_traces"] = traces
    joined["external_annotations"] = annotations
    return joined


def _between(trace: list[dict[str, Any]], since: int, until: int) -> list[dict[str, Any]]:
    """Cut off what came before and after. Looks at nothing in between: nearly always there is nothing to cut."""
    first, last = 0, len(trace)
    while first < last and trace[first]["time_us"] < since:
        first += 1
    while last > first and trace[last - 1]["time_us"] >= until:
        last -= 1
    return trace if (first, last) == (0, len(trace)) else trace[first:last]


def _lost(joined: dict[str, Any], before: dict[int, int], after: dict[int, int]) -> int:
    lost = 0
    for number, trace in enumerate(joined["device_traces"]):
        seen = sum(event["action"] == "alloc" for event in trace)
        lost += max(0, after.get(number, 0) - before.get(number, 0) - seen)
    return lost


def _trace(joined: dict[str, Any], *, ours: bool, has_stacks: bool) -> Trace:
    # numpy comes with it: 0.1 s that a cell without torch never pays.
    from gpumem_magic.trace.convert import from_snapshot

    return from_snapshot(joined, kind="cuda", is_whole=ours, has_stacks=has_stacks or not ours)
