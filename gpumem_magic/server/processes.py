"""Processes as this machine shows them: who they are beyond their number, and what hangs under what."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Facts", "Inherited", "Life", "chain_of", "facts_of", "inherited_by", "life_of", "session_of", "tree_memory"]

# Launchers, schedulers and shells between a kernel and its worker make chains of ten at most; more is a loop.
LONGEST_CHAIN = 64
_HAS_PROC = sys.platform == "linux"


class Life(NamedTuple):
    """A process, told apart from later ones of the same number: `started` only serves to compare."""

    pid: int
    started: float


class Facts(NamedTuple):
    """What a process is called, as far as this user may see it."""

    name: str | None
    command: str | None
    started_us: int | None


class Inherited(NamedTuple):
    """What a process has from the kernel that it, or an ancestor, was started by.

    jupyter_client gives each kernel ``JPY_PARENT_PID`` (the server), and jupyter_server ``JPY_SESSION_NAME`` (the
    notebook's file; none for a kernel without a session).
    """

    server: int
    session: str | None


def life_of(pid: int) -> Life | None:
    """Find the process that has this number now."""
    found = _look_up(pid)
    return None if found is None else found[0]


def _look_up(pid: int) -> tuple[Life, int] | None:
    """Find a process and its parent's PID; None when there is no such process."""
    if _HAS_PROC:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return None
        # The name, in parentheses, may hold spaces and parentheses itself. Then state (field 3), ppid (4), …,
        # starttime in clock ticks since boot (22): unlike a wall-clock time it never changes.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return Life(pid, int(fields[19])), int(fields[1])
    try:
        process = psutil.Process(pid)
        return Life(pid, process.create_time()), process.ppid()
    except (psutil.Error, ValueError, OverflowError):
        return None


def chain_of(life: Life) -> Iterator[Life]:
    """Go up from a process; a parent that is younger than its child is another process of the same number."""
    parent: int | None = None
    for _step in range(LONGEST_CHAIN):
        found = _look_up(life.pid if parent is None else parent)
        if found is None or found[0].started > life.started or (parent is None and found[0] != life):
            return
        life, above = found
        yield life
        if above in (0, life.pid):
            return
        parent = above


def facts_of(life: Life) -> Facts:
    """Read what a process is called and since when it runs."""
    name = command = started_us = None
    try:
        process = psutil.Process(life.pid)
        name = process.name()
        started_us = int(process.create_time() * 1e6)
        # Another user's arguments stay theirs, although Linux would show them.
        if not hasattr(os, "getuid") or process.uids().real == os.getuid():
            command = " ".join(process.cmdline()) or None
    except psutil.Error:
        # It ended while it was looked at.
        pass
    return Facts(name, command, started_us)


def inherited_by(life: Life) -> Inherited | None:
    """Read what a process has from a kernel; None when no kernel started it, or it is another user's."""
    environment = _environment(life)
    parent = environment.get("JPY_PARENT_PID", "")
    return Inherited(int(parent), environment.get("JPY_SESSION_NAME")) if parent.isdecimal() else None


def session_of(life: Life) -> str | None:
    """Read the notebook's file that a kernel was started for."""
    return _environment(life).get("JPY_SESSION_NAME")


def _environment(life: Life) -> dict[str, str]:
    try:
        environment: dict[str, str] = psutil.Process(life.pid).environ()
    except (psutil.Error, OSError):
        # Another user's, or it has ended.
        return {}
    return environment


def _descendants(root: psutil.Process, children: Mapping[int, list[psutil.Process]]) -> Iterator[psutil.Process]:
    waiting, seen = [root], set()
    while waiting:
        process = waiting.pop()
        if process.pid in seen:
            continue
        seen.add(process.pid)
        yield process
        waiting.extend(children.get(process.pid, ()))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def tree_memory(pids: Mapping[str, int | None]) -> dict[str, int | None]:
    """Add up the resident host memory of each kernel and its descendants, in bytes.

    Pages shared between them count once each, so a tree of forked workers reads high.

    Parameters
    ----------
    pids
        Kernel → PID.
    """
    children: dict[int, list[psutil.Process]] = {}
    processes: dict[int, psutil.Process] = {}
    # One pass over the machine, about 20 µs a process, instead of one for each kernel.
    for process in psutil.process_iter(["ppid"]):
        processes[process.pid] = process
        children.setdefault(process.info["ppid"], []).append(process)
    totals: dict[str, int | None] = {}
    for key, pid in pids.items():
        root = processes.get(pid) if pid is not None else None
        totals[key] = None if root is None else sum(_resident(p) for p in _descendants(root, children))
    return totals
