"""What the thread that runs the cell writes down at each event: as little as can be, to be told apart later.

Between two operations of torch little of ours is left in the processor's caches, and an event takes four times and more
of what it takes in a loop: each object that it touches counts, a closure's variables too. So a line is the time and its
number, a call the number of its code, the end of a call the time and a zero, one after the other in one list. Which
stack of lines each was is worked out when it is asked for (`gpumem_magic.recording.marks.events`), at the latest when
the cell has ended. Only that an event fits is seen at once: one that does not fit the calls so far has to be compared
with the real frames, which will be gone later.

``native/tape.c`` is the same in C, and taken where it was built.
"""

from __future__ import annotations

import struct
import sys
from _thread import get_ident
from array import array
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpumem_magic.recording.marks.compiled import native
from gpumem_magic.recording.marks.stacks import monitoring

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from numpy.typing import NDArray

__all__ = ["LEAVE", "Slow", "Tape", "make_tape", "read_tape"]

LEAVE = 0  # lines are above it, codes that begin below
_LEAST_TIME = 1 << 40  # nanoseconds: no line's number is as high, and 1970 is over
# The pace is checked, and what is written put aside, after this time: a hundred lines at once cost that much.
_FIRST_NS = 100_000
_PUT_ASIDE = 4_096  # from so many numbers on: 2,048 lines; fewer are not worth it
_ELSEWHERE = object()  # in place of a code object whose events must be compared by frame; it fits no event

Linked = tuple[object, "Linked | None"]


class Slow(NamedTuple):
    """What becomes of the events that are not common: other threads', new code's, those that do not fit.

    Attributes
    ----------
    line, start, resume, leave, unwind
        Take one event; what the second and the third answer goes to ``sys.monitoring``.
    hear
        Makes known a code object, and what line is at an offset where it goes on; returns its number, None when it has
        none.
    pause
        Told how many events have been written since it was asked last, and the time, tells how long it need not be
        asked again, in nanoseconds; 0 to write no more.
    alone
        Calls something while no other thread does so.
    fail
        Gives up, or lets an interrupt through.
    """

    line: Callable[[CodeType, int, FrameType], None]
    start: Callable[[CodeType, FrameType], Any]
    resume: Callable[[CodeType, int, FrameType], Any]
    leave: Callable[[CodeType, FrameType], None]
    unwind: Callable[[CodeType, FrameType], None]
    hear: Callable[[CodeType, int | None], int | None]
    pause: Callable[[int, int], int]
    alone: Callable[[Callable[[], None]], None]
    fail: Callable[[BaseException], None]


class Tape(NamedTuple):
    """The callbacks, and what takes from them.

    Attributes
    ----------
    on_line, on_leave
        For ``sys.monitoring``, as long as no other thread is in the notebook's code: they do not ask whose event it is.
    on_any_line, on_any_leave
        The same in any case.
    on_start, on_resume, on_unwind
        For ``sys.monitoring``. By the first two a thread comes into the notebook's code.
    take
        Return what was written (see `read_tape`) and forget it. No event fits until the next `load`. One thread at a
        time, which need not be the one that writes.
    load
        Go on from this stack of code objects, outermost first, None for one whose events must be compared by frame;
        an empty one fits no event.
    size
        Return how many events are written, about.
    """

    on_line: Callable[[CodeType, int], Any]
    on_leave: Callable[[CodeType, int, object], Any]
    on_any_line: Callable[[CodeType, int], Any]
    on_any_leave: Callable[[CodeType, int, object], Any]
    on_start: Callable[[CodeType, int], Any]
    on_resume: Callable[[CodeType, int], Any]
    on_unwind: Callable[[CodeType, int, BaseException], Any]
    take: Callable[[], bytes]
    load: Callable[[tuple[CodeType | None, ...]], None]
    size: Callable[[], int]


