"""When the next reading of a command that runs on is due."""

from __future__ import annotations

import time

__all__ = ["Pace"]


class Pace:
    """Even steps of time; those that a slow driver cost are left out, not made up for in a burst.

    Parameters
    ----------
    interval
        Seconds between the beginnings of two readings.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due = time.monotonic()

    def wait(self) -> None:
        """Sleep until the next step; not at all when it is already over, and then count from now."""
        self._due += self._interval
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
        else:
            self._due = now
