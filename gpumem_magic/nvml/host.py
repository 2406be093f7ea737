"""The host's memory, as far as this process may use it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["HostMemory", "read_host"]

_CGROUP = Path("/sys/fs/cgroup")


class HostMemory(NamedTuple):
    """Bytes. `limited` is True when a container's limit (cgroup) and not the machine is the bound."""

    total: int
    used: int
    limited: bool = False

    @property
    def free(self) -> int:
        """What is left."""
        return max(0, self.total - self.used)


def read_host(cgroup: Path = _CGROUP) -> HostMemory:
    """Read the host's memory, or the container's where that is the lower bound.

    Parameters
    ----------
    cgroup
        Root of the control group that this process sees (version 2).

    Returns
    -------
    HostMemory
        `used` leaves out what the kernel can reclaim, so that a page cache does not look like a leak.
    """
    memory = psutil.virtual_memory()
    total, used = int(memory.total), int(memory.total - memory.available)
    limit = _number(cgroup / "memory.max")
    current = _number(cgroup / "memory.current")
    if limit is None or current is None or limit >= total:
        return HostMemory(total, used)
    return HostMemory(limit, max(0, current - _inactive_file(cgroup / "memory.stat")), limited=True)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        # No such group, no permission, or the word `max`.
        return None


def _inactive_file(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
