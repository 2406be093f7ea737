"""The notebook's code objects, and each thread's stack of them, as ``sys.monitoring`` tells.

Frames are never held, because they keep tensors alive.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.marks.store import NOWHERE, Spots, ThreadLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

__all__ = ["LEAST_BASE", "NO_ROOM", "STALE", "Caller", "NotebookCode", "Stacks", "ThreadStack", "monitoring"]

monitoring: Any = getattr(sys, "monitoring", None)
STALE = -1  # `ThreadStack.frame` of a stack that must be read again
# Instead of a base: there is no room for a function's own lines, and they count as the spot that this is added to.
NO_ROOM = -(1 << 62)
LEAST_BASE = NO_ROOM // 2


class NotebookCode:
    """A code object of the notebook.

    Attributes
    ----------
    number
        Below 0; stands for it on a tape.
    callers
        By calling spot, what makes one of its lines a spot when added to it.
    """

    __slots__ = ("_span", "callers", "code", "deaf", "key", "muted", "number")

    def __init__(self, code: CodeType, number: int) -> None:
        self.code = code
        self.number = number
        self.key = (code.co_filename, code.co_name)
        self.callers: dict[int, int] = {}
        self.muted = False  # some location answered DISABLE
        self._span: tuple[int, int] | None = None
        self.deaf = False  # PY_START or PY_RESUME answered DISABLE

    def line_at(self, offset: int) -> int:
        """Return the line of the instruction at `offset` bytes; the first line when it has none."""
        for start, end, line in self.code.co_lines():
            if start <= offset < end:
                return line or self.code.co_firstlineno
        return self.code.co_firstlineno

    def span(self) -> tuple[int, int]:
        """Return the first and last line of its own instructions."""
        if self._span is None:
            lines = [line for _, _, line in self.code.co_lines() if line]
            self._span = (min(lines), max(lines)) if lines else (self.code.co_firstlineno,) * 2
        return self._span


# What a thread's stack holds for each caller: the five attributes of `ThreadStack` as they were there.
Caller = tuple["CodeType | None", int, int, int, "Caller | None"]


class ThreadStack(ThreadLog):
    """A thread's marks and its stack of the notebook's functions.

    Attributes
    ----------
    code
        The innermost function's, which events are compared with; None where the frame itself must be looked at
        (`frame`), and at the bottom, which stands for "no notebook code".
    base
        What makes a line of it a spot, for this caller, when added to it.
    spot
        Where it is now.
    frame
        Identity of the frame, `STALE` when the stack must be read again.
    below
        The callers, innermost first, as linked tuples: an object for each would take four times as long to make.
    """

    __slots__ = ("base", "below", "code", "frame", "spot")

    def __init__(self, ident: int) -> None:
        super().__init__(ident)
        self.code: CodeType | None
        self.base: int
        self.below: Caller | None
        self.stay(NOWHERE, 0)

    def stay(self, spot: int, frame: int = STALE) -> None:
        """Be at `spot`, called by nothing."""
        self.code, self.base, self.spot, self.frame, self.below = None, NO_ROOM + spot, spot, frame, None

    def enter(self, info: NotebookCode, base: int, spot: int, frame: int) -> None:
        """Go into a function, whose frame is `frame`, and be at `spot`."""
        self.below = (self.code, self.base, self.spot, self.frame, self.below)
        if info.deaf or base < LEAST_BASE:
            self.code, self.base, self.spot, self.frame = None, base, spot, frame
        else:
            self.code, self.base, self.spot, self.frame = info.code, base, spot, 0

    def stack(self) -> tuple[CodeType | None, ...]:
        """Return the functions' codes, outermost first; empty when the stack must be read again."""
        if self.frame == STALE:
            return ()
        codes, caller = [self.code], self.below
        while caller is not None:
            codes.append(caller[0])
            caller = caller[4]
        return tuple(reversed(codes))

    def leave(self) -> None:
        """Go back to the caller, if there is one."""
        if self.below is not None:
            self.code, self.base, self.spot, self.frame, self.below = self.below


class Stacks:
    """Which code belongs to the notebook, and where each thread is in it."""

    def __init__(self, is_cell: Callable[[str], bool]) -> None:
        self._is_cell = is_cell
        self._tool: int | None = None
        self._local = 0
        self._files: dict[str, bool] = {}
        self._codes: dict[int, NotebookCode] = {}
        # Those that are not deaf, by identity too: a number below 0, by which `_numbered` has them.
        self._heard: dict[int, int] = {}
        self._numbered: dict[int, NotebookCode] = {}
        self._next_number = itertools.count(-1, -1).__next__
        self._resumes: dict[tuple[int, int], int] = {}  # lines by code and offset, of these
        self._recursive: set[tuple[str, str]] = set()
        self._threads: dict[int, ThreadStack] = {}
        self._spots = Spots()

    def _is_mine(self, code: CodeType) -> bool:
        name = code.co_filename
        mine = self._files.get(name)
        if mine is None:
            mine = self._files[name] = bool(self._is_cell(name))
        return mine

    def _find(self, code: CodeType) -> NotebookCode | None:
        """Return what is known of a code object; None for a library's."""
        # By identity: hashing a code object reads all of it. The entry keeps it alive, so the id stays its own.
        key, tool = id(code), self._tool
        info = self._codes.get(key)
        if info is None and tool is not None and self._is_mine(code):
            number = self._next_number()
            info = NotebookCode(code, number)
            monitoring.set_local_events(tool, code, self._local)
            # No calls from here on, so that an interrupt leaves all or nothing.
            self._numbered[number] = info
            self._heard[key] = number
            self._codes[key] = info
        return info

    def _is_within(self, frame: FrameType | None) -> bool:
        """Tell whether a frame, or one that called it, is the notebook's."""
        while frame is not None:
            if self._is_mine(frame.f_code):
                return True
            frame = frame.f_back
        return False

    def _thread(self, ident: int) -> ThreadStack:
        thread = self._threads.get(ident)
        return thread if thread is not None else self._threads.setdefault(ident, ThreadStack(ident))

    def _base(self, info: NotebookCode, caller: int) -> int:
        """Return `ThreadStack.base` of a function when called from `caller`; a recursive call joins the outermost."""
        base = info.callers.get(caller)
        if base is not None:
            return base
        parent = caller
        for spot in self._spots.path(caller):
            # Modules do not call themselves: what %time compiles within %%time only bears the same file name.
            if (spot.file, spot.name) == info.key and spot.name != "<module>":
                self._recursive.add(info.key)
                parent = spot.parent
                break
        base = info.callers.get(parent)
        if base is None:
            base = self._spots.base(parent, info.key, *info.span())
            if base is None:
                return NO_ROOM + parent
            info.callers[parent] = base
        info.callers[caller] = base
        return base

    @staticmethod
    def _spot(base: int, line: int) -> int:
        return base + line if base >= LEAST_BASE else base - NO_ROOM

    def _read_stack(self, thread: ThreadStack, frame: FrameType | None) -> None:
        """Make the thread's stack what the real frames say, innermost `frame`."""
        chain: list[tuple[NotebookCode, int, int]] = []
        while frame is not None:
            info = self._find(frame.f_code)
            if info is not None:
                chain.append((info, frame.f_lineno or frame.f_code.co_firstlineno, id(frame)))
            frame = frame.f_back
        thread.stay(NOWHERE, 0)
        for info, line, ident in reversed(chain):
            base = self._base(info, thread.spot)
            thread.enter(info, base, self._spot(base, line), ident)
