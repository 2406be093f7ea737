"""One measurement in a shell: the recorder, its live line, and the report at the end."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumem_magic import _reports
from gpumem_magic._format import format_bytes, format_count, say
from gpumem_magic.magics.explain import SCAN_SECONDS, look, look_after_failure
from gpumem_magic.magics.lines import MAGIC_CODE, CellLines
from gpumem_magic.magics.live import live_line_for
from gpumem_magic.magics.remarks import held_by_error, leftover_notes, remarks
from gpumem_magic.magics.show import show_report
from gpumem_magic.magics.warmup import no_warm_up, own_imports, warm_up_later
from gpumem_magic.recording.interrupts import interrupt_deferred
from gpumem_magic.recording.model import Cell, Note, SourceKind
from gpumem_magic.recording.notes import one_line
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Mapping
    from types import ModuleType

    from gpumem_magic.analysis.model import Analysis
    from gpumem_magic.book import Origin
    from gpumem_magic.holders import HolderScan
    from gpumem_magic.holders.roles import RoleBook
    from gpumem_magic.holders.scratch import Scratch
    from gpumem_magic.magics.arguments import Request
    from gpumem_magic.magics.code import Compiled
    from gpumem_magic.magics.remarks import Leftover
    from gpumem_magic.recording.model import Recording
    from gpumem_magic.recording.recorder import LineMarks
    from gpumem_magic.report import Report

__all__ = ["Measurement"]

# What the notebook's names reach is found in milliseconds; a notebook with a million objects does not wait for more.
_GLANCE_SECONDS = 0.15


class Measurement:
    """Measures once; runs of the same text after the first one are only counted.

    Parameters
    ----------
    shell
        The running IPython shell.
    request
        What the magic's line asks for.
    cells
        Returns the file names of the notebook's cells.
    book
        Enters a recording and its report in the ledger, with the cell's id and who holds what, and returns the report
        with what the ledger knows of earlier runs.
    idle
        Says which of some variables no recent cell used, and when they were used last.
    cleared
        Corrects the ledger once the names of a scratch cell are gone, with who holds what after that.
    origin
        Which run made the block at (device, address).

    Attributes
    ----------
    hooks
        Undone when the measurement ends.
    again
        The text, compiled for runs after the first.
    request
        As given.
    broken_promise
        What leaked although the magic's line said that nothing would, in one line; None otherwise.
    lines
        Which lines of the cell other magics compile by themselves.
    """

    def __init__(
        self,
        shell: Any,
        request: Request,
        cells: Callable[[], Container[str]],
        book: Callable[[Recording, Report, str | None, HolderScan | None], Report],
        *,
        idle: Callable[[Collection[str]], Mapping[str, str]] = lambda _: {},
        cleared: Callable[[HolderScan], None] = lambda _: None,
        origin: Callable[[str, int], Origin | None] = lambda _device, _address: None,
    ) -> None:
        self.hooks = ExitStack()
        self.again: Compiled | None = None
        self.lines = CellLines()
        self.broken_promise: str | None = None
        self._shell = shell
        self._scratch: Scratch | None = None
        self.request = request
        self._cells = cells
        self._book = book
        self._idle = idle
        self._correct = cleared
        self._origin = origin
        self._leftovers: tuple[Leftover, ...] = ()
        self._has_failed = False
        self._live = None if request.quiet else live_line_for(shell)
        self._runs = 0
        self._is_running = False
        self._recording: Recording | None = None
        self._recorder = Recorder(
            request.record,
            live=None if self._live is None else self._live.show,
            start_marks=None if request.record.stacks == "none" else self._start_marks,
            roles=None if request.brief or request.record.stacks == "none" else _role_book(shell),
            process=not request.brief,
            regions=self._regions,
        )
        self._text = ""

    @property
    def is_running(self) -> bool:
        """True between `begin` and `finish`."""
        return self._is_running

    def begin(self, text: str) -> None:
        """Start recording what `text` will do."""
        self._text = text
        self._is_running = True
        if self.request.scratch:
            from gpumem_magic.holders.scratch import Scratch

            self._scratch = Scratch(self._shell, self.request.keep)
        if not self.request.brief:
            self._leftovers = held_by_error(self._shell, self._origin)
        if not self.request.quiet:
            warm_up_later()
        with own_imports():
            self._recorder.start()

    def count(self, runs: int = 1) -> None:
        """Note that the text ran `runs` times (more)."""
        self._runs += runs

    def finish(self, error: BaseException | None, cell: Cell) -> None:
        """Stop recording, with the exception that ended the text, if any; show nothing yet."""
        self._recorder.end()
        no_warm_up()
        self._is_running = False
        self._has_failed = error is not None
        if self._scratch is not None:
            self._scratch.seal()
        with interrupt_deferred():
            self.hooks.close()
            recording = self._recorder.stop(cell, *classify(error))
            if self._live is not None:
                self._live.clear()
        self._recording = self._with_cell_lines(recording)

    def abandon(self) -> None:
        """Stop without a report."""
        if self._is_running:
            self.finish(None, Cell(execution_count=None, label=None, source=""))
            self._recorder.let_go()
        self._recording = None

    def show(self, cell_key: Hashable = None, cell_id: str | None = None) -> None:
        """Show the report as the last output. Our own failure is one line, never an error of the cell.

        Parameters
        ----------
        cell_key
            Names the cell for its widget.
        cell_id
            Names the cell for the ledger.
        """
        if self._recording is None:
            return
        try:
            self._report(self._recording, cell_key, cell_id)
        except Exception as error:  # noqa: BLE001 - told in one line; the cell's own result stands
            what = "the cell itself is not affected"
            if self.request.allowed_leak is not None:
                what += ", and whether it leaks was not checked"
            say(f"gpumem: the report failed ({one_line(error)}); {what}")
        finally:
            try:
                # What a scratch cell promises holds without a report, too.
                self._clear()
            finally:
                with interrupt_deferred():
                    self._recorder.let_go()

    def _report(self, recording: Recording, cell_key: Hashable, cell_id: str | None) -> None:
        """Build, enter and show the report.

        Parameters
        ----------
        recording
            What was recorded.
        cell_key, cell_id
            As for `show`.
        """
        recording = self._with_runs(recording)
        if self.request.brief:
            if not _saw_memory(recording) and recording.failure is None:
                return  # most cells: neither numpy nor the analysis is needed
            from gpumem_magic.report import build

            scan = None if recording.failure is None else self._holders(recording)
            self._book(recording, build(recording, top=self.request.top, holders=scan), cell_id, scan)
            return
        holders = self._holders(recording)
        from gpumem_magic.book.intake import text_key

        runs_key = cell_id or text_key(recording.cell.source)
        left = leftover_notes(self._leftovers, holders, runs_key)
        recording = replace(recording, notes=(*recording.notes, *left, *_cut_short(holders)))
        report = _reports.build(recording, top=self.request.top, holders=holders)
        report = self._judged(self._book(recording, report, cell_id, holders), recording, holders, runs_key)
        show_report(self._cleared(recording, report), self.request, cell_key)

    def _judged(self, report: Report, recording: Recording, holders: HolderScan | None, runs_key: str) -> Report:
        """Look more closely at a leak that nothing explains yet, and see whether the magic's line allows it."""
        if any(not leak.is_explained for leak in report.leaks):
            from gpumem_magic.analysis.leaks import with_keepers

            scan = look(self._shell, SCAN_SECONDS, quick=False)
            if scan is not None:
                analysis = with_keepers(report.analysis, scan)
                # What the first look was cut short of, this one may have found.
                notes = (*(note for note in analysis.notes if note not in _cut_short(holders)), *_cut_short(scan))
                report = _replaced(report, replace(analysis, notes=notes))
        more: tuple[Note, ...]
        try:
            more = remarks(recording, report.analysis, holders, runs_key)
        except Exception as error:  # noqa: BLE001 - any object may be hostile; the numbers stand without remarks
            more = (Note("info", f"models and optimizers were not looked at ({one_line(error)})"),)
        if more:
            report = _replaced(report, replace(report.analysis, notes=(*more, *report.analysis.notes)))
        if self.request.allowed_leak is not None:
            from gpumem_magic.analysis.leaks.check import broken_promise, nothing_to_judge

            self.broken_promise = broken_promise(report.analysis, self.request.allowed_leak)
            unjudged = nothing_to_judge(report.analysis)
            if unjudged is not None:
                notes = (Note("warning", unjudged), *report.analysis.notes)
                report = _replaced(report, replace(report.analysis, notes=notes))
        return report

    def _cleared(self, recording: Recording, report: Report) -> Report:
        """Remove what a scratch cell created, and say what that gave back; the report notes that it came before."""
        if self._scratch is None:
            return report
        from gpumem_magic.magics.stayed import blocks_that_stayed

        stayed = blocks_that_stayed(recording, report.analysis)
        self._clear(stayed)
        if stayed:
            note = Note("info", "what stayed is as the cell left it, before --scratch freed it")
            report = _replaced(report, replace(report.analysis, notes=(note, *report.analysis.notes)))
        return report

    def _clear(self, stayed: Mapping[tuple[str, int], int] | None = None) -> None:
        """Remove what a scratch cell created, unless that is done, and say what became of its memory.

        Parameters
        ----------
        stayed
            Size of each block that was alive when the cell ended, by (device, address); None where that is not known.
        """
        scratch, self._scratch = self._scratch, None
        if scratch is None:
            return
        from gpumem_magic.holders.scratch import scratch_text
        from gpumem_magic.magics.stayed import unowned

        freed = scratch.end(failed=self._has_failed)
        if stayed is None:
            say(scratch_text(scratch, freed, unknown="there is no report of the cell"))
            return
        scan = look(self._shell, SCAN_SECONDS, quick=False) if stayed else None
        if scan is None:
            unknown = "the search failed" if stayed else None
            say(scratch_text(scratch, freed, unknown=unknown))
            return
        remains = scratch.remains(stayed, scan)
        # Where the search was cut short, what it did not find may well have an owner.
        rest = unowned(stayed, remains) if scan.cut is None else {}
        say(scratch_text(scratch, freed, remains, rest, unknown=scan.cut))
        self._correct(scan)

    def _holders(self, recording: Recording) -> HolderScan | None:
        """Look who holds what stayed; thoroughly when memory ran out, as it may be held by accident."""
        if recording.failure is not None:
            return look_after_failure(self._shell, recording.cell.source, self._idle)
        if recording.trace is None or not recording.trace.devices:
            return None
        return look(self._shell, _GLANCE_SECONDS, quick=True)

    def _with_cell_lines(self, recording: Recording) -> Recording:
        if not self.lines or not recording.cell.filenames:
            return recording
        file, marks, trace = recording.cell.filenames[0], recording.marks, recording.trace
        if marks is not None:
            marks = self.lines.marks(file, marks)
        if trace is not None:
            trace = replace(trace, stacks=self.lines.stacks(file, trace.stacks))
        return replace(recording, marks=marks, trace=trace)

    def _with_runs(self, recording: Recording) -> Recording:
        if self._runs < 2:
            return recording
        text = f"the cell ran {format_count(self._runs)} times"
        if self.again is not None:
            text = f"{text}; the first run is shown"
            grown = self._recorder.grown_since_stop()
            if grown is not None:
                text = f"{text}, each later one left {format_bytes(grown / (self._runs - 1), signed=True)}"
        cell = replace(recording.cell, runs=self._runs)
        return replace(recording, cell=cell, notes=(*recording.notes, Note("info", text)))

    def _regions(self, torch: ModuleType) -> bool:
        from gpumem_magic.recording.cpu.regions import has_regions

        return has_regions(torch, self._text, self._shell.user_ns)

    def _start_marks(self) -> LineMarks:
        from gpumem_magic.recording import marks

        watch = marks.start(
            lambda filename: filename in self._cells() or filename in MAGIC_CODE, progress=self._recorder.progress
        )
        if watch.transformer is not None:
            transformers = self._shell.ast_transformers
            transformers.append(watch.transformer)
            self.hooks.callback(_remove, transformers, watch.transformer)
        return watch


def _cut_short(scan: HolderScan | None) -> tuple[Note, ...]:
    """Say that a search for holders ended early, so that nobody takes a missing holder for none."""
    if scan is None or not scan.is_cut:
        return ()
    return (Note("info", f"who holds what stayed: {scan.cut}; %gpumem_who --budget 10 looks longer"),)


def _replaced(report: Report, analysis: Analysis) -> Report:
    """Keep a report that knows more in place of the one that it was."""
    more = replace(report, analysis=analysis)
    _reports.keep(more, instead_of=report)
    return more


def _role_book(shell: Any) -> RoleBook:
    from gpumem_magic.holders.roles import RoleBook  # not needed before the first measured cell

    return RoleBook(lambda: shell.user_ns)


def _saw_memory(recording: Recording) -> bool:
    """Tell whether there may be something to say: an event, or counters that were read."""
    if recording.source in {SourceKind.COUNTERS, SourceKind.CUDA} and recording.after:
        return True
    return recording.trace is not None and bool(recording.trace.devices)


def _remove(transformers: list[Any], transformer: Any) -> None:
    # IPython takes a transformer out by itself when it fails.
    if transformer in transformers:
        transformers.remove(transformer)
