"""Put a finished report into the cell's output, last, and into a file where asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpumem_magic._errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gpumem_magic.report import Report

__all__ = ["show_report"]


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
