"""What a recording has to tell beside its numbers, and the one place where our own failures are caught."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Notes", "one_line"]


def one_line(error: BaseException, limit: int = 300) -> str:
    """Write an exception as ``"Type: message"``, first line only and at most `limit` characters.

    The type alone where the exception's own ``__str__`` fails: a recording ends all the same.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - a class of the user's
        lines = []
    name = type(error).__name__
    text = f"{name}: {lines[0]}" if lines else name
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Notes:
    """Collects notes; each text is kept once."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}

    def add(self, note: Note) -> None:
        """Add a note made elsewhere."""
        self._notes[note] = None

    def info(self, text: str) -> None:
        """Add something that is good to know."""
        self._notes[Note("info", text)] = None

    def warning(self, text: str) -> None:
        """Add something that changes how the numbers must be read."""
        self._notes[Note("warning", text)] = None

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Turn any failure inside the block into a warning, because a recorder must never harm the user's cell.

        Parameters
        ----------
        doing
            What the block does, as it reads after "gpumem: ", for example ``"stopping the recording"``.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - reported, and torch's internals may raise anything
            self.warning(f"{doing} failed ({one_line(error)}); the cell itself is not affected")

    def freeze(self) -> tuple[Note, ...]:
        """Return the notes so far, in order."""
        return tuple(self._notes)
