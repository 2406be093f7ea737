"""What ``sys.monitoring``'s events do while lines run too often to be marked one by one.

A function whose beginning answered DISABLE (`NotebookCode.deaf`) is told by its frame, which takes 25 µs a call, until
it has done so often enough for its beginnings to be brought back.
"""

from __future__ import annotations

import inspect
import sys
import threading
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.marks.events import Events
from gpumem_magic.recording.marks.quiet import summarise
from gpumem_magic.recording.marks.stacks import monitoring
from gpumem_magic.recording.marks.store import NOWHERE, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks.stacks import NotebookCode, ThreadStack

__all__ = ["GLOBAL_EVENTS", "QuietEvents"]

_BEGINNINGS = monitoring.events.PY_START | monitoring.events.PY_RESUME if monitoring is not None else 0
# PY_UNWIND and PY_THROW exist as global ones only; by the others the notebook's code is found.
GLOBAL_EVENTS = _BEGINNINGS | monitoring.events.PY_UNWIND | monitoring.events.PY_THROW if monitoring is not None else 0

_LOOK_SECONDS = 0.05
# After so many events of deaf functions, 1 ms of work, and so long, beginnings are brought back. That is less work, but
# the interpreter then compares all code that runs with what it was told.
_MANY_DEAF = 32
_DEAF_NS = 20_000_000
_GOES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_STRIKES = 3  # so often may a quiet be widened before all is "line unknown" until the next look


