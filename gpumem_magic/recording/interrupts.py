"""Put off the stop button for the moments in which hooks are put in or taken out."""

from __future__ import annotations

import _thread
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.ticker import call_every

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["interrupt_deferred", "press_again"]

# Seconds in which whoever asks has surely returned to the user's code.
_PRESS_AGAIN_SECONDS = 0.02


def press_again() -> None:
    """Press the stop button in a moment, where a ``KeyboardInterrupt`` could not have reached the user's code."""
    call_every(0, _press, delay=_PRESS_AGAIN_SECONDS)


def _press() -> bool:
    _thread.interrupt_main()
    return False


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Hold an interrupt back until the block has ended, then raise ``KeyboardInterrupt``.

    People press the stop button twice; the second press must not leave a profiler running or a function wrapped. Does
    nothing outside the main thread, where Python raises no interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def remember(number: int, _frame: Any) -> None:
        pressed.append(number)

    handler = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        # None: a handler that C code had installed, which Python cannot put back.
        signal.signal(signal.SIGINT, signal.default_int_handler if handler is None else handler)
    if pressed:
        raise KeyboardInterrupt
