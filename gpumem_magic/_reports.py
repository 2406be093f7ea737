"""From a recording to the report that a user holds: built once, kept as ``gpumem_magic.last``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumem_magic.recording.model import Recording

__all__ = ["build", "last"]

_last: Any = None


def last() -> Any:
    """Return the newest report of this process, or None."""
    return _last


def build(recording: Recording, *, top: int = 5) -> Any:
    """Build the report of `recording` and keep it as the last one.

    Parameters
    ----------
    recording
        A finished recording.
    top
        Rows of the text report's tables.
    """
    global _last  # noqa: PLW0603 - "the last report of this process" is one thing
    _last = _build(recording, top)
    return _last


def _build(recording: Recording, top: int) -> Any:
    try:
        from gpumem_magic.report import build as build_report
    except ImportError:
        return _Plain(recording)
    return build_report(recording, top=top)


class _Plain:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def to_text(self) -> str:
        from gpumem_magic.analysis.build import analyse

        return (
            "gpumem: "
            + analyse(self.recording).sentence
            + f" [{self.recording.outcome.value}]"
            + "".join(f"\n  {note.level}: {note.text}" for note in self.recording.notes)
        )
