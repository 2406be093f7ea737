"""Import what the first report needs before it is needed, so that it comes as fast as the tenth.

Our own modules and the widget's (0.2 s together) once a cell has brought torch, while nothing runs; matplotlib beside
the first measured cell, as importing it settles what the user may still want to choose (its backend, its folder).
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.ticker import call_every

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.recording.ticker import Tick

__all__ = ["no_warm_up", "warm_up_later", "warm_up_when_idle"]

# A cell that does nothing worth drawing is over by then.
_DELAY_SECONDS = 0.05
# The next cell of a Run All has begun by then.
_IDLE_SECONDS = 0.3

# In the order in which a measured cell asks for them.
_OWN = (
    "gpumem_magic.magics.measurement",
    "gpumem_magic.holders.roles",
    "gpumem_magic.recording.marks.calls",
    "gpumem_magic.trace.convert",
    "gpumem_magic.allocator.replay",
    "gpumem_magic.report",
    "gpumem_magic.report.fallback",
    "gpumem_magic.book",
    "gpumem_magic.analysis.leaks.check",
    "gpumem_magic.nvml",
    # Two fifths of what importing matplotlib takes, and nothing that a user may still want to choose.
    "numpy.ma",
    "pyparsing",
    "PIL.PngImagePlugin",
    "kiwisolver",
)

# A child forked in the middle of an import would wait for ever for the module's lock, so forks wait for us.
_importing = threading.RLock()
# Not for ever: a fork in the middle of an import of the user's holds a lock that our import may be waiting for.
_FORK_SECONDS = 3.0
_forks = threading.local()
_asked = False
_own_asked = False
_waiting: Tick | None = None


def warm_up_when_idle() -> None:
    """Import what is ours, and the widget, once torch is there; called after cells, and costs a look-up."""
    global _own_asked  # noqa: PLW0603 - once a process is the point
    if not _own_asked and "torch" in sys.modules:
        _own_asked = True
        call_every(0, _begin_own, delay=_IDLE_SECONDS)


def _begin_own() -> bool:
    _start(_import_own)
    return False


def _import_own() -> None:
    # What fails to import is left to the report, which says so; here it would be a traceback below the user's cell.
    from gpumem_magic import widget

    for name in _OWN:
        # KeyError: importlib's, where the main thread was interrupted while it imported the same.
        with _importing, suppress(*widget.IMPORT_ERRORS, KeyError):
            importlib.import_module(name)
    with _importing:
        widget.preload_view()
    with suppress(*widget.IMPORT_ERRORS):
        _begin_nvml()


def _begin_nvml() -> None:
    """Open the driver's library, which the first reading before a cell would wait for, where CUDA is in use."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        from gpumem_magic import nvml

        nvml.readings(processes=False)


def warm_up_later() -> None:
    """Import the renderers beside the cell, once a process; forgotten where torch is not used."""
    global _waiting  # noqa: PLW0603 - once a process is the point
    if not _asked:
        _waiting = call_every(0, _begin, delay=_DELAY_SECONDS)


def no_warm_up() -> None:
    """Leave it at the end of a cell: what was not begun would only take time from the report."""
    if _waiting is not None:
        _waiting.cancelled = True


def _begin() -> bool:
    global _asked  # noqa: PLW0603 - once a process is the point
    if not _asked and "torch" in sys.modules:
        _asked = True
        # Not on the ticker's thread, which has a live line to show.
        _start(_import)
    return False


def _start(imports: Callable[[], None]) -> None:
    # None can start while the interpreter ends: then nothing needs to be warm.
    with suppress(RuntimeError):
        threading.Thread(target=imports, name="gpumem-warm-up", daemon=True).start()


def _import() -> None:
    from gpumem_magic import widget

    _import_own()
    with _importing:
        widget.preload()


def _before_fork() -> None:
    _forks.waited = _importing.acquire(timeout=_FORK_SECONDS)


def _after_fork() -> None:
    if _forks.waited:
        _importing.release()


def _after_fork_in_child() -> None:
    global _importing  # noqa: PLW0603 - whoever holds the former one is not here
    if _forks.waited:
        _importing.release()
    else:
        _importing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
