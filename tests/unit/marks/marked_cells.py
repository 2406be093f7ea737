"""Runs cells as IPython does, with a pretended allocator that writes down when, and under which lines, it is called."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.analysis.lines import attribute
from gpumem_magic.recording.marks import start

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks import LineMarks
    from gpumem_magic.recording.model import Marks

HAS_FUNCTIONS = hasattr(sys, "monitoring")
Place = tuple[tuple[str, int, str], ...]


def is_cell(filename: str) -> bool:
    return filename.startswith(("<cell", "<timed"))


def next_microsecond() -> int:
    """Wait until the clock is in a new microsecond, and return it."""
    now = time.time_ns() // 1000
    while True:
        later = time.time_ns() // 1000
        if later > now:
            return later


def folded(stack: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Fold recursion in a stack, outermost first: a repeated function continues its outermost call."""
    result: list[tuple[str, int, str]] = []
    for entry in stack:
        same = [i for i, (file, _, name) in enumerate(result) if (file, name) == (entry[0], entry[2])]
        if same:
            del result[same[0] :]
        result.append(entry)
    return result


class Enough(BaseException):
    """Ends a program that allocates without end."""


@dataclass
class Truth:
    """What the pretended allocator saw; it raises `Enough` after `limit` allocations."""

    limit: int = 1_000_000
    time_us: list[int] = field(default_factory=list)
    stacks: list[list[tuple[str, int, str]]] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def alloc(self, *_: object) -> int:
        """Pretend to allocate. Allocations and marks never share a microsecond here."""
        if len(self.time_us) >= self.limit:
            raise Enough
        next_microsecond()
        stack = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_cell(frame.f_code.co_filename):
                stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        self.stacks.append(folded(stack[::-1]))
        self.threads.append(threading.get_ident())
        self.time_us.append(time.time_ns() // 1000)
        next_microsecond()
        return len(self.time_us)

    def count(self) -> int:
        return len(self.time_us)


class Notebook:
    """Cells that share a namespace."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.namespace: dict[str, Any] = {"alloc": self.truth.alloc, "N": 20_000}
        self.cells = 0

    def run(self, source: str, marks: LineMarks | None = None, filename: str | None = None) -> None:
        """Run a cell: each top-level statement compiled by itself, ``await`` allowed."""
        self.cells += 1
        name = filename or f"<cell {self.cells}>"
        tree: Any = ast.parse(source)
        if marks is not None and marks.transformer is not None:
            tree = ast.fix_missing_locations(marks.transformer.visit(tree))
        for statement in tree.body:
            module = ast.Module(body=[statement], type_ignores=[])
            code: CodeType = compile(module, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, self.namespace))  # noqa: S307 - the test's own code
            else:
                exec(code, self.namespace)  # noqa: S102 - the test's own code

    def measured(
        self,
        source: str,
        *,
        progress: Callable[[], int] | None = None,
        error: type[BaseException] | None = None,
        marks: LineMarks | None = None,
    ) -> Joined:
        """Run a cell under marks and join them with what the allocator saw."""
        first = len(self.truth.time_us)
        marks = marks or start(is_cell, progress=progress)
        caught: BaseException | None = None
        try:
            self.run(source, marks)
        except BaseException as raised:
            if error is None or not isinstance(raised, error):
                raise
            caught = raised
        finally:
            columns = marks.stop()
        assert error is None or caught is not None
        assert columns is not None, marks.notes
        return Joined(columns, self.truth, first, tuple(note.text for note in marks.notes))


class Joined:
    """Allocations with the place that the marks give and the place that is true."""

    def __init__(self, marks: Marks, truth: Truth, first: int, notes: tuple[str, ...]) -> None:
        self.marks = marks
        self.notes = notes
        self.lines = attribute(marks, np.array(truth.time_us[first:], np.int64))
        self.true = truth.stacks[first:]

    def __len__(self) -> int:
        return len(self.true)

    def given(self, index: int) -> list[tuple[str, int, int, str]]:
        """Return a place, outermost first: file, first line, last line, function."""
        place = int(self.lines.place[index])
        if place < 0:
            return []
        entries = zip(self.marks.places[place], self.marks.last_lines[place], strict=True)
        return [(file, line, last, name) for (file, line, name), last in entries][::-1]

    def reason(self, index: int) -> str | None:
        place = int(self.lines.place[index])
        return self.lines.reasons[-1 - place] if place < 0 else None

    def wrong(self) -> list[tuple[object, object]]:
        """Return allocations whose place is wrong; a coarser place that holds the true one is right."""
        return [(self.given(i), self.true[i]) for i in range(len(self)) if not self.covers(i)]

    def covers(self, index: int) -> bool:
        given, true = self.given(index), self.true[index]
        return len(given) <= len(true) and all(
            file == true_file and first <= line <= last and name in {"", true_name}
            for (file, first, last, name), (true_file, line, true_name) in zip(given, true)  # noqa: B905 - may be short
        )

    def inexact(self) -> list[tuple[object, object]]:
        """Return allocations whose place is not exactly the true one."""
        return [
            (given, true)
            for given, true in ((self.given(i), self.true[i]) for i in range(len(self)))
            if given != [(file, line, line, name) for file, line, name in true]
        ]

    def innermost(self) -> list[int | tuple[int, int] | None]:
        """Return each allocation's innermost line, or its range."""
        result: list[int | tuple[int, int] | None] = []
        for index in range(len(self)):
            given = self.given(index)
            if not given:
                result.append(None)
            else:
                first, last = given[-1][1:3]
                result.append(first if first == last else (first, last))
        return result
