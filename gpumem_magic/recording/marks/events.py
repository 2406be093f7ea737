"""What ``sys.monitoring``'s events do while every line is marked.

Those of the thread that runs the cell are written on a tape (`tape`), and become marks when a stack is asked for that
they change: here, whenever an event comes that does not fit (`_thread`), and at the end. Those of other threads become
marks at once.

At the interpreter's recursion limit there is no room for it. The error that says so is the cell's, not ours: the mark
is lost, and the next event of other code reads the stack anew.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.recording.marks.pace import Pace
from gpumem_magic.recording.marks.stacks import LEAST_BASE, NO_ROOM, STALE, Stacks, monitoring
from gpumem_magic.recording.marks.store import BLOCK
from gpumem_magic.recording.marks.tape import LEAVE, Slow, make_tape, read_tape

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from numpy.typing import NDArray

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
        self._is_too_often = False  # which the next mark is to find out
        self._own = get_ident()
        self._is_shared = False  # other threads may be in the notebook's code
        slow = Slow(
            self._line, self._start, self._resumed, self._leave, self._unwind, self._hear, self._pause, self._fail
        )
        self._tape = make_tape(
            self._own,
            codes=self._codes,
            numbers=self._heard,
            resumes=self._resumes,
            files=self._files,
            slow=slow,
        )

    def _fail(self, error: Exception) -> None:
        """Give up marking; the cell goes on."""
        raise NotImplementedError

    def _go_quiet(self, thread: ThreadStack, recent: set[int]) -> None:
        """Stop hearing what `thread` has been doing lately."""
        raise NotImplementedError

    def _limit(self) -> int:
        return max(4 * BLOCK, self._max_marks // max(1, len(self._threads)))

    def _thread(self, ident: int) -> ThreadStack:
        thread = super()._thread(ident)
        if ident == self._own:
            self._settle(thread)
        elif not self._is_shared:
            self._is_shared = True
            self._listen()
        return thread

    def _listen(self) -> None:
        """Register the callbacks that fit."""
        raise NotImplementedError

    def _settle(self, thread: ThreadStack | None = None) -> None:
        """Make the stack of the thread that runs the cell what its events so far say."""
        tape = self._tape.take()
        if tape:
            thread = thread or super()._thread(self._own)
            thread.flush(self._limit())
            thread.extend(*self._replay(thread, *read_tape(tape)), self._limit())

    def _hear(self, code: CodeType, offset: int | None) -> int | None:
        try:
            info = self._find(code)
            if info is not None and offset is not None:
                self._resumes[id(code), offset] = info.line_at(offset)
        except RecursionError:
            return None
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
            return None
        return self._heard.get(id(code))

    def _pause(self, written: int, now_ns: int) -> int:
        if self._tape.size() > self._limit() // 2:
            self._settle()
            return 0
        self._is_too_often = not self._pace.spend(written, now_ns)
        return 0 if self._is_too_often else self._pace.rest()

    def _write(self, thread: ThreadStack, spot: int) -> None:
        if thread.count >= BLOCK:
            self._is_too_often |= self._hot is None and not self._pace.spend(BLOCK, time_ns())
            thread.flush(self._limit())
        if self._is_too_often:
            self._is_too_often = False
            if self._hot is None:
                self._go_quiet(thread, {*thread.latest(BLOCK), spot})
                spot = thread.spot
        count = thread.count
        thread.times[count] = time_ns()
        thread.spots[count] = spot
        thread.count = count + 1

    def _replay(
        self, thread: ThreadStack, times: NDArray[np.int64], kinds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Move `thread` through what the tape says; return times and spots of the marks."""
        if not len(kinds):
            return times, kinds.astype(np.uint32)
        # What a line becomes a spot by, and how many lines of that there are, one after the other.
        bases, lengths, done = [], [], 0
        turns = np.flatnonzero(kinds <= LEAVE)
        before = kinds[np.maximum(turns - 1, 0)].tolist()
        whats = kinds[turns].tolist()
        for turn, what, line in zip(
            [*turns.tolist(), len(kinds)], [*whats, None], [*before, int(kinds[-1])], strict=True
        ):
            if turn > done:
                bases.append(thread.base)
                lengths.append(turn - done)
                thread.spot = self._spot(thread.base, line)
            if what is None:
                break
            if what == LEAVE:
                thread.leave()
                base = thread.spot
            else:
                info = self._numbered[what]
                base = self._base(info, thread.spot)
                thread.enter(info, base, thread.spot, 0)
            bases.append(base)
            lengths.append(1)
            done = turn + 1
        base_of = np.repeat(np.array(bases, np.int64), lengths)
        # Without room for its lines a function counts as the spot that calls it.
        spots = np.where(base_of < LEAST_BASE, base_of - NO_ROOM, base_of + kinds)
        kept = kinds >= LEAVE
        return times[kept], spots[kept].astype(np.uint32)

    # Events of other threads, of new code, and what does not fit.

    def _go_on(self, thread: ThreadStack) -> None:
        """Let the tape go on from here, once all is as it should be."""
        if thread.ident == self._own and self._hot is None and not self._is_too_often:
            self._tape.load(thread)

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
            self._go_on(thread)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _start(self, code: CodeType, frame: FrameType) -> Any:
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is None:
                return monitoring.DISABLE
            self._go_on(self._enter(info, frame))
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

    def _resumed(self, code: CodeType, offset: int, frame: FrameType) -> Any:
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is None:
                return monitoring.DISABLE
            self._resume(info, offset, frame)
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
        self._go_on(thread)

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
            self._go_on(thread)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _unwind(self, code: CodeType, frame: FrameType) -> None:
        if id(code) in self._codes:
            self._leave(code, frame)
