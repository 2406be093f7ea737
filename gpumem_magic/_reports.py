"""From a recording to the report that a user holds: built once, kept as ``gpumem_magic.last``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem_magic.holders import HolderScan
    from gpumem_magic.recording.model import Recording
    from gpumem_magic.report import Report

__all__ = ["build", "keep", "last"]

_last: Report | None = None


def last() -> Report | None:
    """Return the newest report of this process, or None."""
    return _last


def build(recording: Recording, *, top: int = 5, holders: HolderScan | None = None) -> Report:
    """Build the report of `recording` and keep it as the last one.

    Parameters
    ----------
    recording
        A finished recording.
    top
        Rows of the text report's tables.
    holders
        Who held what after a cell that ran out of memory, when that was looked at.
    """
    # numpy and the analysis come with it: not needed before the first report.
    from gpumem_magic.report import build as build_report

    report = build_report(recording, top=top, holders=holders)
    keep(report)
    return report


def keep(report: Report) -> None:
    """Make `report` the last one."""
    global _last  # noqa: PLW0603 - "the last report of this process" is one thing
    _last = report
