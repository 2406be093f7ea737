"""What a source of allocator events must offer. One module per kind of allocator implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from gpumem_magic.recording.model import SourceKind
    from gpumem_magic.trace.model import Trace

__all__ = ["Evidence", "Source"]


class Evidence(NamedTuple):
    """What a source saw: events (None when it saw none or cannot see them) and whether some were lost."""

    trace: Trace | None = None
    truncated: bool = False


class Source(Protocol):
    """One way of watching an allocator. Neither method raises: failures become notes."""

    @property
    def kind(self) -> SourceKind:
        """What to call it in the report; may change to ``COUNTERS`` when events turn out to be impossible."""

    def start(self) -> None:
        """Begin to watch, without initialising any device."""

    def stop(self, started_us: int, ended_us: int) -> Evidence:
        """Stop watching, restore everything, and return what happened between the two times (Unix microseconds)."""
