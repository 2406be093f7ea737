"""Put off the stop button for the moments in which hooks are put in or taken out."""

from __future__ import annotations

import _imp
import _thread
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.ticker import call_every

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from gpumem_magic.recording.ticker import Tick

__all__ = ["free_import_lock", "interrupt_between_imports", "interrupt_deferred", "press_again", "take_press_back"]

# How often and how long to look whether the user's code runs: IPython takes milliseconds to reach it, or more on a busy
# machine. A cell that ended meanwhile needs no stopping.
_LOOK_SECONDS = 0.02
_MOST_LOOKS = 250
# Of two presses out of impatience the second one comes after 0.1 to 0.3 s.
_SAME_PRESS_SECONDS = 1.0


# The press that waits for the user's code, if any.
_waiting: list[Tick] = []
# When the press came that is handed on right now after it was held back (`interrupt_deferred`), by the monotonic clock.
_held_back: list[float] = []


def press_again() -> None:
    """Press the stop button once the user's code runs, where a ``KeyboardInterrupt`` could not have reached it."""
    if any(not tick.cancelled for tick in _waiting):
        return  # one press stops the cell; a second one would meet its end
    looks = iter(range(_MOST_LOOKS))

    def press() -> bool:
        if _runs_users_code():
            _press()
            return False
        return next(looks, None) is not None

    _waiting[:] = [call_every(_LOOK_SECONDS, press, delay=_LOOK_SECONDS)]


def take_press_back() -> bool:
    """Press no more, as the cell that was meant has ended; return whether a press was still waiting."""
    waiting = [tick for tick in _waiting if not tick.cancelled]
    _waiting.clear()
    for tick in waiting:
        tick.cancel()
    return bool(waiting)


def _runs_users_code() -> bool:
    space = getattr(sys.modules.get("__main__"), "__dict__", None)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals is space:
            return True
        frame = frame.f_back
    return False


def _press() -> None:
    ident = threading.main_thread().ident
    if ident is not None and hasattr(signal, "pthread_kill") and callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(ident, signal.SIGINT)  # which also ends a sleep or a read, as the button does
    else:
        _thread.interrupt_main()


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Hold an interrupt back until the block has ended, then let it be what it would have been.

    That is a ``KeyboardInterrupt``, or what a handler of the user's own does, or, within another such block, nothing
    until that one has ended. People press the stop button twice; the second press must not leave a profiler running or
    a function wrapped. Does nothing outside the main thread, where Python raises no interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[tuple[FrameType | None, float]] = []

    def remember(_number: int, frame: FrameType | None) -> None:
        pressed[:] = [(frame, pressed[0][1] if pressed else _now())]

    handler = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        # None: a handler that C code had installed, which Python cannot put back.
        signal.signal(signal.SIGINT, signal.default_int_handler if handler is None else handler)
    if pressed and handler is not signal.SIG_IGN:
        own: Any = handler if callable(handler) else signal.default_int_handler
        frame, at = pressed.pop()
        _held_back.append(at)
        try:
            own(signal.SIGINT, frame)
        finally:
            _held_back.pop()


def _now() -> float:
    """Return when the press came that is being handled, by the monotonic clock."""
    return _held_back[-1] if _held_back else time.monotonic()


@contextmanager
def interrupt_between_imports(*, once_more: bool = False) -> Iterator[None]:
    """Let an interrupt through at once, or, while something is being imported, as soon as that is done.

    An interrupt that meets importlib as it takes its lock leaves that taken (`free_import_lock`), and every other
    thread that imports then waits for ever, holding locks of modules that the main thread may want. Does nothing
    outside the main thread, nor where the stop button does nothing.

    Parameters
    ----------
    once_more
        The button has just been pressed. People press it twice: what comes within a second is the same press, and is
        dropped.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    outside = _imports(sys._getframe())
    heard_from = time.monotonic() + (_SAME_PRESS_SECONDS if once_more else 0.0)
    waiting: list[FrameType | None] = []
    is_over = False

    def decide(number: int, frame: FrameType | None) -> None:
        if not is_over and _now() < heard_from:
            return
        if is_over or _imports(frame) > outside:
            waiting[:] = [frame]
            call_every(_LOOK_SECONDS, again)
        else:
            waiting.clear()
            handler(number, frame)

    def again() -> bool:
        if waiting and not is_over:
            _press()
        return False

    signal.signal(signal.SIGINT, decide)
    try:
        yield
    finally:
        is_over = True  # from here on `decide` raises nothing
        signal.signal(signal.SIGINT, handler)
    if waiting:
        handler(signal.SIGINT, waiting.pop())


def _imports(frame: FrameType | None) -> int:
    """Return how many of importlib's frames are under way in `frame` and its callers."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return count


def free_import_lock() -> None:
    """Give back importlib's own lock where an interrupt has left it taken on this thread; call it outside of imports.

    CPython takes it a statement before the ``try`` that gives it back (``_get_module_lock`` and its ``cb``, seen on
    3.11 and 3.12), so that a press of the stop button in between keeps it for good.
    """
    while _imp.lock_held():
        try:
            _imp.release_lock()
        except RuntimeError:  # another thread's
            return
