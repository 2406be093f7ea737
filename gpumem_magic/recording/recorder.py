"""Before, during, after: what happens around the user's code.

The recorder never raises into the cell, never initialises a device, and leaves nothing hooked when it has stopped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.counters import CountersSource, device_readings, other_readings
from gpumem_magic.recording.cuda import CudaSource
from gpumem_magic.recording.devices import Target, choose_target, cuda_is_asleep
from gpumem_magic.recording.failure import last_error_name, with_surroundings
from gpumem_magic.recording.imports import ImportWatch, finished_torch, is_torch
from gpumem_magic.recording.model import Outcome, Recording, Sample, SourceKind
from gpumem_magic.recording.notes import Notes
from gpumem_magic.recording.process import CALM_SECONDS, QUICK_SECONDS, ProcessWatch
from gpumem_magic.recording.readings import (
    cpu_reading,
    cuda_counters,
    device_uuid,
    driver_memory,
    now_us,
    unused_cuda_reading,
)
from gpumem_magic.recording.sampler import Sampler, live_line
from gpumem_magic.recording.source import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Protocol

    from gpumem_magic.recording.marks.calls import CallMarks, Looks
    from gpumem_magic.recording.model import Calls, Cell, DeviceReading, Failure, Marks, Note, ProcessSamples, Roles
    from gpumem_magic.recording.options import RecordOptions
    from gpumem_magic.recording.source import Source
    from gpumem_magic.trace.model import Trace

    class LineMarks(Protocol):
        """Notes which notebook line runs since when."""

        @property
        def notes(self) -> tuple[Note, ...]:
            """Why lines are missing or incomplete."""

        def stop(self) -> Marks | None:
            """Stop and return the marks, or None when there are none."""

    class RoleWatch(Looks, Protocol):
        """Sees what memory is for."""

        def end(self) -> None:
            """See everything that is alive."""

        def name_of(self, module: object) -> str | None:
            """Return the notebook's name of a module."""

        def result(self) -> Roles | None:
            """Return what was seen."""


__all__ = ["Recorder"]


@dataclass
class _Attached:
    """What is watched, once torch is there."""

    torch: Any
    target: Target
    source: Source


