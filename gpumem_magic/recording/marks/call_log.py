"""Where torch's own calls are written down as they begin and end, in any thread: times and numbers of `Node`.

What is called for each module of a step: closures, because their names are found faster than attributes. Each does the
common case only, and leaves all others to the caller (`Slow`): a thread, module or code that is new, and looks.
``native/watch.c`` is the same in C, and taken where it was built.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpumem_magic.recording.marks.compiled import native
from gpumem_magic.recording.marks.store import BLOCK, ThreadLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from numpy.typing import NDArray

    from gpumem_magic.recording.marks.call_tree import Node

__all__ = ["IS_COPY", "CallLog", "Slow", "Written", "make_call_log"]

# Before 3.13, f_locals is a copy that lives as long as the frame and would keep what the call lets go of.
IS_COPY = sys.version_info < (3, 13)


class Slow(NamedTuple):
    """What becomes of the events that are not common. None of them raises anything but the cell's own.

    Attributes
    ----------
    begin, end, unwind
        Take one event: its code, and the frame that it is of.
    look
        Looks at what a call has that has just been written down.
    """

    begin: Callable[[CodeType, FrameType], None]
    end: Callable[[CodeType, FrameType], None]
    unwind: Callable[[CodeType, FrameType], None]
    look: Callable[[CodeType, FrameType], None]


class Written(NamedTuple):
    """What was written of one thread.

    Attributes
    ----------
    ident
        The thread.
    time_ns
        Unix nanoseconds of each mark, int64.
    number
        Numbers of the nodes, of the same length.
    dropped
        Older marks that were not kept.
    """

    ident: int
    time_ns: NDArray[np.int64]
    number: NDArray[Any]
    dropped: int


class CallLog(NamedTuple):
    """The callbacks, and what is written.

    Attributes
    ----------
    on_begin, on_end, on_unwind
        For ``sys.monitoring``.
    top
        Return the innermost call under way in a thread; None for a thread that is not known.
    move
        Write down that a thread, known or not, is at a node from now on.
    written
        Return the marks of all threads.
    """

    on_begin: Callable[[CodeType, int], Any]
    on_end: Callable[[CodeType, int, object], Any]
    on_unwind: Callable[[CodeType, int, BaseException], Any]
    top: Callable[[int], Node | None]
    move: Callable[[int, Node], None]
    written: Callable[[], list[Written]]


def make_call_log(
    root: Node, module_code: CodeType, watched: tuple[CodeType, ...], *, looks: Any, slow: Slow, limit: int
) -> CallLog:
    """Make the callbacks.

    Parameters
    ----------
    root
        No call is under way.
    module_code
        Whose ``self`` is the module that is called.
    watched
        All code objects that count.
    looks
        What a look costs nothing until: its ``next_ns``.
    slow
        Takes the events that are not common.
    limit
        Marks that all threads keep, about.
    """
    built = native()
    if built is None:
        return _make_in_python(root, module_code, {id(code) for code in watched}, looks=looks, slow=slow, limit=limit)
    watch = built.watch(root, module_code, watched, looks, *slow, limit)

    def written() -> list[Written]:
        pairs = [(ident, np.frombuffer(log, np.int64), dropped) for ident, log, dropped in watch.logs()]
        return [Written(ident, pair[::2], pair[1::2], dropped) for ident, pair, dropped in pairs]

    return CallLog(watch.on_begin, watch.on_end, watch.on_unwind, watch.top, watch.move, written)


class _Thread(ThreadLog):
    """A thread's marks, and the innermost call under way."""

    __slots__ = ("top",)

    def __init__(self, ident: int, root: Node) -> None:
        super().__init__(ident)
        self.top = root


def _make_in_python(  # noqa: C901, PLR0915
    root: Node, module_code: CodeType, watched: set[int], *, looks: Any, slow: Slow, limit: int
) -> CallLog:
    threads: dict[int, _Thread] = {}
    is_copy, getframe, thread_of, now_ns, ident_of = IS_COPY, sys._getframe, get_ident, time_ns, id
    begins_slowly, ends_slowly, unwinds_slowly, look = slow

    def begins(code: CodeType, offset: int) -> None:
        del offset
        try:
            thread = threads[thread_of()]
            top = thread.top
            if code is module_code:
                names = getframe(1).f_locals
                node = top.kin[ident_of(names["self"])]
                if is_copy:
                    names.clear()
            else:
                node = top.kin[ident_of(code)]
            count = thread.count
            thread.times[count] = now = now_ns()
            thread.spots[count] = node.number
            # Last, so that an interrupt in between loses a mark and mixes up none.
            thread.count = count + 1
            thread.top = node
            # Most calls are of inner modules, which have nothing to look at.
            if (top is not root and code is module_code) or now < looks.next_ns:
                return
            slowly = look
        except LookupError:
            slowly = begins_slowly
        try:  # noqa: SIM105 - suppress() is a call, for which there is no room
            slowly(code, getframe(1))
        except RecursionError:  # the cell's own, at its limit: the mark is lost
            pass

    def ends(code: CodeType, offset: int, value: object) -> None:
        del offset, value
        try:
            thread = threads[thread_of()]
            top = thread.top
            if top.code is code:
                below: Any = top.below  # only the root has none
                count = thread.count
                thread.times[count] = now_ns()
                thread.spots[count] = below.number
                thread.count = count + 1
                thread.top = below
                return
        except LookupError:
            pass
        try:  # noqa: SIM105
            ends_slowly(code, getframe(1))
        except RecursionError:
            pass

    def unwinds(code: CodeType, offset: int, error: BaseException) -> None:
        del offset, error
        if ident_of(code) in watched:  # a global event: mostly of somebody else's code
            try:  # noqa: SIM105
                unwinds_slowly(code, getframe(1))
            except RecursionError:
                pass

    def top_of(ident: int) -> Node | None:
        thread = threads.get(ident)
        return None if thread is None else thread.top

    def move(ident: int, node: Node) -> None:
        thread = threads.get(ident)
        if thread is None:
            thread = threads.setdefault(ident, _Thread(ident, root))
        if thread.count >= BLOCK:
            thread.flush(limit // len(threads))
        count = thread.count
        thread.times[count] = now_ns()
        thread.spots[count] = node.number
        thread.count = count + 1
        thread.top = node

    def written() -> list[Written]:
        return [Written(thread.ident, *thread.columns(), thread.dropped) for thread in list(threads.values())]

    return CallLog(begins, ends, unwinds, top_of, move, written)
