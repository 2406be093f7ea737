"""Which of the user's other threads ran during a recording: the profiler does not see what they allocate.

torch's profiler is bound to the thread that starts it. Its setting for all threads records operators everywhere but
allocations nowhere (torch 2.13), and one profiler for each thread could not be ended from outside.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OtherThreads"]

# What keeps a notebook running, and us.
_HOSTS = frozenset(
    {
        "IPython",
        "debugpy",
        "gpumem_magic",
        "ipykernel",
        "jupyter_client",
        "pydevd",
        "tornado",
        "tqdm",
        "traitlets",
        "zmq",
    }
)
# How ours are called, and those that hand things to other processes: what has ended tells no more than its name.
_OWN_NAMES = ("gpumem_magic", "gpumem-", "QueueFeederThread", "QueueManagerThread")
# Waking up for nothing takes less.
_WORK_NS = 2_000_000
_MOST_NAMES = 3


def _is_hosts(thread: threading.Thread) -> bool:
    if thread.name.startswith(_OWN_NAMES):
        return True
    work = getattr(thread, "_target", None)  # gone when it has ended
    modules = (type(thread).__module__, getattr(work, "__module__", None) or "")
    return any(module.partition(".")[0] in _HOSTS or module.startswith("_pydevd") for module in modules)


def _processor_ns(thread: threading.Thread) -> int:
    """Return a thread's processor time, 0 where the system does not tell (other than Linux) or it has ended."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _users() -> Iterator[threading.Thread]:
    # Python's own list of threads that are still referenced, those that have ended too.
    known: set[threading.Thread] = set(getattr(threading, "_dangling", ())) | set(threading.enumerate())
    current = threading.current_thread()
    for thread in known:
        if thread is not threading.main_thread() and thread is not current and not _is_hosts(thread):
            yield thread


class OtherThreads:
    """Remembers the user's threads as they are now, and tells later which of them worked since, or are new."""

    def __init__(self) -> None:
        self._before = weakref.WeakKeyDictionary({thread: _processor_ns(thread) for thread in _users()})

    def note(self) -> str | None:
        """Return what the reader must know, or None."""
        names = sorted(
            {
                thread.name
                for thread in _users()
                if thread.ident is not None
                and (thread not in self._before or _processor_ns(thread) - self._before[thread] > _WORK_NS)
            }
        )
        if not names:
            return None
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return (
            "CPU tensors made on other Python threads are not seen: this cell ran "
            f"{', '.join(names[:_MOST_NAMES])}{more}"
        )
