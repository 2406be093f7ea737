"""How many events torch's profiler may hold, judged from outside: it cannot be asked while it runs.

An event takes 48 bytes of malloc'ed memory while it is recorded, but 1,400 bytes and 1 µs when the profiler is stopped
(torch 2.13), so a loop that did nothing but make tensors for 10 s once ended at 11 GB. Resident memory does not tell:
what an earlier recording gave back is used again without growing it. Two measures do:

- the bytes that malloc has handed out (``mallinfo2``, 1 to 10 µs). Every change between two looks counts as if it were
  events, falls too, so that a loop which frees as much as the profiler takes is not overlooked;
- the recording thread's processor time, as no loop made more than 4.6 million events in a second of it
  (``torch.UntypedStorage(1)``; ``torch.empty(1)`` 3.0, ``torch.ones(1000)`` 1.9 million).

The first is right within a few percent when nothing else uses malloc, and too high otherwise; the second bounds it from
above. Where malloc cannot be asked (musl, macOS, Windows, another malloc in its place) the second stands alone.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gpumem_magic.recording.cpu.malloc import MODULUS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Growth"]

_BYTES_AN_EVENT = 48
_EVENTS_A_SECOND = 4_600_000
# Counting too early costs 1 ms. A cell whose memory moves by megabytes all the time would be counted at every look;
# after a count that found little, the next comes not before this many times the shortest possible time.
_PATIENCE = 2
_LITTLE = 1 / 8
# When malloc's figure says that nothing happens: count all the same, now and then.
_BLIND_SECONDS = 2.0


def _change(before: int, now: int) -> int:
    """Return by how much a figure that is known modulo 4 GiB moved, up or down."""
    up = (now - before) % MODULUS
    return min(up, MODULUS - up)


def _thread_clock() -> Callable[[], float]:
    """Return a clock of the calling thread's processor time that other threads may read."""
    of_thread = getattr(time, "pthread_getcpuclockid", None)
    if of_thread is None:  # macOS, Windows: all threads together, which is never less
        return time.process_time
    clock = of_thread(threading.get_ident())

    def read() -> float:
        try:
            return time.clock_gettime(clock)
        except OSError:  # the thread has ended
            return 0.0

    return read


class Growth:
    """Judges when the events of the calling thread's profiler must be counted. Other threads may `look`.

    Parameters
    ----------
    malloc
        Reads the bytes that malloc has handed out, modulo 4 GiB; None where it cannot be asked.
    clock
        Reads the recording thread's processor time in seconds; the calling thread's own when None.
    """

    def __init__(self, malloc: Callable[[], int | None] | None, clock: Callable[[], float] | None = None) -> None:
        self._malloc = malloc
        self._clock = clock if clock is not None else _thread_clock()
        self._patience = 1
        self._most = 0
        self._bytes = 0
        self._moved = 0
        self._since = 0.0

    def begin(self, most: int) -> None:
        """Start to judge anew: the profiler holds nothing, and at most about `most` events are wanted."""
        self._most = most
        self._bytes = self._malloc_now()
        self._moved = 0
        self._since = self._clock()

    def look(self) -> bool:
        """Tell whether it is time to count."""
        now = self._malloc_now()
        self._moved += _change(self._bytes, now)
        self._bytes = now
        seconds = self._clock() - self._since
        if seconds * _EVENTS_A_SECOND < self._most * self._patience:
            return False
        return self._malloc is None or seconds >= _BLIND_SECONDS or self._moved >= self._most * _BYTES_AN_EVENT

    def counted(self, events: int) -> None:
        """Learn from a count."""
        self._patience = _PATIENCE if events < self._most * _LITTLE else 1

    def _malloc_now(self) -> int:
        now = self._malloc() if self._malloc is not None else None
        return now if now is not None else 0