class QuietEvents(Events):
    """Goes quiet, and wakes up when something else runs or memory was allocated."""

    def __init__(self, is_cell: Callable[[str], bool], *, progress: Callable[[], int] | None, max_marks: int) -> None:
        super().__init__(is_cell, progress=progress, max_marks=max_marks)
        self._muted: list[NotebookCode] = []  # some location answered DISABLE
        # DISABLE counts once the answer has arrived, which another thread's waking up may be ahead of. By thread: of
        # what it answered so last, and after how many wakings; it has arrived when that thread's next event comes.
        self._answered: dict[int, tuple[NotebookCode, int]] = {}
        self._wakes = 0
        self._late: list[
            NotebookCode
        ] = []  # brought back since the last look, which does it again for threads that end
        self._looks: threading.Thread | None = None
        self._deaf_events = 0
        self._heard_ns = 0  # when beginnings were brought back last
        self._over = threading.Event()

    def _go_quiet(self, thread: ThreadStack, recent: set[int]) -> None:
        """Stop hearing what `thread` has been doing lately."""
        hot = self._hot = summarise(recent, self._spots, self._recursive)
        self._settle()
        # Functions whose beginning is no longer heard do not tell of a thread that comes in.
        self._is_shared = True
        thread.stay(hot.spot)
        for other in list(self._threads.values()):
            if other is thread:
                continue
            for spot in self._spots.path(other.spot):
                if hot.has_unheard((spot.file, spot.name)):
                    # It may move within the same functions unheard; the line that called them stays right.
                    other.stay(spot.parent if spot.parent != NOWHERE else UNKNOWN)
                    self._write(other, other.spot)
                    break
        self._listen()

    def _after(self) -> None:
        # Its start waits for it, and it may wait for `_alone`.
        if self._hot is not None and self._looks is None:
            self._looks = threading.Thread(target=self._look, name="gpumem_magic line marks", daemon=True)
            self._looks.start()

    def _wake(self) -> None:
        """Hear everything again."""
        self._settle()
        for thread in list(self._threads.values()):
            thread.stay(thread.spot)
        self._wakes += 1
        self._late, self._muted = [*self._late, *self._muted], []
        self._unmute(self._late)
        # One that goes on in the middle of a line has no event of its own before it calls another function.
        deaf = self._deaf()
        if any(info.code.co_flags & _GOES_ON for info in deaf):
            self._hear_beginnings(deaf)
        # Last, so that what an interrupt leaves undone is done at the next event.
        self._hot = None
        self._listen()

    def _unmute(self, codes: list[NotebookCode]) -> None:
        if self._tool is None:
            return
        for info in codes:
            info.muted = False
            monitoring.set_local_events(self._tool, info.code, 0)
            monitoring.set_local_events(self._tool, info.code, self._local)

    def _unmute_late(self) -> None:
        late, self._late = self._late, []
        self._unmute(late)

    def _line(self, code: CodeType, line: int, frame: FrameType) -> None:
        info = self._codes.get(id(code))
        if info is not None and info.deaf and self._hot is None:
            self._deaf_events += 1
            if self._deaf_events >= _MANY_DEAF and time_ns() >= self._heard_ns + _DEAF_NS:
                self._hear_beginnings(self._deaf())
        super()._line(code, line, frame)

    def _deaf(self) -> list[NotebookCode]:
        return [info for info in list(self._codes.values()) if info.deaf]

    def _hear_beginnings(self, deaf: list[NotebookCode]) -> None:
        """Bring back the beginnings of functions."""
        tool = self._tool
        if tool is None:
            return
        self._heard_ns, self._deaf_events = time_ns(), 0
        # A function's code is made anew when its local events change: first without these, then with them.
        try:
            monitoring.set_events(tool, GLOBAL_EVENTS & ~_BEGINNINGS)
            for info in deaf:
                monitoring.set_local_events(tool, info.code, 0)
        finally:
            monitoring.set_events(tool, GLOBAL_EVENTS)
        for info in deaf:
            monitoring.set_local_events(tool, info.code, self._local)
            info.deaf = False
            self._heard[id(info.code)] = info.number

    def _thread(self, ident: int) -> ThreadStack:
        self._arrive(ident)
        return super()._thread(ident)

    def _arrive(self, ident: int) -> None:
        """Bring back what this thread's last answer has muted although all was to be heard again."""
        info, wakes = self._answered.pop(ident, (None, 0))
        if info is not None and wakes != self._wakes:
            self._unmute([info])

    def _mute(self, info: NotebookCode) -> Any:
        ident = get_ident()
        self._arrive(ident)
        self._answered[ident] = info, self._wakes
        if not info.muted:
            info.muted = True
            self._muted.append(info)
        return monitoring.DISABLE

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                if self._late:
                    self._alone(self._unmute_late)
                if self._hot is not None and self._pace.allocated_since_check():
                    self._pace.spend_wake(time_ns())  # paid or not, a look is due
                    self._alone(self._wake)
            except Exception as error:  # noqa: BLE001 - becomes a note
                self._fail(error)

    def _is_news(self, frame: FrameType | None) -> bool:
        """Wake up because something else runs, and return True; or, when that happens too often, hear even less.

        `frame` is the innermost one that goes on.
        """
        hot = self._hot
        if hot is None:
            return True
        if self._pace.spend_wake(time_ns(), is_end=hot.root is not None):
            self._wake()
            return True
        thread = self._thread(get_ident())
        root = None
        while frame is not None:
            root = self._find(frame.f_code) or root
            frame = frame.f_back
        hot.strikes += 1
        if root is not None and hot.strikes <= _STRIKES:
            # Everything that runs until the outermost function ends is within its lines.
            hot.spot, hot.root = self._spots.add(NOWHERE, *root.key, *root.span()), root.key
        else:
            hot.spot, hot.root, hot.everything = UNKNOWN, None, True
        for other in list(self._threads.values()):
            if other is thread or other.spot != NOWHERE:
                other.stay(hot.spot if other is thread else UNKNOWN)
                self._write(other, other.spot)
        return False

    # At the recursion limit there is no room for `_slowly` either.

    def _quiet_line(self, code: CodeType, line: int) -> Any:
        try:
            return self._slowly(self._line_in_quiet, code, line, sys._getframe(1))
        except RecursionError:
            return None

    def _line_in_quiet(self, code: CodeType, line: int, frame: FrameType) -> Any:
        hot, info = self._hot, self._find(code)
        if info is None:
            return None
        if hot is not None and (hot.hears_nothing_of(info.key, line) or not self._is_news(frame)):
            return self._mute(info)
        self._line(code, line, frame)
        return None

    def _quiet_start(self, code: CodeType, offset: int) -> Any:
        try:
            return self._slowly(self._begin_in_quiet, code, offset, sys._getframe(1), resumes=False)
        except RecursionError:
            return None

    def _quiet_resume(self, code: CodeType, offset: int) -> Any:
        try:
            return self._slowly(self._begin_in_quiet, code, offset, sys._getframe(1), resumes=True)
        except RecursionError:
            return None

    def _begin_in_quiet(self, code: CodeType, offset: int, frame: FrameType, *, resumes: bool) -> Any:
        hot, info = self._hot, self._find(code)
        if info is None:
            return monitoring.DISABLE
        if hot is not None and (hot.hears_nothing_of(info.key) or not self._is_news(frame)):
            info.deaf = True
            self._heard.pop(id(code), None)  # `_resumes` too then counts for nothing
            return monitoring.DISABLE
        if resumes:
            self._resume(info, offset, frame)
        else:
            self._enter(info, frame)
        return None

    def _quiet_leave(self, code: CodeType, offset: int, value: object) -> Any:
        del offset, value
        try:
            return self._slowly(self._leave_in_quiet, code, sys._getframe(1))
        except RecursionError:
            return None

    def _leave_in_quiet(self, code: CodeType, frame: FrameType) -> Any:
        hot, info = self._hot, self._find(code)
        if info is None:
            return None
        if hot is not None and (hot.hears_no_end_of(info.key) or not self._is_news(frame.f_back)):
            return self._mute(info)
        self._leave(code, frame)
        return None

    def _quiet_unwind(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del offset, error
        try:
            info = self._codes.get(id(code))
            hot = self._hot
            # Global, so it cannot be switched off: the shortest way comes first.
            if info is None or (hot is not None and hot.hears_no_end_of(info.key)):
                return
            self._slowly(self._unwind_in_quiet, code, sys._getframe(1))
        except RecursionError:
            pass

    def _unwind_in_quiet(self, code: CodeType, frame: FrameType) -> None:
        if self._hot is None or self._is_news(frame.f_back):
            self._unwind(code, frame)

    def _quiet_throw(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del error
        try:  # noqa: SIM105 - suppress() is a call, for which there is no room
            self._slowly(self._throw_in_quiet, code, offset, sys._getframe(1))
        except RecursionError:
            pass

    def _throw_in_quiet(self, code: CodeType, offset: int, frame: FrameType) -> None:
        hot, info = self._hot, self._find(code)
        if info is not None and (hot is None or not (hot.hears_nothing_of(info.key) or not self._is_news(frame))):
            self._thrown(code, offset, frame)
