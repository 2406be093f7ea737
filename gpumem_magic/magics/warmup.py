"""Import what the first report needs before it is needed, so that it comes as fast as the tenth.

Our own modules and the widget's (0.2 s together), once a cell has brought torch: the first of them while the extension
is loaded, the others from the end of that cell on, beside whatever comes next. In a Run All that is the next cell,
which shares the interpreter with them this once; a measured one would have to wait for all of them.

Not matplotlib, though that would save as much again: importing it settles what the user may still want to choose (its
backend, its folder), and nobody else may import it at the same time. Where one thread imports a package and another one
a module in it, importlib sees that each waits for the other and fails one of them; matplotlib, which is begun anew
then, finds modules of the first attempt, and no picture can be drawn in that process any more (seen). So modules of
ours are imported by one thread at a time.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.imports import finished_torch
from gpumem_magic.recording.ticker import call_every
from gpumem_magic.trace.collector import no_full_collection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumem_magic.recording.ticker import Tick

__all__ = ["no_warm_up", "own_imports", "warm_up_later", "warm_up_soon", "warm_up_while_loading"]

# A cell that does nothing worth drawing is over by then.
_DELAY_SECONDS = 0.05
# The front end knows by then that the cell has ended.
_SOON_SECONDS = 0.01
# Loading may take 50 ms. What is begun before this takes at most 15 ms more.
_LOADING_SECONDS = 0.025

# In the order in which a measured cell asks for them.
_OWN = (
    "gpumem_magic.magics.measurement",
    "gpumem_magic.holders.roles",
    "gpumem_magic.recording.marks.calls",
    f"gpumem_magic.recording.marks.{'monitoring' if sys.version_info >= (3, 12) else 'ast_marks'}",
    "gpumem_magic.trace.convert",
    "gpumem_magic.holders.scan",
    "gpumem_magic.holders.bounds",
    "gpumem_magic.allocator.replay",
    "gpumem_magic.book.intake",
    "gpumem_magic.report",
    "gpumem_magic.analysis.leaks.keepers",
    "gpumem_magic.book.ledger",
    "gpumem_magic.holders.witness",
    "gpumem_magic.report.scene",
    "gpumem_magic.report.ticks",
    "gpumem_magic.report.fallback",
    "gpumem_magic.nvml.sampling",
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
# Held by whoever imports modules of ours.
_turn = threading.Lock()
_RETRY_SECONDS = 0.05
_asked = False
_waiting: Tick | None = None


def warm_up_while_loading(began: float) -> None:
    """Import what the first measured cell needs at its beginning, as far as the time for loading goes.

    Only where torch is there: numpy is then, too, and somebody means to use it.

    Parameters
    ----------
    began
        When loading began, by `time.perf_counter`.
    """
    if _asked or finished_torch() is None:
        return
    from gpumem_magic import widget

    with own_imports():
        for name in _OWN:
            if time.perf_counter() - began > _LOADING_SECONDS:
                break
            with suppress(*widget.IMPORT_ERRORS):
                importlib.import_module(name)


def warm_up_soon() -> None:
    """Import what is ours, and the widget, once torch is there; called after cells, and costs a look-up."""
    if not _asked and "torch" in sys.modules:
        call_every(_RETRY_SECONDS, _begin, delay=_SOON_SECONDS)


def warm_up_later() -> None:
    """Import it beside the cell, where that has not been done yet; forgotten where torch is not used."""
    global _waiting  # noqa: PLW0603 - once a process is the point
    if not _asked:
        _waiting = call_every(_RETRY_SECONDS, _begin, delay=_DELAY_SECONDS)


def no_warm_up() -> None:
    """Leave it where the caller goes on to import ours, and wait for what has begun.

    At the end of a cell, what was not begun would only take time from the report.
    """
    global _asked  # noqa: PLW0603 - once a process is the point
    if _waiting is not None:
        _waiting.cancelled = True
    with own_imports():
        _asked = _asked or "torch" in sys.modules


@contextmanager
def own_imports() -> Iterator[None]:
    """Import modules of ours in this block, as soon as nobody else does."""
    # Not for ever: an import that never ends must not keep a cell from running.
    has_turn = _turn.acquire(timeout=_FORK_SECONDS)
    try:
        with no_full_collection():
            yield
    finally:
        if has_turn:
            _turn.release()


def _begin() -> bool:
    global _asked  # noqa: PLW0603 - once a process is the point
    if "torch" not in sys.modules:
        return False
    # What torch imports while it is being imported, we must not import beside it.
    if finished_torch() is None or not _turn.acquire(blocking=False):
        return True
    if _asked:
        _turn.release()
        return False
    _asked = True
    # Not on the ticker's thread, which has a live line to show.
    thread = threading.Thread(target=_import_in_turn, args=(_turn,), name="gpumem-warm-up", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # none can start while the interpreter ends: then nothing needs to be warm
        _turn.release()
    return False


def _import_in_turn(turn: threading.Lock) -> None:
    try:
        with no_full_collection():
            _import_own()
    finally:
        turn.release()
    # No import, so that a cell which begins meanwhile need not wait for it.
    from gpumem_magic.widget import IMPORT_ERRORS

    with suppress(*IMPORT_ERRORS):
        _begin_nvml()


def _import_own() -> None:
    # What fails to import is left to the report, which says so; here it would be a traceback below the user's cell.
    from gpumem_magic import widget

    for name in _OWN:
        # KeyError: importlib's, where the main thread was interrupted while it imported the same.
        with _importing, suppress(*widget.IMPORT_ERRORS, KeyError):
            importlib.import_module(name)
    with _importing:
        widget.preload_view()


def _begin_nvml() -> None:
    """Open the driver's library, which the first reading before a cell would wait for, where CUDA is in use."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        from gpumem_magic import nvml

        nvml.readings(processes=False)


def _before_fork() -> None:
    _forks.waited = _importing.acquire(timeout=_FORK_SECONDS)


def _after_fork() -> None:
    if _forks.waited:
        _importing.release()


def _after_fork_in_child() -> None:
    global _importing, _turn  # noqa: PLW0603 - whoever holds the former ones is not here
    _turn = threading.Lock()
    if _forks.waited:
        _importing.release()
    else:
        _importing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
