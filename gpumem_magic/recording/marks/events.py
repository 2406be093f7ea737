"""What ``sys.monitoring``'s events do while every line is marked.

Those of the thread that runs the cell are written on a tape (`tape`), and become marks when a stack is asked for that
they change: here, whenever an event comes that does not fit (`_thread`), and at the end. Those of other threads become
marks at once. All but the writing is done by one thread at a time (`_alone`).

At the interpreter's recursion limit there is no room for it, and the handler of a signal may raise anything in the
middle of it. These errors are the cell's, not ours: the mark is lost, and the next event reads the stack anew.
"""

from __future__ import annotations

import sys
from _thread import RLock, get_ident
from functools import partial
from itertools import starmap
from time import time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.recording.marks.foreign import is_foreign
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

# Longer than any event of ours takes. A fork's child, or a finalizer that waits for another thread, may find the lock
# taken for good; without it a mark may be lost.
_PATIENCE_SECONDS = 0.5
# Events that may wait on the tape: to read so many takes 60 ms and 25 MB.
_MOST_WAITING = 1 << 18


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
        self._lock = RLock()  # one that an interrupt leaves taken stops only other threads, and those not for long
        self._left: list[bytes] = []  # what was on the tape and is not read
        self._is_lost = False  # an event, or a part of what it does: the stacks must be read again
        slow = Slow(
            partial(self._slowly, self._line),
            partial(self._slowly, self._start),
            partial(self._slowly, self._resumed),
            partial(self._slowly, self._leave),
            partial(self._slowly, self._unwind),
            self._hear,
            self._pause,
            self._alone,
            self._lose,
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

    def _alone(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call something while no other thread does so."""
        lock = self._lock
        if not lock.acquire(timeout=_PATIENCE_SECONDS):
            self._lock = lock = RLock()
            lock.acquire()
        try:
            return act(*args, **options)
        finally:
            lock.release()

    def _slowly(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do what an event asks for; return what goes to ``sys.monitoring``."""
        try:
            answer = self._alone(act, *args, **options)
            self._after()
        except RecursionError:  # without a call, for which there is no room
            self._is_lost = True
        except BaseException as error:  # noqa: BLE001 - becomes a note, or is raised again
            self._is_lost = True
            self._lose(error)
        else:
            return answer
        return None

    def _after(self) -> None:
        """Do what must not be done by one thread at a time."""
        raise NotImplementedError

    def _lose(self, error: BaseException) -> None:
        """Give up at a failure of ours; let an interrupt through, after which the stacks are read again."""
        self._is_lost = True
        if is_foreign(error):
            raise error
        if isinstance(error, Exception):
            self._fail(error)

    def _limit(self) -> int:
        return max(4 * BLOCK, self._max_marks // max(1, len(self._threads)))

    def _thread(self, ident: int) -> ThreadStack:
        thread = super()._thread(ident)
        if ident == self._own:
            self._settle(thread)
        elif not self._is_shared:
            self._is_shared = True
            self._listen()
        if self._is_lost:
            self._is_lost = False
            for other in list(self._threads.values()):
                other.stay(other.spot)
        return thread

    def _listen(self) -> None:
        """Register the callbacks that fit."""
        raise NotImplementedError

    def _settle(self, thread: ThreadStack | None = None) -> None:
        """Make the stack of the thread that runs the cell what its events so far say."""
        # C, and nothing else, between taking and keeping, so that no interrupt comes in there.
        self._left.extend(starmap(self._tape.take, ((),)))
        if not any(self._left):
            self._left = []
            return
        thread = thread or super()._thread(self._own)
        before = (thread.code, thread.base, thread.spot, thread.frame, thread.below)
        try:
            thread.flush(self._limit())
            thread.extend(*self._replay(thread, *read_tape(b"".join(self._left))), self._limit())
        except BaseException:
            # An interrupt: all that the cell has done may be on it, so the next event reads it again.
            thread.code, thread.base, thread.spot, thread.frame, thread.below = before
            raise
        self._left = []

    def _hear(self, code: CodeType, offset: int | None) -> int | None:
        try:
            info = self._find(code)
            if info is not None and offset is not None:
                self._resumes[id(code), offset] = info.line_at(offset)
        except RecursionError:
            return None
        except BaseException as error:  # noqa: BLE001 - becomes a note, or is raised again
            self._lose(error)
            return None
        return self._heard.get(id(code))

    def _pause(self, written: int, now_ns: int) -> int:
        if self._tape.size() > min(_MOST_WAITING, self._limit() // 2):
            self._alone(self._settle)
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

    # Events of other threads, of new code, and what does not fit: each by `_slowly`.

    def _go_on(self, thread: ThreadStack) -> None:
        """Let the tape go on from here, once all is as it should be."""
        if thread.ident == self._own and self._hot is None and not self._is_too_often:
            self._tape.load(thread.stack())

    def _line(self, code: CodeType, line: int, frame: FrameType) -> None:
        if self._find(code) is None:
            return
        thread = self._thread(get_ident())
        if thread.code is not code and not (thread.code is None and thread.frame == id(frame)):
            self._read_stack(thread, frame)
        thread.spot = self._spot(thread.base, line)
        self._write(thread, thread.spot)
        self._go_on(thread)

    def _start(self, code: CodeType, frame: FrameType) -> Any:
        info = self._find(code)
        if info is None:
            return monitoring.DISABLE
        self._go_on(self._enter(info, frame))
        return None

    def _enter(self, info: NotebookCode, frame: FrameType) -> ThreadStack:
        thread = self._thread(get_ident())
        if thread.frame == STALE:
            self._read_stack(thread, frame)
            return thread
        thread.enter(info, self._base(info, thread.spot), thread.spot, id(frame))
        return thread

    def _resumed(self, code: CodeType, offset: int, frame: FrameType) -> Any:
        info = self._find(code)
        if info is None:
            return monitoring.DISABLE
        self._resume(info, offset, frame)
        return None

    def _resume(self, info: NotebookCode, offset: int, frame: FrameType) -> None:
        # A generator goes on in the middle of a line, which does not fire again.
        thread = self._enter(info, frame)
        thread.spot = self._spot(thread.base, info.line_at(offset))
        self._write(thread, thread.spot)
        self._go_on(thread)

    def _on_throw(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del error
        try:  # noqa: SIM105 - suppress() is a call, for which there is no room
            self._slowly(self._thrown, code, offset, sys._getframe(1))
        except RecursionError:
            pass

    def _thrown(self, code: CodeType, offset: int, frame: FrameType) -> None:
        del offset
        if self._find(code) is None:
            return
        thread = self._thread(get_ident())
        caller = (thread.code, thread.base, thread.spot, thread.frame, thread.below)
        # What awaits it (``await``, ``yield from``) is on the stack too, but no event tells of that, here and when it
        # yields again.
        self._read_stack(thread, frame)
        if caller[3] != STALE:
            thread.below = caller
        self._write(thread, thread.spot)
        self._go_on(thread)

    def _leave(self, code: CodeType, frame: FrameType) -> None:
        thread = self._thread(get_ident())
        if thread.code is not code and not (thread.code is None and thread.frame == id(frame)):
            self._read_stack(thread, frame)
            # Written down although it ends, so that what runs too often is seen to include it.
            self._write(thread, thread.spot)
        thread.leave()
        self._write(thread, thread.spot)
        self._go_on(thread)

    def _unwind(self, code: CodeType, frame: FrameType) -> None:
        if id(code) in self._codes:
            self._leave(code, frame)
