"""Processes that this one has started: workers, launchers and what these start; what their environment says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Child", "child_pids", "python_children"]

# Beyond this many nobody reads on.
_MOST = 64


class Child(NamedTuple):
    """A Python process below this one.

    Attributes
    ----------
    pid
        Its number.
    name
        What it runs, in a few words.
    environ
        Its environment when it was started, None where it cannot be read.
    is_forked
        A copy of this process: what this one had read of its environment counts there as well.
    """

    pid: int
    name: str
    environ: Mapping[str, str] | None
    is_forked: bool


def child_pids() -> frozenset[int]:
    """Return the numbers of all processes below this one."""
    import psutil

    try:
        return frozenset(child.pid for child in psutil.Process().children(recursive=True))
    except psutil.Error:
        return frozenset()


def python_children() -> tuple[Child, ...]:
    """Look at the Python processes below this one, the oldest first."""
    return tuple(_children())


def _children() -> Iterator[Child]:
    import psutil

    try:
        below = sorted(psutil.Process().children(recursive=True), key=lambda child: child.pid)
    except psutil.Error:
        return
    own = _start_of(os.getpid())
    found = 0
    for child in below:
        try:
            command = child.cmdline()
            if "python" not in child.name().lower() and "python" not in (command or [""])[0].lower():
                continue
            environ: dict[str, str] | None = child.environ()
        except (psutil.AccessDenied, OSError):
            command, environ = [], None
        except psutil.Error:
            continue  # ended meanwhile
        is_forked = own is not None and _start_of(child.pid) == own
        yield Child(child.pid, _named(command), environ, is_forked)
        found += 1
        if found == _MOST:
            return


def _start_of(pid: int) -> bytes | None:
    """Return what the system put into a process when its program began: random addresses, which a fork shares."""
    if sys.platform != "linux":
        return None
    try:
        return Path(f"/proc/{pid}/auxv").read_bytes() or None
    except OSError:
        return None


def _named(command: list[str]) -> str:
    """Return a command's program and what it runs: the script, the module, or multiprocessing's own words."""
    words = [Path(command[0]).name, *command[1:]] if command else ["python"]
    if "multiprocessing" in " ".join(words):
        return f"{words[0]}, started by multiprocessing"
    for number, word in enumerate(words[1:], 1):
        if word == "-m" and number + 1 < len(words):
            return f"{words[0]} -m {words[number + 1]}"
        if not word.startswith("-"):
            return f"{words[0]} {Path(word).name}" if words[number - 1] != "-c" else f"{words[0]} -c"
    return words[0]
