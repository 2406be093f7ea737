"""``%gpumem_timeline``: all measured cells of this kernel on one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from gpumem_magic import _reports
from gpumem_magic._errors import BadUsageError
from gpumem_magic._format import say
from gpumem_magic.magics.arguments import export_path, options_of, unquoted
from gpumem_magic.magics.show import display, written
from gpumem_magic.magics.tools import as_magic

if TYPE_CHECKING:
    from gpumem_magic.analysis.notebook import Run
    from gpumem_magic.magics.auto import Keeper
    from gpumem_magic.report import Report

__all__ = ["TimelineMagics", "register", "unregister"]

_NAME = "gpumem_timeline"


class TimelineMagics:
    """The line magic of one shell."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    @as_magic(
        _NAME,
        argument("--last", type=int, metavar="N", help="only the newest N runs. Default: all that are still held."),
        argument("--export", metavar="FILE.html", help="also write it as a standalone file."),
    )
    def gpumem_timeline(self, line: str) -> None:
        """Draw all measured cells of this kernel on one axis, with memory by the cell that made it.

        Each band above the picture is a cell: a click asks what happened in it, a double click goes to the cell.
        Covers cells under %%gpumem and, after %gpumem_auto on, every cell.
        """
        found = options_of(self.gpumem_timeline, line, "%gpumem_timeline")
        if found.last is not None and found.last < 1:
            raise UsageError("%gpumem_timeline: --last must be at least 1")
        try:
            target = None if found.export is None else export_path(unquoted(found.export))
        except BadUsageError as error:
            raise UsageError(f"%gpumem_timeline: {error}") from None
        report = self._report(found.last)
        if report is None:
            say("gpumem: no measured cell has allocated anything yet; %gpumem_auto on measures every cell")
            return
        if target is not None:
            say(written(report, target))
        display(report, _NAME)

    def _report(self, last: int | None) -> Report | None:
        from dataclasses import replace

        from gpumem_magic.analysis.notebook import Run, notebook_analysis
        from gpumem_magic.recording.model import Note
        from gpumem_magic.report import Report

        entries = self._keeper.entries
        ids = {entry.started_us: entry.cell_id for entry in entries}
        runs: list[Run] = []
        for report in sorted(_reports.kept(), key=lambda report: report.analysis.started_us):
            analysis = report.analysis
            # A block inside a measured cell is part of that cell.
            has_allocations = analysis.drawable and not analysis.is_of_process
            if has_allocations and not (runs and analysis.started_us < runs[-1].analysis.ended_us):
                runs.append(Run(analysis, ids.get(analysis.started_us)))
        if not runs:
            return None
        shown = runs if last is None else runs[-last:]
        notes = []
        lost = len(entries) - len(runs)
        if lost > 0:
            notes.append(Note("info", f"{lost} older {'run is' if lost == 1 else 'runs are'} no longer held"))
        if not self._keeper.is_on:
            notes.append(Note("info", "only cells under %%gpumem are in it; %gpumem_auto on measures every cell"))
        analysis = notebook_analysis(shown)
        return Report(replace(analysis, notes=(*analysis.notes, *notes)))


def register(shell: Any, keeper: Keeper) -> None:
    """Make the line magic known to `shell`."""
    shell.register_magic_function(TimelineMagics(keeper).gpumem_timeline, "line", _NAME)


def unregister(shell: Any) -> None:
    """Take it back."""
    shell.magics_manager.magics["line"].pop(_NAME, None)
