"""The same measurement without IPython: ``with gpumem_magic.record() as r:`` in scripts, tests and marimo."""

from __future__ import annotations

import inspect
import linecache
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpumem_magic import _reports
from gpumem_magic._errors import LeakError, RecordingError
from gpumem_magic.holders.roles import RoleBook
from gpumem_magic.holders.suspended import locals_of
from gpumem_magic.recording.devices import check_device
from gpumem_magic.recording.interrupts import interrupt_deferred
from gpumem_magic.recording.model import Cell, Note, Outcome
from gpumem_magic.recording.notes import one_line
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.recording.ticker import call_every
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType, ModuleType, TracebackType

    from typing_extensions import Self

    from gpumem_magic.holders import HolderScan
    from gpumem_magic.recording.recorder import LineMarks

__all__ = ["record"]

_GLANCE_SECONDS = 0.15
_LET_GO_SECONDS = 0.5


class record:  # noqa: N801 - used as a function: `with record():`
    """Record a block of code.

    Parameters
    ----------
    label
        What to call it in the report.
    device
        What to show: an ordinal, ``"cuda:1"``, ``"cpu"``; everything that was used when None.
    stacks
        ``"lines"`` (of the file that the block is in), ``"python"``, ``"cpp"`` or ``"none"``.
    assert_no_leak
        Raise `LeakError` at the end of the block when more bytes than this grew with the iterations of a loop in it
        (at least three) and are still there; True stands for 0, None and False for no promise.
    max_entries
        Most events to keep; None for 1,000,000, or 200,000 with stacks.

    Attributes
    ----------
    report
        The report, once the block has ended; also when it raised. None inside the block.

    Raises
    ------
    BadUsageError
        For a device or option that does not exist.
    LeakError
        See `assert_no_leak`; an error of the block's own passes instead.

    Examples
    --------
    >>> import gpumem_magic
    >>> with gpumem_magic.record(label="step") as r:
    ...     y = 1 + 1
    >>> r.report.to_text().startswith("gpumem:")
    True
    """

    def __init__(
        self,
        label: str | None = None,
        *,
        device: str | int | None = None,
        stacks: str = "lines",
        max_entries: int | None = None,
        assert_no_leak: bool | int | None = None,
    ) -> None:
        options = RecordOptions(
            device=None if device is None else str(device), stacks=stacks, max_entries=max_entries, label=label
        )
        check_device(options)
        self.report: Any = None
        self._label = label
        # True is 1 elsewhere.
        allows = isinstance(assert_no_leak, int) and not isinstance(assert_no_leak, bool)
        self._allowed_leak = 0 if assert_no_leak is True else assert_no_leak if allows else None
        self._file = ""
        self._names: Mapping[str, object] = {}
        # Before Python 3.12, lines are known only where IPython lets us change the code before it is compiled.
        has_lines = stacks != "none" and hasattr(sys, "monitoring")
        recorder = Recorder(
            options,
            start_marks=self._start_marks if has_lines else None,
            roles=None if stacks == "none" else RoleBook(lambda: self._names),
            regions=self._regions,
        )
        self._recorder: Recorder | None = recorder
        if stacks == "lines" and not has_lines:
            recorder.notes.info("before Python 3.12, lines need %%gpumem; on CUDA, stacks='python' names them too")

    def __enter__(self) -> Self:
        caller = inspect.currentframe()
        # An ExitStack enters it for somebody.
        while caller is not None and caller.f_globals.get("__name__") in {__name__, "contextlib"}:
            caller = caller.f_back
        self._file = caller.f_code.co_filename if caller is not None else ""
        self._names = caller.f_globals if caller is not None else {}
        if self._recorder is None:
            raise RecordingError("this recording has ended; make a new one with gpumem_magic.record()")
        try:
            with interrupt_deferred():
                self._recorder.start()
        except KeyboardInterrupt:
            # Nobody ends a block that was not entered.
            with interrupt_deferred():
                self._recorder.stop(self._cell(), Outcome.INTERRUPTED)
            self._recorder = None
            raise
        return self

    def _cell(self) -> Cell:
        source = "".join(linecache.getlines(self._file))
        return Cell(execution_count=None, label=self._label, source=source, filenames=(self._file,))

    def _regions(self, torch: ModuleType) -> bool:
        from gpumem_magic.recording.cpu.regions import has_regions

        return has_regions(torch, "".join(linecache.getlines(self._file)), self._names)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.end()
        frame = None
        try:
            with paused_collector():
                with interrupt_deferred():
                    frame = self._frame()
                    if frame is not None:
                        self._names = {**self._names, **dict(locals_of(frame))}
                    recording = recorder.stop(self._cell(), *classify(error))
                scan, note = self._holders(frame)
                if note is not None:
                    recording = replace(recording, notes=(*recording.notes, Note("info", note)))
                self.report = _reports.build(recording, holders=scan)
        except Exception as failure:  # noqa: BLE001 - told in one line; the block's own outcome stands
            print(f"gpumem: the report failed ({one_line(failure)}); the block itself is not affected", file=sys.stderr)  # noqa: T201
            return
        finally:
            # Nothing of the caller's is kept by a block that has ended.
            self._names, frame = {}, None
        # 600,000 entries of torch's snapshot take 0.1 s to go: not while somebody waits for the report.
        call_every(0, partial(_let_go, [recorder]), delay=_LET_GO_SECONDS)
        del recorder
        if self._allowed_leak is not None and error is None:
            from gpumem_magic.analysis.leaks.check import broken_promise, nothing_to_judge

            broken = broken_promise(self.report.analysis, self._allowed_leak)
            if broken is not None:
                raise LeakError(broken)
            unjudged = nothing_to_judge(self.report.analysis)
            if unjudged is not None:
                print(f"gpumem: {unjudged}", file=sys.stderr)  # noqa: T201 - a promise that was not checked is no success

    def _frame(self) -> FrameType | None:
        """Return the frame that the block is in, also where an ExitStack ends it; None when it is not found."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame

    def _holders(self, frame: FrameType | None) -> tuple[HolderScan | None, str | None]:
        """Look what the variables of the calling function and of its module keep; with what is to be said of it."""
        from gpumem_magic.holders import who_holds, with_bounds

        names = frame.f_globals if frame is not None else self._names
        try:
            scan = who_holds(SimpleNamespace(user_ns=dict(names)), budget=_GLANCE_SECONDS, quick=True, function=frame)
            scan = with_bounds(scan, self._names)
        except Exception as error:  # noqa: BLE001 - any object may be hostile; the report stands without names
            return None, f"looking for holders failed ({one_line(error)}); the report leaves them out"
        return scan, f"who holds what stayed: {scan.cut}" if scan.is_cut else None

    def _start_marks(self) -> LineMarks:
        from gpumem_magic.recording import marks

        progress = None if self._recorder is None else self._recorder.progress
        return marks.start(lambda filename: filename == self._file, progress=progress)


def _let_go(kept: list[Recorder]) -> bool:
    kept.pop().let_go()
    return False
