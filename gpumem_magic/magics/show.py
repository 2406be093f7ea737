"""Put a finished report into the cell's output, last, and into a file where asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gpumem_magic.report import Report

__all__ = ["register", "show_report", "unregister"]

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


def show_report(report: Report, *, cell_key: Hashable, quiet: bool, export: Path | None) -> None:
    """Show a report as exactly one output.

    Parameters
    ----------
    report
        What to show.
    cell_key
        Names the cell: running it again closes the widget of its former run.
    quiet
        Show nothing.
    export
        Where to write the HTML report. A path that cannot be written costs one line, never the report.
    """
    if export is not None:
        try:
            written = report.save(export)
        except ExportError as error:
            print(f"gpumem: {error}")  # noqa: T201 - the magic's output
        else:
            if not quiet:
                # Stored notebooks shall carry no path of this machine.
                here = Path.cwd()
                shown = written.relative_to(here) if written.is_relative_to(here) else written
                print(f"gpumem: wrote {shown}")  # noqa: T201 - the magic's output
    if not quiet:
        from gpumem_magic import widget

        widget.display(report, cell_key)
