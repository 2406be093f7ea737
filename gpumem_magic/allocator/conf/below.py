"""What the allocator's settings are in the processes that a notebook started: each reads its own environment."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from gpumem_magic._format import format_count
from gpumem_magic.allocator.conf.environment import from_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumem_magic.allocator.conf.in_session import SessionFacts

__all__ = ["describe_below"]

_MOST_NAMED = 3
_DEFAULTS = "torch's defaults"


class _Process(Protocol):
    """A process below the kernel, as `gpumem_magic.recording.children.Child`."""

    @property
    def pid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def environ(self) -> Mapping[str, str] | None: ...
    @property
    def is_forked(self) -> bool: ...


def describe_below(processes: Iterable[_Process], facts: SessionFacts) -> list[str]:
    """Say what counts in each process that the kernel started, those alike in one line.

    Parameters
    ----------
    processes
        Python processes below the kernel.
    facts
        The kernel's own.
    """
    here = from_environment(facts.environ, facts.version)
    alike: dict[str, list[_Process]] = defaultdict(list)
    for process in processes:
        alike[_settings(process, facts, here.text)].append(process)
    return [f"{_who(those)}: {text}" for text, those in alike.items()]


def _settings(process: _Process, facts: SessionFacts, here: str) -> str:
    if process.is_forked:
        if facts.in_force is not None:
            return f"{facts.in_force or _DEFAULTS}, as here: a fork of this kernel, which had read them"
        return "what this kernel's environment said when it was forked"
    if process.environ is None:
        return "not known: its environment cannot be read"
    found = from_environment(process.environ, facts.version)
    shown = found.text or _DEFAULTS
    notes = "".join(f"; {note}" for note in found.notes)
    if found.text == here:
        return f"{shown}, as this kernel's environment says{notes}"
    wanted = f"'{here}'" if here else "nothing"
    late = "it is a process's own environment that counts, as it was when the process was started"
    return f"{shown}{notes}, unlike this kernel's environment, which says {wanted} now: {late}"


def _who(processes: list[_Process]) -> str:
    shown = ", ".join(f"{one.pid} ({one.name})" for one in processes[:_MOST_NAMED])
    more = len(processes) - _MOST_NAMED
    more_text = f" and {format_count(more)} more" if more > 0 else ""
    return f"in process {shown}{more_text}" if len(processes) == 1 else f"in processes {shown}{more_text}"
