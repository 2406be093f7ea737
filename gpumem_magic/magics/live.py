"""The live line: one output of the cell that is replaced while the cell runs and emptied at its end."""

from __future__ import annotations

import os
import sys
from typing import Any

from gpumem_magic.widget import can_show_widgets

__all__ = ["LiveLine"]


class LiveLine:
    """Shows one line at a time.

    Parameters
    ----------
    shell
        The running IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        # Terminal shells print every display on a line of its own.
        self._is_kernel = hasattr(shell, "kernel")
        self._id = os.urandom(16).hex()
        self._shown = False

    @property
    def is_possible(self) -> bool:
        """True when somebody may see it."""
        return can_show_widgets() if self._is_kernel else bool(getattr(sys.stdout, "isatty", bool)())

    def show(self, text: str) -> None:
        """Replace the line. May be called on any thread."""
        if self._is_kernel:
            self._publish(text)
        else:
            sys.stdout.write(f"\r\x1b[K{text}")
            sys.stdout.flush()
        self._shown = True

    def clear(self) -> None:
        """Empty the line, if it was ever shown."""
        if not self._shown:
            return
        self._shown = False
        if self._is_kernel:
            self._publish("", update=True)
        else:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _publish(self, text: str, *, update: bool | None = None) -> None:
        self._publisher.publish(
            data={"text/plain": text},
            metadata={},
            transient={"display_id": self._id},
            update=self._shown if update is None else update,
        )