def make_tape(
    own: int,
    *,
    codes: dict[int, Any],
    numbers: dict[int, int],
    resumes: dict[tuple[int, int], int],
    files: dict[str, bool],
    slow: Slow,
) -> Tape:
    """Make the callbacks.

    Parameters
    ----------
    own
        The thread.
    codes
        Identities of the notebook's code objects.
    numbers
        By identity of one whose beginning is always heard, the number below 0 that stands for it.
    resumes
        By the same and the offset of an instruction in bytes, its line.
    files
        Whether a file is the notebook's.
    slow
        Takes all other events.
    """
    built = native()
    if built is None:
        return _make_in_python(own, codes=codes, numbers=numbers, resumes=resumes, files=files, slow=slow)
    tape = built.tape(
        own,
        codes,
        numbers,
        resumes,
        files,
        monitoring.DISABLE,
        line=slow.line,
        start=slow.start,
        resume=slow.resume,
        leave=slow.leave,
        unwind=slow.unwind,
        hear=slow.hear,
        pause=slow.pause,
        fail=slow.fail,
    )
    line, leave = tape.on_line, tape.on_leave  # to ask whose event it is costs nothing there
    return Tape(
        line, leave, line, leave, tape.on_start, tape.on_resume, tape.on_unwind, tape.take, tape.load, tape.size
    )


