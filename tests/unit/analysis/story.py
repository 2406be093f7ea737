"""Recordings written by hand: a device's events, and the history that the allocator would have had."""

from __future__ import annotations

import numpy as np

from gpumem_magic.allocator.history import History, Lifetimes
from gpumem_magic.trace.model import Action, DeviceTrace, Events

START = 1_700_000_000_000_000


def rounded(size):
    return -(-size // 512) * 512


class Story:
    """Collects events; `device()` and `history()` give what the analysis takes. Sizes round up to 512 B."""

    def __init__(self, *, reserved=0, kind="cuda", device=0, has_snapshot=True):
        self.kind, self.number, self.has_snapshot = kind, device, has_snapshot
        self.events = []
        self.lives = []  # [alloc event, free event, requested, stream, stack]
        self.reserved = [reserved]
        self.now = START

    def _event(self, action, addr, size, stream=0, stack=0):
        self.events.append((action, addr, size, stream, self.now, stack))
        self.reserved.append(self.reserved[-1])

    def at(self, microseconds):
        self.now = START + microseconds
        return self

    def old(self, size, stack=0):
        """Alive before the first event."""
        self.lives.append([-1, -1, size, 0, stack])
        return len(self.lives) - 1

    def alloc(self, size, stack=0, stream=0):
        self._event(Action.ALLOC, 0x1000 + len(self.lives), size, stream, stack)
        self.lives.append([len(self.events) - 1, -1, size, stream, stack])
        return len(self.lives) - 1

    def free(self, life):
        self._event(Action.FREE_REQUESTED, 0x1000 + life, self.lives[life][2])
        self.lives[life][1] = len(self.events) - 1
        self._event(Action.FREE_COMPLETED, 0x1000 + life, self.lives[life][2])

    def segment(self, size):
        self._event(Action.SEGMENT_ALLOC if size > 0 else Action.SEGMENT_FREE, 0x10, abs(size))
        self.reserved[-1] += size

    def oom(self, size, free):
        self._event(Action.OOM, free, size)

    def device(self):
        columns = list(zip(*self.events, strict=True)) or [()] * 6
        action, addr, size, stream, time_us, stack = columns
        events = Events(
            np.array(action, np.uint8),
            np.array(addr, np.uint64),
            np.array(size, np.int64),
            np.array(stream, np.int64),
            np.array(time_us, np.int64),
            np.array(stack, np.int32),
            np.full(len(action), -1, np.int32),
        )
        return DeviceTrace(self.number, self.kind, events, has_snapshot=self.has_snapshot)

    def history(self, **changes):
        lives = sorted(self.lives, key=lambda life: life[0])
        count = len(self.events) + 1
        allocated = np.zeros(count, np.int64)
        for alloc, free, size, _, _ in lives:
            allocated[alloc + 1 : count if free < 0 else free + 1] += rounded(size)
        column = list(zip(*lives, strict=True)) or [()] * 5
        lifetimes = Lifetimes(
            np.array(column[0], np.int32),
            np.array(column[1], np.int32),
            np.array([free + 1 if free >= 0 else -1 for free in column[1]], np.int32),
            np.arange(len(lives), dtype=np.uint64),
            np.array(column[2], np.int64),
            np.array([rounded(size) for size in column[2]], np.int64),
            np.array(column[3], np.int64),
            np.array(column[4], np.int32),
        )
        fields = {"exact": True, "first_deviation": None, "warnings": ()} | changes
        history = History(np.array(self.reserved, np.int64), lifetimes, **fields)
        assert np.array_equal(history.allocated, allocated)
        return history
