"""Put a finished report into the cell's output, last, and into a file where asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import publish_display_data

from gpumem_magic._errors import ExportError, GpumemError
from gpumem_magic._format import printed_encoding, say

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from gpumem_magic.magics.arguments import Request
    from gpumem_magic.report import Report
    from gpumem_magic.report.comparison import Comparison
    from gpumem_magic.report.reading import ExportedReport

__all__ = ["display", "register", "show_report", "unregister", "written"]

# Named, not imported: numpy comes with them.
_TYPES = (
    ("gpumem_magic.report.report", "Report"),
    ("gpumem_magic.report.comparison", "Comparison"),
    ("gpumem_magic.report.reading", "ExportedReport"),
)


def register(shell: Any) -> None:
    """Show a report that a cell evaluates as a measured cell shows its own."""
    formatter = shell.display_formatter.mimebundle_formatter
    for module, name in _TYPES:
        formatter.for_type_by_name(module, name, _bundle)


def unregister(shell: Any) -> None:
    """Leave it to the objects again."""
    formatter = shell.display_formatter.mimebundle_formatter
    for module, name in _TYPES:
        kept = getattr(sys.modules.get(module), name, None)
        formatter.pop(f"{module}.{name}" if kept is None else kept, None)


def _bundle(report: Any, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    from gpumem_magic import widget

    return widget.bundle(report)


def display(report: Report | Comparison | ExportedReport, cell_key: Hashable = None) -> None:
    """Publish a report as exactly one output.

    Parameters
    ----------
    report
        What to show.
    cell_key
        Names the cell: running it again closes the widget of its former run. None: nothing is closed.
    """
    if "ipykernel.kernelapp" not in sys.modules:
        publish_display_data({"text/plain": report.to_text(encoding=printed_encoding())})
        return
    from gpumem_magic import widget

    publish_display_data(*widget.bundle(report, cell_key))


def written(report: Report | Comparison, path: Path) -> str:
    """Write a standalone file, and return the line that says where it lies, or why it could not be written."""
    from gpumem_magic.report.files import shown_path

    try:
        return f"gpumem: wrote {shown_path(report.save(path))}"
    except ExportError as error:
        return f"gpumem: {error}"


def show_report(report: Report, request: Request, cell_key: Hashable) -> None:
    """Show a report as exactly one output, and write it where asked for.

    Parameters
    ----------
    report
        What to show.
    request
        What the magic's line asks for. A path that cannot be written costs one line, never the report.
    cell_key
        Names the cell: running it again closes the widget of its former run.
    """
    if request.export is not None:
        try:
            written = _explored(report, request).save(request.export)
        except ExportError as error:
            say(f"gpumem: {error}")
        else:
            if not request.quiet:
                from gpumem_magic.report.files import shown_path

                say(f"gpumem: wrote {shown_path(written)}")
    if not request.quiet:
        display(report, cell_key)


def _explored(report: Report, request: Request) -> Report:
    """Return the report to write, with what other settings would have done where that was asked for."""
    if not request.whatif:
        return report
    try:
        return report.explored()
    except GpumemError as error:
        say(f"gpumem: --whatif adds nothing to the file, since {error}")
        return report
