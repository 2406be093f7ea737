"""``%gpumem_diff``: what changed between two measured cells, two runs of one, or two files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from gpumem_magic import _reports
from gpumem_magic._errors import BadUsageError, GpumemError
from gpumem_magic._format import say
from gpumem_magic.magics.arguments import export_path, options_of, unquoted
from gpumem_magic.magics.show import display, written
from gpumem_magic.magics.tools import as_magic

if TYPE_CHECKING:
    from gpumem_magic.report import Report
    from gpumem_magic.report.reading import ExportedReport

__all__ = ["DiffMagics", "operand", "register", "unregister"]

_NAME = "gpumem_diff"


def operand(name: str) -> Report | ExportedReport:
    """Read a file, or find a kept report."""
    try:
        is_file = Path(name).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        is_file = False
    if not is_file:
        return _reports.find(name)
    return _reports.read_snapshot(name)


def _former() -> Report:
    """Find what the last report is best compared with: the run of the same cell before it, else the report before."""
    reports = _reports.kept()
    if len(reports) < 2:
        raise BadUsageError(
            f"two measured runs are needed, and so far there is {len(reports) or 'none'}: "
            "run a cell with %%gpumem on its first line, or name two files"
        )
    newest = reports[-1].analysis.cell
    for report in reversed(reports[:-1]):
        cell = report.analysis.cell
        if (
            cell is None
            or newest is None
            or ((cell.label, newest.label) == (None, None) and cell.source != newest.source)
        ):
            continue
        if cell.label == newest.label:
            return report
    return reports[-2]


class DiffMagics:
    """The line magic of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @as_magic(
        _NAME,
        argument("a", nargs="?", metavar="A", help="the earlier one. Default: the run of B's cell before B."),
        argument("b", nargs="?", metavar="B", help="the later one. Default: the last measured cell."),
        argument("--export", metavar="FILE.html", help="also write both side by side as a standalone file."),
        argument("--top", type=int, default=10, metavar="N", help="rows of the text form, 0 for all. Default: 10."),
        expands=True,
    )
    def gpumem_diff(self, line: str) -> None:
        """Compare two recordings side by side: who grew and who shrank, at each one's peak and at its end.

        A and B are numbers of measured cells (3), labels (--label), or files: snapshots of torch, and HTML reports of
        gpumem_magic. "train~1" is the run before the newest one called "train"; "last" is the newest report.
        """
        from gpumem_magic.report.comparison import Comparison

        found = options_of(self.gpumem_diff, line, "%gpumem_diff")
        names = [unquoted(name) for name in (found.a, found.b) if name is not None]
        try:
            target = None if found.export is None else export_path(unquoted(found.export))
            a = operand(names[0]) if names else _former()
            b = operand(names[1]) if len(names) == 2 else _reports.find("last")
            comparison = Comparison(a, b, max(0, found.top))
        except BadUsageError as error:
            raise UsageError(f"%gpumem_diff: {error}") from None
        except GpumemError as error:
            say(f"gpumem: {error}")
            return
        if target is not None:
            say(written(comparison, target))
        display(comparison)


def register(shell: Any) -> None:
    """Make the line magic known to `shell`."""
    shell.register_magic_function(DiffMagics(shell).gpumem_diff, "line", _NAME)


def unregister(shell: Any) -> None:
    """Take it back."""
    shell.magics_manager.magics["line"].pop(_NAME, None)
