"""From a recording to the report that a user holds: built once, kept as ``gpumem_magic.last``, found again by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem_magic._errors import BadUsageError

if TYPE_CHECKING:
    import os

    from gpumem_magic.holders import HolderScan
    from gpumem_magic.recording.model import Recording
    from gpumem_magic.report import Report
    from gpumem_magic.report.reading import ExportedReport

__all__ = ["build", "find", "keep", "kept", "last", "read_snapshot"]

# Reports that later magics can still name, the oldest given up first. A million events take about 150 MB.
_MOST_REPORTS = 100
_MOST_BYTES = 400_000_000
_kept: list[Report] = []

_CELL = re.compile(r"(?:In\s*\[\s*)?(\d+)(?:\s*\])?")


def last() -> Report | None:
    """Return the newest report of this process, or None."""
    return _kept[-1] if _kept else None


def kept() -> tuple[Report, ...]:
    """Return the reports that are still held, oldest first."""
    return tuple(_kept)


def read_snapshot(path: str | os.PathLike[str]) -> Report | ExportedReport:
    """Make a report of a file; `last` stays what it is.

    Parameters
    ----------
    path
        A memory snapshot that torch wrote, plain, ``.gz`` or ``.xz``; or an HTML report of ours, read back with what it
        shows.

    Raises
    ------
    SnapshotError
        The file cannot be read or is neither.

    Examples
    --------
    >>> import gpumem_magic
    >>> report = gpumem_magic.read_snapshot("snapshot.pickle")  # doctest: +SKIP
    >>> report.devices[0].headline.allocated_peak  # doctest: +SKIP
    """
    from gpumem_magic.report import build as build_report
    from gpumem_magic.report.reading import is_report, read_report
    from gpumem_magic.trace.reader import read_trace

    file = Path(path).expanduser()
    return read_report(file) if is_report(file) else build_report(read_trace(file), title=file.name)


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


def keep(report: Report, *, instead_of: Report | None = None) -> None:
    """Make `report` the last one, and give up the oldest ones beyond the bounds.

    Parameters
    ----------
    report
        A new one, or one that is kept already.
    instead_of
        The same run's report as it was before more became known: given up, or a run would be compared with itself.
    """
    _kept[:] = [other for other in _kept if other is not report and other is not instead_of]
    _kept.append(report)
    size = 0
    for index in range(len(_kept) - 1, -1, -1):
        size += _kept[index].nbytes
        if index < len(_kept) - 1 and (size > _MOST_BYTES or len(_kept) - index > _MOST_REPORTS):
            del _kept[: index + 1]
            return


def find(name: str) -> Report:
    """Find a kept report by what a person calls it.

    Parameters
    ----------
    name
        ``"3"`` or ``"In [3]"``: the run of that number; else a label. The newest of several, ``"train~1"`` the one
        before it, and so on. ``"last"`` is the newest of all.

    Raises
    ------
    BadUsageError
        No such report is held; the message names those that are.
    """
    base, _, back = name.partition("~")
    if back and not back.isdigit():
        raise BadUsageError(f"{name}: write {base}~1 for the one before, {base}~2 for the one before that")
    found = [report for report in reversed(_kept) if base == "last" or _is_called(report, base)]
    steps = int(back) if back else 0
    if steps < len(found):
        return found[steps]
    if found:
        raise BadUsageError(f"{name}: only {len(found)} of that name {'is' if len(found) == 1 else 'are'} still held")
    names = list(dict.fromkeys(report.title for report in reversed(_kept)))
    held = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    if not held:
        raise BadUsageError(f"{name} is no file, and no cell was measured yet: put %%gpumem on the first line of one")
    raise BadUsageError(f"{name} is neither a file nor a measured cell; held are {held}")


def _is_called(report: Report, name: str) -> bool:
    if report.title == name:
        return True
    number = _CELL.fullmatch(name.strip())
    cell = report.analysis.cell
    return number is not None and cell is not None and cell.execution_count == int(number[1])
