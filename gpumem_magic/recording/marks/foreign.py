"""Whether an exception that meets us in the middle of our own work was meant for the user's code."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["is_foreign"]

_HERE = str(Path(__file__).parent)
# What our work calls, which an interrupt may come upon as well.
_CALLED = (
    _HERE,
    str(Path(np.__file__).parent),
    str(Path(threading.__file__).parent),
    "<frozen ",
    "<__array_function__",
)
_KNOWN = sys.stdlib_module_names | {"numpy", "torch"}


def is_foreign(error: BaseException) -> bool:
    """Tell whether a signal's handler or another thread raised it, so that the user's code must get it.

    Handlers run between two instructions of whatever runs, and may raise anything: ``KeyboardInterrupt``, or what a
    time limit by ``signal.alarm`` raises. What does not derive from ``Exception`` is never ours. A handler is told by
    its arguments, one of which is the frame that it came upon. What another thread sends
    (``PyThreadState_SetAsyncExc``) is raised by no code of its own: a class that Python does not have tells it.
    """
    if not isinstance(error, Exception):
        return True
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        met, step = step.tb_frame, step.tb_next
        if not _is_ours(step.tb_frame) and any(value is met for value in step.tb_frame.f_locals.values()):
            return True
    is_innermost = step is not None and step.tb_frame.f_code.co_filename.startswith(_CALLED)
    return is_innermost and type(error).__module__.partition(".")[0] not in _KNOWN


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_HERE)
