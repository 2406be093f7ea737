"""Import what the first report needs while a long cell runs, so that it is on screen as fast as the tenth."""

from __future__ import annotations

import os
import sys
import threading

from gpumem_magic.recording.ticker import call_every

__all__ = ["warm_up_later"]

_DELAY_SECONDS = 0.5

# A child forked in the middle of an import would wait for ever for the module's lock, so forks wait for us.
_importing = threading.RLock()
_asked = False


def warm_up_later() -> None:
    """Import the renderers in half a second, on a thread, once a process; at once forgotten where torch is not used."""
    if not _asked:
        call_every(0, _begin, delay=_DELAY_SECONDS)


def _begin() -> bool:
    global _asked  # noqa: PLW0603 - once a process is the point
    if not _asked and "torch" in sys.modules:
        _asked = True
        # Not on the ticker's thread, which has a live line to show.
        threading.Thread(target=_import, name="gpumem-warm-up", daemon=True).start()
    return False


def _import() -> None:
    from gpumem_magic import widget

    with _importing:
        widget.preload()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )
