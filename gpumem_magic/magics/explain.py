"""Why memory ran out: who holds what right after it, and the verdict on a cell that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumem_magic._format import say
from gpumem_magic.recording.notes import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpumem_magic.holders import HolderScan
    from gpumem_magic.recording.model import Cell

    Idle = Callable[[Collection[str]], Mapping[str, str]]

__all__ = ["SCAN_SECONDS", "explanation", "look", "look_after_failure"]

# After an out-of-memory error somebody waits to read why.
SCAN_SECONDS = 1.0
_NOT_MEASURED = "who held what by line, as this cell was not measured: %%gpumem or %gpumem_auto on does that"


def look(shell: Any, seconds: float, *, quick: bool, first: Collection[str] = ()) -> HolderScan | None:
    """Look who holds what, and say in a line where that failed."""
    from gpumem_magic.holders import who_holds, with_bounds

    try:
        return with_bounds(who_holds(shell, budget=seconds, quick=quick, first=first), shell.user_ns)
    except Exception as error:  # noqa: BLE001 - any object may be hostile; the report stands without it
        say(f"gpumem: looking for holders failed ({one_line(error)}); the report leaves them out")
        return None


def look_after_failure(shell: Any, source: str, idle: Idle) -> HolderScan | None:
    """Look thoroughly, as memory may be held by accident.

    Parameters
    ----------
    shell
        The running IPython shell.
    source
        The cell that failed: variables that it uses are not forgotten ones.
    idle
        Says which of some variables no recent cell used, and when they were used last.
    """
    from gpumem_magic.holders.names import names_in_use

    space = shell.user_ns
    used = names_in_use(shell.transform_cell(source), space)
    scan = look(shell, SCAN_SECONDS, quick=False, first=used)
    return None if scan is None else replace(scan, idle=idle(set(space).difference(used)))


def explanation(shell: Any, error: BaseException, cell: Cell, idle: Idle) -> str | None:
    """Say why a cell that nobody measured ran out of memory, and what to do; None where another error ended it.

    Parameters
    ----------
    shell
        The running IPython shell.
    error
        What ended the cell.
    cell
        The cell.
    idle
        As for `look_after_failure`.
    """
    from gpumem_magic.recording.unrecorded import unrecorded

    if cell.source.lstrip().startswith("%%"):
        # All that the traceback knows of it is the line of the other magic.
        cell = replace(cell, filenames=())
    recording = unrecorded(cell, error)
    if recording is None:
        return None
    from gpumem_magic.analysis.oom import diagnose

    verdict = diagnose((), recording, holders=look_after_failure(shell, cell.source, idle))
    if verdict is None:
        return None
    # Of what a loader's worker held, measuring this process would not tell.
    return verdict.text() if verdict.evidence.worker else f"{verdict.text()}\n  not known: {_NOT_MEASURED}"