class Recorder:
    """Records one stretch of code on the thread that starts it. Use it once.

    Parameters
    ----------
    options
        What to record.
    live
        Shows the live line of a long cell; called on another thread. None for no live line.
    start_marks
        Begins to note which line runs; None for no line marks.
    roles
        Sees what memory is for while torch's own calls begin and when the code has ended; None to leave it at lines.
    process
        Sample this process's memory as long as torch does not use CUDA, for code that uses no torch.
    regions
        Tells, given torch, whether the code marks ``record_function`` regions; None for none. They cost something on
        the CPU; on CUDA they come for nothing.
    """

    def __init__(
        self,
        options: RecordOptions,
        *,
        live: Callable[[str], None] | None = None,
        start_marks: Callable[[], LineMarks] | None = None,
        roles: RoleWatch | None = None,
        process: bool = True,
        regions: Callable[[ModuleType], bool] | None = None,
    ) -> None:
        self.notes = Notes()
        self._has_regions = regions
        self._options = options
        self._live = live
        self._start_marks = start_marks
        self._marks: LineMarks | None = None
        self._roles = roles
        self._calls: CallMarks | None = None
        self._attached: _Attached | None = None
        self._import_watch: ImportWatch | None = None
        self._before: tuple[DeviceReading, ...] = ()
        self._after: tuple[DeviceReading, ...] = ()
        self._uuids: dict[int, str | None] = {}
        self._totals: dict[str, int] = {}
        self._has_counters = False
        self._wants_process = process
        self._process: ProcessWatch | None = None
        self._sampler = Sampler(self._sample, self._show if live is not None else None, self.notes)
        self._lock = threading.Lock()
        self._own: dict[str, float] = {}
        self._started_us = 0
        self._previous_error: str | None = None
        self._ended_us: int | None = None

    # -- around the cell -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the readings before, and start everything that watches."""
        began = time.perf_counter()
        self._previous_error = last_error_name()
        torch = finished_torch()
        if torch is not None:
            self._attach(torch)
        else:
            self._import_watch = ImportWatch("torch", self._attach)
            self._import_watch.start()
        if self._start_marks is not None:
            with self.notes.guard("noting which line runs"):
                self._marks = self._start_marks()
        with self.notes.guard("the live line"):
            self._sampler.start()
        with self.notes.guard("sampling this process's memory"):
            self._watch_process(torch)
        self._own["before"] = time.perf_counter() - began
        self._started_us = now_us()

    def _watch_process(self, torch: Any) -> None:
        if self._wants_process and not (torch is not None and torch.cuda.is_initialized()):
            period = QUICK_SECONDS if torch is None else CALM_SECONDS
            self._process = ProcessWatch(self._options, self.notes, period)
            self._process.start()

    def end(self) -> None:
        """Note the end of the user's code, where `stop` cannot come at once."""
        if self._ended_us is None:
            self._ended_us = now_us()

    def stop(
        self, cell: Cell, outcome: Outcome = Outcome.OK, error: str | None = None, failure: Failure | None = None
    ) -> Recording:
        """Stop everything, take the readings after, and return what was recorded.

        Parameters
        ----------
        cell
            The code that ran.
        outcome, error, failure
            How it ended, as `classify` tells it.
        """
        self.end()
        ended_us = self._ended_us or now_us()
        began = time.perf_counter()
        marks: Marks | None = None
        with self.notes.guard("reading the line marks"):
            if self._marks is not None:
                marks = self._marks.stop()
                for note in self._marks.notes:
                    self.notes.add(note)
        if self._calls is not None:
            self._calls.stop()
            for note in self._calls.notes:
                if note.level == "warning":
                    self.notes.add(note)
        if self._import_watch is not None:
            self._import_watch.stop()
        evidence, kind = Evidence(), SourceKind.NONE
        after: tuple[DeviceReading, ...] = ()
        if self._attached is not None:
            evidence = self._attached.source.stop(self._started_us, ended_us)
            kind = self._attached.source.kind
            after = self._read()
        samples: tuple[Sample, ...] = ()
        with self.notes.guard("the live line"):
            samples = self._sampler.stop()
        process: ProcessSamples | None = None
        with self.notes.guard("sampling this process's memory"):
            process = None if self._process is None else self._process.stop()
        calls, roles = self._purposes(evidence)
        before, after = self._paired(after)
        self._after = after
        trace = self._asked_for(evidence.trace)
        if failure is not None:
            with self.notes.guard("asking the driver who is on the devices"):
                failure = with_surroundings(failure, after, self._previous_error)
        self._own["after"] = time.perf_counter() - began
        return Recording(
            cell=cell,
            source=kind,
            outcome=outcome,
            started_us=self._started_us,
            ended_us=ended_us,
            before=before,
            after=after,
            trace=trace,
            marks=marks,
            samples=tuple(sample for sample in samples if self._options.covers(sample.device)),
            truncated=evidence.truncated,
            error=error,
            own_seconds=dict(self._own),
            notes=self.notes.freeze(),
            failure=failure,
            calls=calls,
            roles=roles,
            process=process,
        )

    def let_go(self) -> None:
        """Free what only took time from the report; after `stop`, once the report is on screen."""
        source = None if self._attached is None else self._attached.source
        if isinstance(source, CudaSource):
            source.let_go()

    def _purposes(self, evidence: Evidence) -> tuple[Calls | None, Roles | None]:
        """See what is alive for what, where there were events to tell it of."""
        calls: Calls | None = None
        roles: Roles | None = None
        with self.notes.guard("telling what memory is for"):
            if self._roles is not None and evidence.trace is not None and evidence.trace.devices:
                self._roles.end()
                roles = self._roles.result()
                if self._calls is not None:
                    calls = self._calls.result(self._roles.name_of)
        return calls, roles

    @property
    def progress(self) -> Callable[[], int] | None:
        """Tells the number of allocations so far; None where torch does not count them (CPU tensors)."""
        attached = self._attached
        return self._allocations if attached is not None and attached.target is Target.CUDA else None

    def _allocations(self) -> int:
        attached = self._attached
        if attached is None or not self._has_counters:
            return 0
        return sum(cuda_counters(attached.torch, device).allocations for device in self._uuids)

    def grown_since_stop(self) -> int | None:
        """Return by how many bytes torch's allocations have grown since `stop`, or None where torch does not count."""
        attached = self._attached
        after = {reading.device: reading.allocated for reading in self._after}
        if attached is None or attached.target is not Target.CUDA or None in after.values() or not after:
            return None
        now = {reading.device: reading.allocated for reading in self._read()}
        return sum((now.get(key) or 0) - (value or 0) for key, value in after.items())

    # -- torch -----------------------------------------------------------------------------------------------------

    def _attach(self, torch: ModuleType) -> None:
        """Choose and start a source. Also called while the cell imports torch, so it may not raise."""
        with self._lock, self.notes.guard("starting the recording"):
            if self._attached is not None or self._ended_us is not None or not is_torch(torch):
                return
            target = choose_target(torch, wants_cpu=self._options.wants_cpu)
            self._attached = _Attached(torch, target, self._source(torch, target))
            self._before = self._read()
            self._attached.source.start()
            if self._roles is not None:
                from gpumem_magic.recording.marks.calls import CallMarks  # numpy comes with it

                self._calls = CallMarks(torch, self._roles)

    def _source(self, torch: ModuleType, target: Target) -> Source:
        if target is Target.CUDA:
            return CudaSource(torch, self._options, self.notes, self._cuda_is_in_use)
        if target is Target.CPU and cuda_is_asleep(torch):
            # Measured on an H200: the profiler counts devices through the driver, and a child forked later fails.
            return CountersSource(
                "recording CPU tensors would start the CUDA driver in this process, after which fork launches fail; "
                "call torch.cuda.init() first if nothing is to be forked",
                self.notes,
            )
        if target is Target.CPU:
            if self._options.stacks in {"python", "cpp"}:
                self.notes.info("stacks are recorded for CUDA memory only; CPU memory is shown by line")
            from gpumem_magic.recording.cpu import CpuSource

            regions = False
            if self._has_regions is not None:
                with self.notes.guard("looking for record_function regions"):
                    regions = self._has_regions(torch)
            return CpuSource(torch, self._options.cpu_entries, self.notes, regions=regions)
        return CountersSource(f"torch keeps no allocation history for {target.value.upper()}", self.notes)

    def _cuda_is_in_use(self) -> None:
        """Look up what the sampler may not ask for, because it stays away from the CUDA runtime."""
        if self._process is not None:
            self._process.cancel()
        with self.notes.guard("identifying the devices"):
            attached = self._attached
            if attached is not None:
                cuda = attached.torch.cuda
                for device in range(cuda.device_count()):
                    properties = cuda.get_device_properties(device)
                    self._uuids[device] = device_uuid(properties)
                    self._totals[f"cuda:{device}"] = int(properties.total_memory)
                with contextlib.suppress(RuntimeError):  # a pluggable allocator keeps no statistics
                    cuda_counters(attached.torch, 0)
                    self._has_counters = True

    # -- readings --------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[DeviceReading, ...]:
        attached = self._attached
        readings: tuple[DeviceReading, ...] = ()
        if attached is not None:
            with self.notes.guard("reading the counters"):
                readings = device_readings(attached.torch, attached.target, self.notes)
        for reading in readings:
            if reading.device_total is not None:
                self._totals[reading.device] = reading.device_total
        return readings

    def _paired(self, after: tuple[DeviceReading, ...]) -> tuple[tuple[DeviceReading, ...], tuple[DeviceReading, ...]]:
        """Keep the devices that were asked for and hold or held something; give each a reading before."""
        known = {reading.device: reading for reading in self._before}
        asked = [reading for reading in after if self._options.covers(reading.device)]
        if after and not asked:
            keys = ", ".join(reading.device for reading in after)
            self.notes.warning(f"there is no device {self._options.device} here; this process has {keys}")
        pairs = [
            (known.get(reading.device) or unused_cuda_reading(reading, self._started_us), reading) for reading in asked
        ]
        busy = [pair for pair in pairs if any(reading.reserved != 0 for reading in pair)] or pairs[:1]
        return tuple(before for before, _ in busy), tuple(reading for _, reading in busy)

    def _asked_for(self, trace: Trace | None) -> Trace | None:
        if trace is None:
            return None
        return replace(trace, devices=tuple(device for device in trace.devices if self._options.covers(device.key)))

    # -- the live line ---------------------------------------------------------------------------------------------

    def _sample(self) -> list[Sample]:
        """Read NVML and the allocator's counters; on the ticker's thread."""
        attached = self._attached
        if attached is None or attached.target is Target.CPU:
            reading = cpu_reading()
            return [Sample(reading.time_us, "cpu", None, None, reading.device_used, reading.process_used)]
        if attached.target is not Target.CUDA:
            return [
                Sample(reading.time_us, reading.device, reading.allocated, reading.reserved, None, None)
                for reading in other_readings(attached.torch, attached.target.value)
            ]
        samples = []
        for device, uuid in list(self._uuids.items()):
            allocated, reserved = None, None
            if self._has_counters:
                counters = cuda_counters(attached.torch, device)
                allocated, reserved = counters.allocated, counters.reserved
            if reserved != 0 or len(self._uuids) == 1:
                # The list of processes takes five times the rest, and is of use only where torch does not count.
                memory = driver_memory(uuid, processes=allocated is None)
                key = f"cuda:{device}"
                samples.append(Sample(now_us(), key, allocated, reserved, memory.device_used, memory.process_used))
        return samples

    def _show(self, samples: list[Sample], seconds: float) -> None:
        if self._live is not None:
            self._live(live_line(samples, seconds, self._totals))
