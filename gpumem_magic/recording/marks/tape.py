"""What the thread that runs the cell writes down at each event: as little as can be, to be told apart later.

Between two operations of torch nothing of ours is left in the processor's caches, and an event takes four times what it
takes in a loop: each list, dictionary and object that it touches counts. So a line is its number and the time, a call
the number of its code, the end of a call a zero. Which stack of lines each was is worked out when it is asked for
(`gpumem_magic.recording.marks.events`), at the latest when the cell has ended. Only that an event fits is seen at once:
one that does not fit the calls so far has to be compared with the real frames, which will be gone later.
"""

from __future__ import annotations

import struct
import sys
from _thread import get_ident
from array import array
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.recording.marks.stacks import STALE, monitoring
from gpumem_magic.recording.marks.store import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks.stacks import ThreadStack

__all__ = ["LEAVE", "LONG", "SHORT", "Slow", "Tape", "make_tape"]

# Events until the pace is checked: to put a block aside takes 20 µs between operations of torch, which is 3 % of what
# the events of a short one take, and less of a long one. A short one is all that a closer look may cost.
SHORT, LONG = BLOCK, 8 * BLOCK
LEAVE = 0  # lines are above it, codes that begin below
_ELSEWHERE = object()  # in place of a code object whose events must be compared by frame; it fits no event

Linked = tuple[object, "Linked | None"]


class Slow(NamedTuple):
    """What becomes of the events that are not common: other threads', new code's, those that do not fit.

    Attributes
    ----------
    line, start, resume, leave, unwind
        Take one event; what the second and the third answer goes to ``sys.monitoring``.
    may_go_on
        Told how many events have just been put aside, tells how many may be written before it is asked again: `SHORT`,
        `LONG` or 0.
    fail
        Gives up.
    """

    line: Callable[[CodeType, int, FrameType], None]
    start: Callable[[CodeType, FrameType], Any]
    resume: Callable[[CodeType, int, FrameType], Any]
    leave: Callable[[CodeType, FrameType], None]
    unwind: Callable[[CodeType, FrameType], None]
    may_go_on: Callable[[int], int]
    fail: Callable[[Exception], None]


class Tape(NamedTuple):
    """The callbacks, and what takes from them.

    Attributes
    ----------
    on_line, on_start, on_resume, on_leave, on_unwind
        For ``sys.monitoring``.
    take
        Return what was written, oldest first, and forget it: Unix nanoseconds and what each was. No event fits until
        the next `load`.
    load
        Go on from the stack of this thread.
    share
        Tell that other threads may be in the notebook's code. As long as none is, lines and ends of calls need not ask
        which thread theirs is, which takes a fifth of an event; the beginning of a call tells of one that comes in.
    size
        Return how much is written.
    """

    on_line: Callable[[CodeType, int], Any]
    on_leave: Callable[[CodeType, int, object], Any]
    on_start: Callable[[CodeType, int], Any]
    on_resume: Callable[[CodeType, int], Any]
    on_unwind: Callable[[CodeType, int, BaseException], Any]
    take: Callable[[], tuple[array[int], array[int]]]
    load: Callable[[ThreadStack], None]
    share: Callable[[], None]
    size: Callable[[], int]


