"""Put a finished report into the cell's output, last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["show_report"]


def show_report(shell: Any, report: Any, *, quiet: bool, export: Path | None) -> None:
    """Show `report` as one output, and write it to `export` where asked for."""
    if not quiet:
        shell.display_pub.publish(data={"text/plain": report.to_text()}, metadata={})
