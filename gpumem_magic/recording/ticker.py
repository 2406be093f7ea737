"""Call functions now and then, on one thread that all recordings share.

Starting a thread makes the caller wait until it runs: 0.2 to 10 ms on a busy machine, for each measured cell. This one
is started when it is needed, and ends when nothing was recorded for a while (Python warns about forks beside threads).
Nor is it woken for what is not due before it looks by itself: it would run, with the interpreter's lock, just when the
cell begins.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Tick", "call_every", "shut_down"]

# A tick may be in the middle of something slow (a front end that does not read); the cell's end waits no longer.
_CANCEL_SECONDS = 2.0
_IDLE_SECONDS = 5.0
_LOOK_SECONDS = 0.25  # with nothing to do


class Tick:
    """A function that is called again and again, until cancelled or until it returns False."""

    def __init__(self, function: Callable[[], bool], delay: float, period: float) -> None:
        self.function = function
        self.period = period
        self.due = time.monotonic() + delay
        self.cancelled = False
        self.busy = threading.Lock()

    def cancel(self) -> None:
        """Call it no more. When it is being called right now, wait for that a little."""
        self.cancelled = True
        # Not when called from within itself, on the ticker's thread.
        if threading.current_thread() is not _ticker.thread and self.busy.acquire(timeout=_CANCEL_SECONDS):
            self.busy.release()


class _Ticker:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ticks: list[Tick] = []
        self.thread: threading.Thread | None = None
        self.looks = 0.0  # when the thread looks next, if it is not woken

    def add(self, tick: Tick) -> None:
        with self.changed:
            self.ticks.append(tick)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="gpumem-ticker", daemon=True)
                self.thread.start()
            elif tick.due < self.looks:
                self.changed.notify()

    def end(self) -> None:
        with self.changed:
            thread = self.thread
            self.thread = None
            self.changed.notify_all()
        if thread is not None:
            thread.join(_CANCEL_SECONDS)

    def _next(self) -> Tick | None:
        """Wait for a tick that is due; None when the thread shall end."""
        with self.changed:
            ends = time.monotonic() + _IDLE_SECONDS
            while self.thread is threading.current_thread():
                self.ticks = [tick for tick in self.ticks if not tick.cancelled]
                now = time.monotonic()
                if self.ticks:
                    first = min(self.ticks, key=lambda tick: tick.due)
                    if first.due <= now:
                        return first
                    self.looks, ends = first.due, now + _IDLE_SECONDS
                elif now >= ends:
                    self.thread = None
                    break
                else:
                    self.looks = now + _LOOK_SECONDS
                self.changed.wait(self.looks - now)
        return None

    def _run(self) -> None:
        while (tick := self._next()) is not None:
            with tick.busy:
                going_on = not tick.cancelled and tick.function()
            tick.cancelled = tick.cancelled or not going_on
            tick.due = time.monotonic() + tick.period


_ticker = _Ticker()


def call_every(period: float, function: Callable[[], bool], *, delay: float | None = None) -> Tick:
    """Call `function` on another thread, first after `delay` and then every `period` seconds.

    Parameters
    ----------
    period
        Seconds from the end of one call to the beginning of the next.
    function
        Returns whether it wants to be called again. Must not raise.
    delay
        Seconds to the first call; `period` when None.
    """
    tick = Tick(function, period if delay is None else delay, period)
    _ticker.add(tick)
    return tick


def shut_down() -> None:
    """End the thread."""
    _ticker.end()


def _after_fork() -> None:
    # The thread does not exist in the child, and its locks may be held for ever.
    global _ticker  # noqa: PLW0603 - one thread for the process is the point
    _ticker = _Ticker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
