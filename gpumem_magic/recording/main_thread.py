"""Run work of ours on the main thread, between two bytecodes of the user's code."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING

from gpumem_magic.recording.interrupts import interrupt_deferred, press_again

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_on_main_thread"]

# One permanent C callback: one made per call could be collected while the interpreter still holds its address.
_jobs: deque[Callable[[], None]] = deque()


def _run_jobs(_: object) -> int:
    # A C callback cannot raise into the cell: what it answers then is left to chance, and mostly a SystemError there.
    try:
        try:
            with interrupt_deferred():
                while _jobs:
                    _jobs.popleft()()
        except KeyboardInterrupt:
            press_again()
    except KeyboardInterrupt:  # pressed twice
        press_again()
    return 0


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_jobs)


def run_on_main_thread(job: Callable[[], None]) -> None:
    """Run `job` there soon; from any thread. It must not raise, and runs late when C code keeps the main thread busy.

    An interrupt meanwhile reaches the user's code afterwards.
    """
    _jobs.append(job)
    # -1 when Python's own list is full: the next one that is asked for runs this job too.
    ctypes.pythonapi.Py_AddPendingCall(_CALLBACK, None)
