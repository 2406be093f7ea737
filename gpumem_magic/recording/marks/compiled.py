"""The callbacks in C, where they were built and fit: an event then costs a third and less of what it costs in Python.

The sources lie in ``native/``; the wheel's build makes them where there is a compiler. Everything works without them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.recording.marks._native import Tape, Watch

__all__ = ["INTERFACE", "SWITCH", "Native", "native"]

# What the C code says of itself, so that a binary of other sources, which an editable install may keep, counts as none.
INTERFACE = 2
# The environment variable that leaves it out, when building and when running.
SWITCH = "GPUMEM_MAGIC_NO_NATIVE"


class Native(NamedTuple):
    """What was built.

    Attributes
    ----------
    tape
        Does what `gpumem_magic.recording.marks.tape` does in Python.
    watch
        Does what `gpumem_magic.recording.marks.call_log` does in Python.
    tracked
        Returns all objects that Python's collector tracks whose class is one of a tuple's, itself and not by
        inheritance.
    """

    tape: type[Tape]
    watch: type[Watch]
    tracked: Callable[[tuple[type, ...]], list[Any]]


def native() -> Native | None:
    """Return what was built; None where it was not, where it is of other sources, and where it is switched off."""
    if os.environ.get(SWITCH):
        return None
    try:
        from gpumem_magic.recording.marks import _native
    except ImportError:  # not built, or for another interpreter or system
        return None
    if getattr(_native, "INTERFACE", None) != INTERFACE:
        return None
    return Native(_native.Tape, _native.Watch, _native.tracked)
