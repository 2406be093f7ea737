"""What a kernel's own environment holds: its interpreter, and which version of this package it can import."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KernelInspector"]

# Prints the version, nothing when the package is absent, and fails when that cannot be told.
_PROGRAM = (
    "import importlib.metadata as m, importlib.util as u\n"
    "print(m.version('gpumem-magic') if u.find_spec('gpumem_magic') else '')"
)
_TIMEOUT_SECONDS = 20.0
# Kernels of the past are forgotten when there are so many.
MOST_KNOWN = 64


class KernelInspector:
    """Looks each interpreter up once for each kernel that runs it, beside the caller's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, dict[str, Any]]] = {}

    def __call__(self, pid: int) -> Mapping[str, Any]:
        """Give the protocol's ``python`` and ``package`` of the kernel with this PID, as far as they are known yet."""
        try:
            process = psutil.Process(pid)
            started = process.create_time()
        except psutil.Error:
            return {}
        with self._lock:
            known = self._known.get(pid)
            if known is not None and known[0] == started:
                return known[1]
            facts: dict[str, Any] = {}
            if len(self._known) >= MOST_KNOWN:
                self._known = {other: entry for other, entry in self._known.items() if psutil.pid_exists(other)}
            self._known[pid] = (started, facts)
        python = _interpreter(process)
        if python is not None:
            facts["python"] = python
            asked = (python, _environment(process), facts)
            threading.Thread(target=_ask, args=asked, name="gpumem-inspect", daemon=True).start()
        return facts


def _interpreter(process: psutil.Process) -> str | None:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return None
    # A virtual environment's interpreter is told by the name it was started with, not by the file behind the link.
    if words and Path(words[0]).name.startswith("python") and Path(words[0]).is_file():
        return words[0]
    return None


def _environment(process: psutil.Process) -> dict[str, str] | None:
    """Return the kernel's own environment, whose paths say what it can import; None for ours where it is not told."""
    try:
        environment: dict[str, str] = process.environ()
    except (psutil.Error, OSError):
        return None
    return environment or None


def _ask(python: str, environment: dict[str, str] | None, facts: dict[str, Any]) -> None:
    try:
        answer = subprocess.run(  # noqa: S603 -- the interpreter that this user's kernel runs already
            [python, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=environment,
            cwd="/" if Path("/").exists() else None,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        # Absent from the protocol's fields: not looked up.
        return
    facts["package"] = answer.stdout.strip() or None
