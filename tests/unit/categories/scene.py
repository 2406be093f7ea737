"""A device's story with the calls, lines and looks around it; says what each allocation was for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from story import Story  # type: ignore[import-not-found]

from gpumem_magic.analysis.categories import KINDS, categorise
from gpumem_magic.analysis.timeline import build_timeline
from gpumem_magic.recording.model import Calls, Marks, Roles
from gpumem_magic.trace.model import StackTable

__all__ = ["MODEL", "Scene", "ids"]

FILE = "<cell>"
ROLES = ("parameter", "buffer", "gradient", "optimizer", "input", "activation", "tensor")
MODEL = ("module", "model", "Net")


def ids(rows):
    """Return rows as {kind: bytes}."""
    return {KINDS[row.category]: row.bytes for row in rows}


class Scene(Story):  # type: ignore[misc]
    """A story that also notes which call and which line is under way, and who was seen as what."""

    def __init__(self, **options):
        super().__init__(**options)
        self._calls = []  # (time, thread, stack)
        self._lines = []  # (time, line)
        self._looks = []  # (time, life or address, role, name)
        self._texts = {}
        self.foreign = ()

    def call(self, *stack, thread=1):
        """From now on this stack of calls is under way, innermost first; none without arguments."""
        self._calls.append((self.now, thread, stack))

    def line(self, number, text=""):
        self._lines.append((self.now, number))
        self._texts[number] = text

    def look(self, life, role, name=""):
        """At this moment, a life's storage is seen in a role."""
        self._looks.append((self.now, life, role, name))

    def history(self, **changes):
        history = super().history(**changes)
        order = sorted(range(len(self.lives)), key=lambda index: self.lives[index][0])
        history.lifetimes.address[:] = [self._address(index) for index in order]
        return history

    def _address(self, life):
        return 0x1000 + life

    def calls(self):
        stacks = list(dict.fromkeys(stack for _, _, stack in self._calls if stack))
        return Calls(
            np.array([time for time, _, _ in self._calls], np.int64),
            np.array([thread for _, thread, _ in self._calls], np.int64),
            np.array([stacks.index(stack) if stack else -1 for _, _, stack in self._calls], np.int32),
            tuple(stacks),
            foreign=self.foreign,
        )

    def marks(self):
        if not self._lines:
            return None
        numbers = sorted({line for _, line in self._lines})
        return Marks(
            np.array([time for time, _ in self._lines], np.int64),
            np.full(len(self._lines), 1, np.int64),
            np.array([numbers.index(line) for _, line in self._lines], np.int32),
            tuple(((FILE, line, "<module>"),) for line in numbers),
        )

    def roles(self, *, complete=True):
        names = list(dict.fromkeys(name for *_, name in self._looks if name))
        looks = sorted(self._looks, key=lambda look: look[0])
        return Roles(
            np.array([time for time, *_ in looks], np.int64),
            np.zeros(len(looks), np.int16),
            np.array([self._address(life) for _, life, *_ in looks], np.uint64),
            np.array([ROLES.index(role) for *_, role, _ in looks], np.uint8),
            np.array([names.index(name) if name else -1 for *_, name in looks], np.int32),
            (self.device().key,),
            ROLES,
            tuple(names),
            complete,
        )

    def told(self, *, watched=True, complete=True):
        """Return the categories, and per life its kind, with a question mark where it is inferred."""
        device, history = self.device(), self.history()
        timeline = build_timeline(device.events, history)
        found = categorise(
            device,
            history,
            timeline,
            roles=self.roles(complete=complete),
            calls=self.calls() if watched else None,
            marks=self.marks(),
            text_of=lambda entry: self._texts.get(entry[1]),
            stacks=StackTable(),
        )
        assert found is not None
        order = sorted(range(len(self.lives)), key=lambda index: self.lives[index][0])
        kinds = {}
        for position, life in enumerate(order):
            mark = "?" if found.inferred[position] else ""
            kinds[life] = KINDS[found.category[position]] + mark
        modules = {life: found.module_names[found.module[position]] for position, life in enumerate(order)}
        assert sum(row.bytes for row in found.peak) == int(timeline.allocated.max())
        assert sum(row.bytes for row in found.end) == int(timeline.allocated[-1])
        return found, kinds, modules
