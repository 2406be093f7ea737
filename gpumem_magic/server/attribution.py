"""Whose process is this: from the driver's PID up the process tree to a kernel, a terminal or the server.

A PID alone is never trusted: every link of the chain is a PID with its start time, so that a number that was given to
another process in the meantime leads nowhere. What hung under a kernel is remembered; when the kernel is gone, its
children that still hold memory are orphans, not strangers.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from gpumem_magic.nvml.pids import DEVICE_FILES, NAMESPACE_REASON, has_device_open, is_initial_namespace
from gpumem_magic.server.processes import chain_of, facts_of, inherited_by, life_of, session_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.server.processes import Facts, Inherited, Life

__all__ = ["Attributor", "Directory", "KernelEntry", "Owner", "TerminalEntry"]

# A process may rename itself; its name is read again after so many readings.
KNOWN_UPDATES = 30
# Between fork and exec a process still shows its parent's name and environment: a young one is read at every reading.
YOUNG_SECONDS = 2.0
# What hung under kernels, by process; the oldest are forgotten.
MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class KernelEntry:
    """A kernel as the server knows it.

    Attributes
    ----------
    pid
        Of the process that the server started, or None (gateway, remote, starting) with `missing` saying why.
    notebooks
        ``{path, name, type}`` of its sessions, several when notebooks share the kernel.
    last_activity_us
        Unix microseconds of the last message that the server saw from it; None when unknown.
    """

    id: str
    name: str
    pid: int | None
    execution_state: str | None = None
    notebooks: tuple[Mapping[str, str], ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    last_activity_us: int | None = None


class TerminalEntry(NamedTuple):
    """A terminal of the server."""

    name: str
    pid: int


@dataclass(frozen=True)
class Directory:
    """Who lives on this server, at one moment."""

    kernels: tuple[KernelEntry, ...] = ()
    terminals: tuple[TerminalEntry, ...] = ()


@dataclass(frozen=True)
class Owner:
    """Whose process it is.

    Attributes
    ----------
    owner
        ``kernel``, ``terminal``, ``server``, ``orphan``, ``other`` or ``foreign``, as the protocol says.
    kernel_id
        The kernel's, also for its orphans.
    notebooks
        Paths of the notebooks; for orphans those that the kernel had.
    label
        The terminal's name.
    name, command, started_us
        As far as this user may see them.
    """

    owner: str
    kernel_id: str | None = None
    notebooks: tuple[str, ...] = ()
    label: str | None = None
    name: str | None = None
    command: str | None = None
    started_us: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


class _Root(NamedTuple):
    kind: str
    kernel_id: str | None
    notebooks: tuple[str, ...]
    label: str | None


class _Known(NamedTuple):
    facts: Facts
    inherited: Inherited | None
    at: int


class Attributor:
    """Resolves PIDs against a directory; remembers what it saw. Used by one thread.

    Parameters
    ----------
    device_files
        Beginnings of the device nodes that prove, inside a PID namespace, that a local process is the driver's.
    server_pid
        The server's own process.
    root_dir
        Where the server's notebooks are, so that a path that a process inherited becomes one that the panel can open.
    """

    def __init__(
        self,
        device_files: tuple[str, ...] = DEVICE_FILES,
        server_pid: int | None = None,
        root_dir: str | None = None,
    ) -> None:
        self._device_files = device_files
        self._root_dir = root_dir
        self._server = life_of(os.getpid() if server_pid is None else server_pid)
        self._roots: dict[Life, _Root] = {}
        self._lives: dict[tuple[str, int], Life] = {}
        self._remembered: dict[Life, tuple[Life, _Root]] = {}
        self._sessions: dict[Life, str | None] = {}
        self._proven: set[Life] = set()
        self._known: dict[Life, _Known] = {}
        self._updates = 0

    def update(self, directory: Directory) -> None:
        """Take the kernels and terminals that live now as the roots of process trees."""
        roots: dict[Life, _Root] = {}
        lives: dict[tuple[str, int], Life] = {}
        entries = [
            (kernel.id, kernel.pid, _Root("kernel", kernel.id, _paths(kernel), None)) for kernel in directory.kernels
        ]
        entries += [(t.name, t.pid, _Root("terminal", None, (), t.name)) for t in directory.terminals]
        for key, pid, root in entries:
            if pid is None:
                continue
            # The start time of a root is what it was when it was first seen: if the number now belongs to another
            # process, before the server noticed the death, that process is not the kernel.
            life = self._lives.get((key, pid)) or life_of(pid)
            if life is not None:
                lives[key, pid] = life
                roots[life] = root
        if self._server is not None:
            roots[self._server] = _Root("server", None, (), None)
        self._roots, self._lives = roots, lives
        self._updates += 1
        self._known = {life: known for life, known in self._known.items() if self._updates - known.at < KNOWN_UPDATES}
        for life, root in roots.items():
            if root.kind == "kernel":
                self._remember(life, life, root)
        self._sessions = {
            life: self._sessions[life] if life in self._sessions else session_of(life)
            for life, root in roots.items()
            if root.kind == "kernel"
        }

    def owner(self, pid: int) -> Owner:
        """Say whose process the driver's `pid` is."""
        life = life_of(pid)
        if life is None:
            if is_initial_namespace():
                return Owner("other", missing={"name": "the process has ended"})
            return Owner("foreign", missing={"name": NAMESPACE_REASON})
        if not self._is_local(life):
            return Owner("foreign", missing={"name": NAMESPACE_REASON})
        facts, inherited, _ = self._look_at(life)
        chain = list(chain_of(life))
        served = None
        for place, link in enumerate(chain):
            root = self._roots.get(link)
            if root is None:
                continue
            if root.kind == "server":
                # Where the server is PID 1 (containers), it inherits the orphans of its kernels: look further.
                served = root
                break
            if root.kind == "kernel":
                for below in chain[: place + 1]:
                    self._remember(below, link, root)
            return _owned(root.kind, root, facts)
        return self._detached(life, chain, inherited, facts) or _owned(
            "other" if served is None else "server",
            None,
            facts,
        )

    def has_device_open(self, pid: int | None) -> bool | None:
        """Whether a kernel or one of its children has the device open; None when it cannot be looked at."""
        life = None if pid is None else life_of(pid)
        if life is None:
            return None
        try:
            below = psutil.Process(life.pid).children(recursive=True)
        except psutil.Error:
            return None
        answers = [has_device_open(p, self._device_files) for p in (life.pid, *(child.pid for child in below))]
        return True if True in answers else None if None in answers else False

    def _detached(
        self,
        life: Life,
        chain: list[Life],
        inherited: Inherited | None,
        facts: Facts,
    ) -> Owner | None:
        """Find the kernel of a process that no chain of parents leads to: it was detached, or the kernel is gone."""
        for link in chain:
            if link in self._remembered:
                kernel, former = self._remembered[link]
                living = self._roots.get(kernel)
                return _owned("orphan", former, facts) if living is None else _owned("kernel", living, facts)
        if inherited is None or life == self._server:
            return None
        if self._server is None or inherited.server != self._server.pid:
            # Another server's: a stranger while that lives, an orphan when it is gone.
            other = life_of(inherited.server)
            if other is not None and other.started <= life.started:
                return None
        else:
            # A kernel that started later took the place of the one that this process belonged to.
            candidates = [
                kernel
                for kernel, session in self._sessions.items()
                if session == inherited.session and kernel.started <= life.started
            ]
            if len(candidates) == 1:
                return _owned("kernel", self._roots[candidates[0]], facts)
            if candidates:
                unknown = _owned("other", None, facts)
                return replace(unknown, missing={**unknown.missing, "kernelId": "one of several kernels started it"})
        path = _relative(inherited.session, self._root_dir)
        return _owned("orphan", _Root("orphan", None, (path,) if path else (), None), facts)

    def _look_at(self, life: Life) -> _Known:
        """Read what a process is called and inherited: five files, so not at every tick."""
        known = self._known.get(life)
        if known is None:
            facts = facts_of(life)
            is_young = facts.started_us is not None and time.time() - facts.started_us / 1e6 < YOUNG_SECONDS
            at = self._updates - (KNOWN_UPDATES - 1 if is_young else 0)
            known = self._known[life] = _Known(facts, inherited_by(life), at)
        return known

    def _is_local(self, life: Life) -> bool:
        if is_initial_namespace() or life in self._proven:
            return True
        if has_device_open(life.pid, self._device_files) is not True:
            return False
        self._proven.add(life)
        return True

    def _remember(self, life: Life, kernel: Life, root: _Root) -> None:
        self._remembered.pop(life, None)
        self._remembered[life] = kernel, root
        while len(self._remembered) > MOST_REMEMBERED:
            self._remembered.pop(next(iter(self._remembered)))


def _paths(kernel: KernelEntry) -> tuple[str, ...]:
    return tuple(notebook["path"] for notebook in kernel.notebooks)


def _owned(owner: str, root: _Root | None, facts: Facts) -> Owner:
    return Owner(
        owner,
        kernel_id=root.kernel_id if root else None,
        notebooks=root.notebooks if root else (),
        label=root.label if root else None,
        name=facts.name,
        command=facts.command,
        started_us=facts.started_us,
        missing={} if facts.name is not None else {"name": "the process has ended"},
    )


def _relative(session: str | None, root_dir: str | None) -> str | None:
    """Make a notebook's file a path that the panel can open, if it lies under the server's root."""
    if session is None or root_dir is None:
        return session
    try:
        return Path(session).relative_to(root_dir).as_posix()
    except ValueError:
        return session
