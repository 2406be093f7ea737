"""The live line: one line that is replaced while the cell runs and is gone at its end."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from gpumem_magic._format import encodable
from gpumem_magic.widget import can_show_widgets

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["LiveLine", "live_line_for"]

_ERASE = "\r\x1b[K"


class LiveLine(Protocol):
    """Shows one line at a time."""

    def show(self, text: str) -> None:
        """Replace the line. May be called on any thread."""

    def clear(self) -> None:
        """Empty the line, if it was ever shown."""


def live_line_for(shell: Any) -> LiveLine | None:
    """Return a live line where somebody may see it, else None."""
    if hasattr(shell, "kernel"):
        return _NotebookLine(shell.display_pub) if can_show_widgets() else None
    stream = sys.stdout
    return _TerminalLine(stream) if hasattr(stream, "__dict__") and stream.isatty() else None


class _NotebookLine:
    """An output of the cell that is updated in place."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._id = os.urandom(16).hex()
        self._shown = False

    def show(self, text: str) -> None:
        self._publish(text)
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._publish("")
            self._shown = False

    def _publish(self, text: str) -> None:
        self._publisher.publish(
            data={"text/plain": text}, metadata={}, transient={"display_id": self._id}, update=self._shown
        )


class _TerminalLine:
    """The terminal's last line, wiped before anything else is printed there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._shown = False
        self._shadowed: dict[TextIO, Any] = {}

    def show(self, text: str) -> None:
        # A line that wraps could not be wiped.
        width = max(20, shutil.get_terminal_size().columns - 1)
        with self._lock:
            self._wipe()
            shown = text if len(text) <= width else text[: width - 1] + "…"
            self._stream.write(encodable(shown, getattr(self._stream, "encoding", None) or "utf-8"))
            self._stream.flush()
            self._shown = True
            for stream in (self._stream, sys.stderr):
                if stream is not None and stream not in self._shadowed:
                    # Shadows the method on this one object until the next write; others may have done so before us.
                    self._shadowed[stream] = vars(stream).get("write")
                    stream.write = self._wiping(stream)  # type: ignore[method-assign]

    def clear(self) -> None:
        with self._lock:
            self._wipe()

    def _wiping(self, stream: TextIO) -> Any:
        def write(text: str) -> int:
            with self._lock:
                self._wipe()
                return stream.write(text)

        return write

    def _wipe(self) -> None:
        if not self._shown:
            return
        self._shown = False
        for stream, write in self._shadowed.items():
            if write is None:
                del vars(stream)["write"]
            else:
                stream.write = write  # type: ignore[method-assign]
        self._shadowed.clear()
        self._stream.write(_ERASE)
        self._stream.flush()
