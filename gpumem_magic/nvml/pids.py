"""Whether a PID that the driver names is a process that this machine shows under the same number.

The driver knows no PID namespaces: it always gives the host's numbers. Inside a container's namespace such a number
means nothing, or by accident another process; it must never be resolved to one.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import psutil

__all__ = ["DEVICE_FILES", "NAMESPACE_REASON", "has_device_open", "is_initial_namespace", "is_same_process"]

# NVIDIA's device nodes: desktop and data centre, Jetson, WSL.
DEVICE_FILES = ("/dev/nvidia", "/dev/nvhost", "/dev/nvmap", "/dev/dxg")

NAMESPACE_REASON = (
    "the driver gives host PIDs, which cannot be matched from inside this container; start it with `--pid=host`"
)

# PROC_PID_INIT_INO of the Linux kernel: the inode of the initial PID namespace, the same on every machine.
_INITIAL = "pid:[4026531836]"


@functools.cache
def is_initial_namespace() -> bool:
    """Whether this process sees every process under the driver's number."""
    if sys.platform != "linux":
        return True
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL
    except OSError:
        return True


def has_device_open(pid: int, prefixes: tuple[str, ...] = DEVICE_FILES) -> bool | None:
    """Whether the process has one of the driver's device files open.

    Parameters
    ----------
    pid
        A process as this machine shows it.
    prefixes
        Beginnings of the device files' paths.

    Returns
    -------
    bool or None
        None when it cannot be looked at: another user's, ended, or no ``/proc``.
    """
    try:
        descriptors = list(os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    for entry in descriptors:
        try:
            if str(Path(entry.path).readlink()).startswith(prefixes):
                return True
        except OSError:
            # Closed since it was listed.
            continue
    return False


def is_same_process(pid: int, prefixes: tuple[str, ...] = DEVICE_FILES) -> bool:
    """Whether the driver's PID can be taken for the local process of that number.

    In the initial namespace it can, if there is one. Elsewhere only if that process has the device open: on some
    virtual machines the driver does give the inner number.
    """
    if not psutil.pid_exists(pid):
        return False
    return is_initial_namespace() or has_device_open(pid, prefixes) is True
