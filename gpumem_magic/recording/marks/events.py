"""What ``sys.monitoring``'s events do while every line is marked.

At the interpreter's recursion limit there is no room for it. The error that says so is the cell's, not ours: the mark
is lost, and the next event of other code reads the stack anew.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.marks.pace import Pace
from gpumem_magic.recording.marks.stacks import STALE, Stacks, monitoring
from gpumem_magic.recording.marks.store import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks.quiet import Hot
    from gpumem_magic.recording.marks.stacks import NotebookCode, ThreadStack

__all__ = ["Events"]


class Events(Stacks):
    """Writes a mark for each line, call and return of the notebook's code."""

    def __init__(self, is_cell: Callable[[str], bool], *, progress: Callable[[], int] | None, max_marks: int) -> None:
        super().__init__(is_cell)
        self._max_marks = max_marks
        self._pace = Pace(time_ns(), progress)
        self._hot: Hot | None = None  # what runs too often to be marked line by line

    def _fail(self, error: Exception) -> None:
        """Give up marking; the cell goes on."""
        raise NotImplementedError

    def _go_quiet(self, thread: ThreadStack, recent: set[int]) -> None:
        """Stop hearing what `thread` has been doing lately."""
        raise NotImplementedError

    def _write(self, thread: ThreadStack, spot: int) -> None:
        if thread.count >= BLOCK:
            is_too_often = self._hot is None and not self._pace.spend_block(time_ns())
            recent = {*thread.spots, spot} if is_too_often else set()
            thread.flush(max(4 * BLOCK, self._max_marks // len(self._threads)))
            if is_too_often:
                self._go_quiet(thread, recent)
                spot = thread.spot
        count = thread.count
        thread.times[count] = time_ns()
        thread.spots[count] = spot
        thread.count = count + 1

    # What is called a hundred times and more in a training step: closures, because their names are found faster than
    # attributes. Each does the common case only, and leaves all others to a method: a thread, a line or a caller that
    # is new, and a block of marks that is full.

    def _quick_line(self) -> Callable[[CodeType, int], Any]:
        threads, slowly, getframe = self._threads, self._line, sys._getframe

        def on_line(code: CodeType, line: int) -> Any:
            try:
                thread = threads[get_ident()]
                if thread.code is code:
                    thread.spot = spot = thread.base + line
                    count = thread.count
                    thread.times[count] = time_ns()
                    thread.spots[count] = spot
                    # Last, so that an interrupt in between loses a mark and mixes up none.
                    thread.count = count + 1
                    return None
            except LookupError:
                pass
            try:
                return slowly(code, line, getframe(1))
            except RecursionError:
                return None

        return on_line

    def _quick_start(self) -> Callable[[CodeType, int], Any]:
        threads, heard, files = self._threads, self._heard, self._files
        slowly, getframe, disable = self._start, sys._getframe, monitoring.DISABLE

        def on_start(code: CodeType, offset: int) -> Any:
            del offset
            key = id(code)
            if key in heard:
                try:
                    thread = threads[get_ident()]
                    if thread.frame != STALE:
                        base = heard[key][thread.spot]
                        thread.below = (thread.code, thread.base, thread.spot, thread.frame, thread.below)
                        thread.code = code
                        thread.base = base
                        thread.frame = 0
                        return None
                except LookupError:
                    pass
            # All of a library's code that runs comes by once in each cell: without an exception, half the time.
            elif files.get(code.co_filename) is False:
                return disable
            try:
                return slowly(code, getframe(1))
            except RecursionError:
                return None

        return on_start

    def _quick_leave(self) -> Callable[[CodeType, int, object], Any]:
        threads, slowly, getframe = self._threads, self._leave, sys._getframe

        def on_leave(code: CodeType, offset: int, value: object) -> Any:
            del offset, value
            try:
                thread = threads[get_ident()]
                below = thread.below
                if thread.code is code and below is not None:
                    count = thread.count
                    thread.times[count] = time_ns()
                    thread.spots[count] = below[2]
                    thread.code, thread.base, thread.spot, thread.frame, thread.below = below
                    thread.count = count + 1
                    return None
            except LookupError:
                pass
            try:
                return slowly(code, getframe(1))
            except RecursionError:
                return None

        return on_leave

    def _line(self, code: CodeType, line: int, frame: FrameType) -> None:
        try:
            info = self._find(code)
            if info is None:
                return
            thread = self._thread(get_ident())
            if thread.code is not code and not (thread.code is None and thread.frame == id(frame)):
                self._read_stack(thread, frame)
            thread.spot = self._spot(thread.base, line)
            self._write(thread, thread.spot)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _start(self, code: CodeType, frame: FrameType) -> Any:
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is None:
                return monitoring.DISABLE
            self._enter(info, frame)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return None

    def _enter(self, info: NotebookCode, frame: FrameType) -> ThreadStack:
        thread = self._thread(get_ident())
        if thread.frame == STALE:
            self._read_stack(thread, frame)
            return thread
        thread.enter(info, self._base(info, thread.spot), thread.spot, id(frame))
        return thread

    def _on_resume(self, code: CodeType, offset: int) -> Any:
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is None:
                return monitoring.DISABLE
            self._resume(info, offset, sys._getframe(1))
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return None

    def _resume(self, info: NotebookCode, offset: int, frame: FrameType) -> None:
        # A generator goes on in the middle of a line, which does not fire again.
        thread = self._enter(info, frame)
        thread.spot = self._spot(thread.base, info.line_at(offset))
        self._write(thread, thread.spot)

    def _on_throw(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del error
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is not None:
                self._resume(info, offset, sys._getframe(1))
        except RecursionError:
            pass
        except Exception as failure:  # noqa: BLE001 - becomes a note
            self._fail(failure)

    def _leave(self, code: CodeType, frame: FrameType) -> None:
        try:
            thread = self._thread(get_ident())
            if thread.code is not code and not (thread.code is None and thread.frame == id(frame)):
                self._read_stack(thread, frame)
                # Written down although it ends, so that what runs too often is seen to include it.
                self._write(thread, thread.spot)
            thread.leave()
            self._write(thread, thread.spot)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _on_unwind(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del offset, error
        try:
            if id(code) in self._codes:
                self._leave(code, sys._getframe(1))
        except RecursionError:
            pass