# Closures, because their variables are found faster than attributes; in one function, because they share them.
def _make_in_python(  # noqa: C901, PLR0915
    own: int,
    *,
    codes: dict[int, Any],
    numbers: dict[int, int],
    resumes: dict[tuple[int, int], int],
    files: dict[str, bool],
    slow: Slow,
) -> Tape:
    written: list[int] = []
    add, now_ns, ident_of, thread_of = written.append, time_ns, id, get_ident
    number_of, line_of, getframe, disable = numbers.get, resumes.get, sys._getframe, monitoring.DISABLE
    current: object = None  # the innermost function's code; None: no event fits
    below: Linked | None = None  # its callers'
    deadline = 0  # when the pace is to be checked
    seen = 0  # of `written`, when it was checked last
    aside = array("q")

    # An interrupt, which any signal's handler may raise, or another thread may come in after each call. So the stack is
    # changed just before what says so is written, with no call in between: they always agree. One between a time and
    # what it is of leaves a time that nothing follows.

    def on_line(code: CodeType, line: int) -> Any:
        if code is current:
            now = now_ns()
            add(now)
            add(line)
            if now < deadline:
                return None
        try:
            return line_slowly(code, line)
        except RecursionError:
            return None

    def on_any_line(code: CodeType, line: int) -> Any:
        if code is current and thread_of() == own:
            now = now_ns()
            add(now)
            add(line)
            if now < deadline:
                return None
        try:
            return line_slowly(code, line)
        except RecursionError:
            return None

    def on_start(code: CodeType, offset: int) -> Any:
        nonlocal current, below
        number = number_of(ident_of(code))
        if number is not None and current is not None and thread_of() == own:
            below = (current, below)
            current = code
            add(number)
            return None
        try:
            return start_slowly(code, offset)
        except RecursionError:
            return None

    def on_resume(code: CodeType, offset: int) -> Any:
        nonlocal current, below
        key = ident_of(code)
        number, line = number_of(key), line_of((key, offset))
        if number is not None and line is not None and current is not None and thread_of() == own:
            now = now_ns()
            # Here too: a generator that goes on in the middle of a line, again and again, meets no line.
            if now < deadline or check():
                below = (current, below)
                current = code
                add(number)
                add(now)
                add(line)
                return None
            slowly = resume_at_last
        else:
            slowly = resume_slowly
        try:
            return slowly(code, offset)
        except RecursionError:
            return None

    def on_leave(code: CodeType, offset: int, value: object) -> Any:  # noqa: ARG001 - to delete them is an instruction
        nonlocal current, below
        if code is current and below is not None:
            add(now_ns())
            current, below = below
            add(LEAVE)
            return None
        try:
            return leave_slowly(code)
        except RecursionError:
            return None

    def on_any_leave(code: CodeType, offset: int, value: object) -> Any:  # noqa: ARG001
        nonlocal current, below
        if code is current and below is not None and thread_of() == own:
            add(now_ns())
            current, below = below
            add(LEAVE)
            return None
        try:
            return leave_slowly(code)
        except RecursionError:
            return None

    def on_unwind(code: CodeType, offset: int, error: BaseException) -> Any:
        nonlocal current, below
        del offset
        # A global event: mostly of a library's code.
        if ident_of(code) not in codes:
            return None
        try:
            # What is no Exception is an interrupt, which may have come while an event was written.
            if code is current and below is not None and thread_of() == own and isinstance(error, Exception):
                add(now_ns())
                current, below = below
                add(LEAVE)
                return None
            return slow.unwind(code, getframe(1))
        except RecursionError:
            return None
        except BaseException as interrupt:  # noqa: BLE001 - raised again
            # The frame goes all the same, and no other event says so.
            if thread_of() == own:
                current = None
            slow.fail(interrupt)

    # By their callers, whose own callers' frames these are.

    def line_slowly(code: CodeType, line: int) -> Any:
        if code is current and thread_of() == own and check():
            return None
        return slow.line(code, line, getframe(2))

    # What runs for the first time is no reason to read the tape: there are dozens of functions in a model's first step.

    def start_slowly(code: CodeType, offset: int) -> Any:
        nonlocal current, below
        del offset
        # All of a library's code that runs comes by once in each cell.
        if files.get(code.co_filename) is False:
            return disable
        number = slow.hear(code, None) if current is not None and thread_of() == own else None
        if number is None:
            return slow.start(code, getframe(2))
        below = (current, below)
        current = code
        add(number)
        return None

    def resume_slowly(code: CodeType, offset: int) -> Any:
        nonlocal current, below
        if files.get(code.co_filename) is False:
            return disable
        number = slow.hear(code, offset) if current is not None and thread_of() == own else None
        if number is None:
            return slow.resume(code, offset, getframe(2))
        below = (current, below)
        current = code
        add(number)
        add(now_ns())
        add(resumes[ident_of(code), offset])
        return None

    def resume_at_last(code: CodeType, offset: int) -> Any:
        return slow.resume(code, offset, getframe(2))

    def leave_slowly(code: CodeType) -> Any:
        return slow.leave(code, getframe(2))

    def check() -> bool:
        nonlocal deadline, seen
        try:
            now, done = now_ns(), len(written)
            pause = slow.pause((done - seen) // 2, now)
            seen = len(written)  # which may have been taken
            if seen >= _PUT_ASIDE:
                slow.alone(put_aside)
            deadline = now + pause
        except RecursionError:
            return False
        except BaseException as error:  # noqa: BLE001 - becomes a note, or is raised again
            slow.fail(error)
            return False
        return pause > 0

    def put_aside() -> None:
        nonlocal aside, seen
        taken = (*written,)
        # Its own thread may be about to write what a time is of.
        if taken and taken[-1] >= _LEAST_TIME:
            taken = taken[:-1]
        # Half of the time that making the array of a list takes.
        numbers = array("q", struct.pack(f"{len(taken)}q", *taken))
        count = len(numbers)
        # No calls in between, so that neither an interrupt nor the other thread's next event comes in.
        aside += numbers
        # All at once, where they are in the caches: each one that takes another's place would have to look for it.
        del written[:count]
        seen = 0

    def take() -> bytes:
        nonlocal aside, current
        current = None
        put_aside()
        taken, fresh = aside.tobytes(), array("q")
        # No calls from here on: an interrupt leaves all of it, or comes when the caller has it.
        aside = fresh
        return taken

    def load(stack: tuple[CodeType | None, ...]) -> None:
        nonlocal current, below, deadline
        innermost: object = None
        chain: Linked | None = None
        for code in stack:
            if innermost is not None:
                chain = (innermost, chain)
            innermost = code or _ELSEWHERE
        below = chain
        deadline = now_ns() + _FIRST_NS
        current = innermost

    def size() -> int:
        return (len(aside) + len(written)) // 2

    return Tape(on_line, on_leave, on_any_line, on_any_leave, on_start, on_resume, on_unwind, take, load, size)


def read_tape(tape: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the events in order: Unix nanoseconds, where one has a time, and what it is.

    That is a line's number, `LEAVE` for the end of a call, or the number of a code, below it, that begins.
    """
    numbers = np.frombuffer(tape, np.int64)
    index = np.flatnonzero(numbers < _LEAST_TIME)
    return numbers[np.maximum(index - 1, 0)], numbers[index]
