"""How long a scan may look: in this thread's own time, so that a busy machine does not change the answer."""

from __future__ import annotations

import time

__all__ = ["Budget"]

# A machine that gives this thread less than a third of a core ends the scan by the clock on the wall.
_MOST_WAITING = 3


class Budget:
    """Seconds of this thread's time, and thrice as many by the clock.

    Parameters
    ----------
    seconds
        From now on.
    """

    def __init__(self, seconds: float) -> None:
        self._thread, self._wall, self._seconds = time.thread_time(), time.monotonic(), seconds

    def part(self, share: float) -> Budget:
        """Return a budget that began when this one did and ends after a share of it."""
        found = Budget(self._seconds * share)
        found._thread, found._wall = self._thread, self._wall
        return found

    def is_spent(self) -> bool:
        """Tell whether it is over."""
        if time.thread_time() - self._thread >= self._seconds:
            return True
        return time.monotonic() - self._wall >= _MOST_WAITING * self._seconds
