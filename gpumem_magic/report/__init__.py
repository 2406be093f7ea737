"""Reports: one analysis, shown as text, picture, HTML and view document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.analysis import analyse, analyse_trace
from gpumem_magic.recording.model import Recording
from gpumem_magic.report.report import Report

if TYPE_CHECKING:
    from gpumem_magic.holders import HolderScan
    from gpumem_magic.trace.model import Trace

__all__ = ["Report", "build"]


def build(
    source: Recording | Trace, *, title: str | None = None, top: int = 5, holders: HolderScan | None = None
) -> Report:
    """Make the report of a cell's recording or of a trace from a file.

    Parameters
    ----------
    source
        What was recorded.
    title
        Name for a trace's report, usually the file's; a recording knows its own.
    top
        Rows of the table in text form.
    holders
        Who held what after a cell that ran out of memory, when that was looked at.

    Returns
    -------
    Report
        Finished and immutable.
    """
    if isinstance(source, Recording):
        return Report(analyse(source, holders=holders), top)
    return Report(analyse_trace(source, title or "snapshot"), top)