# Closures, because their variables are found faster than attributes; in one function, because they share them.
def make_tape(  # noqa: C901, PLR0915
    own: int,
    *,
    codes: Container[int],
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
    blank = [0] * LONG
    blocks = {size: (blank[:size], blank[:size]) for size in (SHORT, LONG)}
    times, what = blocks[SHORT]
    count = 0
    current: object = None  # the innermost function's code; None: no event fits
    below: Linked | None = None  # its callers'
    is_alone = True
    old_times, old_what = array("q"), array("i")
    number_of, line_of, getframe, disable = numbers.get, resumes.get, sys._getframe, monitoring.DISABLE
    slow_line, slow_start, slow_resume = slow.line, slow.start, slow.resume
    slow_leave, slow_unwind, may_go_on = slow.leave, slow.unwind, slow.may_go_on
    fail = slow.fail

    # `count` is changed last, and nothing is called between what belongs together, so that neither an interrupt nor
    # another thread comes in between.

    def on_line(code: CodeType, line: int) -> Any:
        nonlocal count
        while code is current and (is_alone or get_ident() == own):
            try:
                times[count] = time_ns()
                what[count] = line
                count += 1
            except IndexError:
                if not turn():
                    break
            else:
                return None
        try:
            return slow_line(code, line, getframe(1))
        except RecursionError:
            return None

    def on_start(code: CodeType, offset: int) -> Any:
        nonlocal count, current, below
        del offset
        number = number_of(id(code))
        if number is None:
            # All of a library's code that runs comes by once in each cell.
            if files.get(code.co_filename) is False:
                return disable
        else:
            while get_ident() == own and current is not None:
                try:
                    what[count] = number
                    count += 1
                    below = (current, below)
                    current = code
                except IndexError:
                    if not turn():
                        break
                else:
                    return None
        try:
            return slow_start(code, getframe(1))
        except RecursionError:
            return None

    def on_resume(code: CodeType, offset: int) -> Any:
        nonlocal count, current, below
        line = line_of((id(code), offset))
        while line is not None and get_ident() == own and current is not None:
            try:
                now = time_ns()
                what[count] = numbers[id(code)]
                times[count + 1] = now
                what[count + 1] = line
                count += 2
                below = (current, below)
                current = code
            except IndexError:
                if not turn():
                    break
            except KeyError:  # no longer heard
                break
            else:
                return None
        try:
            return slow_resume(code, offset, getframe(1))
        except RecursionError:
            return None

    def on_leave(code: CodeType, offset: int, value: object) -> Any:
        nonlocal count, current, below
        del offset, value
        while code is current and below is not None and (is_alone or get_ident() == own):
            try:
                times[count] = time_ns()
                what[count] = LEAVE
                count += 1
                current, below = below
            except IndexError:
                if not turn():
                    break
            else:
                return None
        try:
            return slow_leave(code, getframe(1))
        except RecursionError:
            return None

    def on_unwind(code: CodeType, offset: int, error: BaseException) -> Any:
        nonlocal count, current, below
        del offset, error
        # A global event: mostly of a library's code.
        if id(code) not in codes:
            return None
        while get_ident() == own and code is current and below is not None:
            try:
                times[count] = time_ns()
                what[count] = LEAVE
                count += 1
                current, below = below
            except IndexError:
                if not turn():
                    break
            else:
                return None
        try:
            return slow_unwind(code, getframe(1))
        except RecursionError:
            return None

    def put_aside() -> int:
        nonlocal count, old_times, old_what
        done = count
        # Half of the time that a list takes.
        moments = array("q", struct.pack(f"{done}q", *times[:done]))
        kinds = array("i", struct.pack(f"{done}i", *what[:done]))
        old_times += moments
        old_what += kinds
        # The numbers are freed here, where they are in the caches: one by one, by those that take their places, it
        # took a third of a line's time.
        times[:done] = what[:done] = blank[:done]
        count = 0
        return done

    def turn() -> bool:
        nonlocal times, what
        try:
            size = may_go_on(put_aside())
            if size:
                times, what = blocks[size]
        except RecursionError:
            return False
        except Exception as error:  # noqa: BLE001 - becomes a note
            fail(error)
            return False
        return size > 0

    def take() -> tuple[array[int], array[int]]:
        nonlocal current, times, what, old_times, old_what
        current = None
        put_aside()
        times, what = blocks[SHORT]
        taken = old_times, old_what
        old_times, old_what = array("q"), array("i")
        return taken

    def load(thread: ThreadStack) -> None:
        nonlocal current, below
        callers, caller = [], thread.below
        while caller is not None:
            callers.append(caller[0])
            caller = caller[4]
        chain: Linked | None = None
        for code in reversed(callers):
            chain = (code or _ELSEWHERE, chain)
        below = chain
        current = None if thread.frame == STALE else thread.code or _ELSEWHERE

    def share() -> None:
        nonlocal is_alone
        is_alone = False

    def size() -> int:
        return len(old_times) + count

    return Tape(on_line, on_leave, on_start, on_resume, on_unwind, take, load, share, size)
