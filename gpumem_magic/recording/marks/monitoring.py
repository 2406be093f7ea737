"""Line marks through ``sys.monitoring`` (Python 3.12 and later).

How the notebook's code is found: PY_START and PY_RESUME are switched on for all code, and the first time a code object
runs its file name decides. A library's answers DISABLE and is never heard of again; the notebook's gets LINE, PY_RETURN
and PY_YIELD of its own. That finds a cell's statements, what ``%%time`` compiles, functions, methods and generators of
earlier cells however they are reached, with no hook on IPython. It costs 1 µs per distinct code object that runs in the
cell, and 1 µs more after it (3,000 of them: 3 ms; a hook on ``compile`` would miss what earlier cells made, and a scan
of all objects takes longer than that). PY_UNWIND and PY_THROW exist as global events only.

Each thread has a stack of the notebook's frames, kept by these events; the thread that runs the cell only writes them
down, and its stack follows later (`gpumem_magic.recording.marks.tape`). An event that does not fit the stack (of a
greenlet, of a generator closed by the garbage collector) makes it be read again from the real frames. Frames are never
held, because they keep tensors alive.

When lines run by the thousands (see `Pace`), the watch goes quiet: the locations that fired lately answer DISABLE, and
the thread's place becomes what they have in common, "lines 3 to 5" or the line that called them all. The first location
that fires outside of these ends the quiet, as does a look every 50 ms if anything was allocated. DISABLE is undone by
switching the code object's local events off and on: ``restart_events`` would do so to debuggers and coverage as well.
PY_START and PY_RESUME, being global, come back only if they are off for all code meanwhile; until that is worth it, a
function that lost them is recognised by its frame at its next line.
"""

from __future__ import annotations

import sys
from time import time_ns
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.recording.marks.quiet_events import GLOBAL_EVENTS, QuietEvents
from gpumem_magic.recording.marks.stacks import monitoring
from gpumem_magic.recording.marks.store import NOWHERE, UNKNOWN, build_marks
from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.recording.model import Marks

__all__ = ["MonitoringMarks"]

_TOOL = "gpumem_magic"
_FREE_IDS = (3, 4)  # 0, 1, 2 and 5 are for debuggers, coverage, profilers and optimizers


class MonitoringMarks(QuietEvents):
    """See `gpumem_magic.recording.marks.start`."""

    transformer = None

    def __init__(self, is_cell: Callable[[str], bool], *, progress: Callable[[], int] | None, max_marks: int) -> None:
        super().__init__(is_cell, progress=progress, max_marks=max_marks)
        self._notes: list[Note] = []
        self._marks: Marks | None = None
        self._ended_ns: int | None = None  # when it was given up
        self._tool = self._take_tool()
        if self._tool is not None:
            self._begin()

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why lines are missing or incomplete."""
        return tuple(self._notes)

    def _take_tool(self) -> int | None:
        for tool in _FREE_IDS:
            if monitoring.get_tool(tool) is None:
                try:
                    monitoring.use_tool_id(tool, _TOOL)
                except ValueError:  # taken in between by another thread
                    continue
                return tool
        names = " and ".join(str(monitoring.get_tool(tool)) for tool in _FREE_IDS)
        text = f"lines are unknown: {names} hold sys.monitoring's free tool ids; use --stacks python, or end them"
        self._notes.append(Note("warning", text))
        return None

    def _begin(self) -> None:
        events = monitoring.events
        self._local = events.LINE | events.PY_RETURN | events.PY_YIELD
        self._listen()
        monitoring.set_events(self._tool, GLOBAL_EVENTS)
        self._slowly(self._read_all)

    def _read_all(self) -> None:
        """Find the code that is under way already: a ``with`` block's own, other threads'."""
        frame = None
        try:
            for ident, frame in sys._current_frames().items():
                if ident == self._own or self._is_within(frame):
                    thread = self._thread(ident)
                    self._read_stack(thread, frame)
                    if thread.spot != NOWHERE:
                        self._write(thread, thread.spot)
                    self._go_on(thread)
        finally:
            # One of them is this very frame: the variable is a cycle, with all that its callers hold.
            del frame

    def _listen(self) -> None:
        tool = self._tool
        if tool is None:
            return
        events, tape, quiet = monitoring.events, self._tape, self._hot is not None
        on_line = tape.on_any_line if self._is_shared else tape.on_line
        on_leave = tape.on_any_leave if self._is_shared else tape.on_leave
        for event, loud_one, quiet_one in (
            (events.LINE, on_line, self._quiet_line),
            (events.PY_START, tape.on_start, self._quiet_start),
            (events.PY_RESUME, tape.on_resume, self._quiet_resume),
            (events.PY_THROW, self._on_throw, self._quiet_throw),
            (events.PY_RETURN, on_leave, self._quiet_leave),
            (events.PY_YIELD, on_leave, self._quiet_leave),
            (events.PY_UNWIND, tape.on_unwind, self._quiet_unwind),
        ):
            monitoring.register_callback(tool, event, quiet_one if quiet else loud_one)

    def _release(self) -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        monitoring.set_events(tool, 0)
        for info in list(self._codes.values()):
            monitoring.set_local_events(tool, info.code, 0)
        events = monitoring.events
        for event in ("LINE", "PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD", "PY_UNWIND"):
            monitoring.register_callback(tool, getattr(events, event), None)
        monitoring.free_tool_id(tool)

    def _fail(self, error: Exception) -> None:
        if self._over.is_set():  # what other threads' events meet while the watch ends
            return
        self._over.set()
        self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        text = f"line marks ended early ({type(error).__name__}: {error}); the cell itself is not affected"
        self._notes.append(Note("warning", " ".join(text.split())))
        self._ended_ns = time_ns()
        try:
            self._release()
        except Exception as second:  # noqa: BLE001 - a failing interpreter hook must not fail the cell
            self._notes.append(Note("warning", f"sys.monitoring could not be released: {second}"))

    def stop(self) -> Marks | None:
        """Stop watching and return the marks."""
        if self._marks is not None:
            return self._marks
        watched = self._tool is not None or bool(self._codes)
        self._over.set()
        try:
            self._alone(self._release)
            # Another thread may just have made it, and will start it: it then ends at once.
            if self._looks is not None and self._looks.is_alive():
                self._looks.join(1)
            if not watched:
                return None
            self._alone(self._settle)
            self._end_early()
            self._marks = build_marks(list(self._threads.values()), self._spots, has_functions=True)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._give_up(error)
        self._codes.clear()
        self._heard.clear()
        self._numbered.clear()
        self._muted.clear()
        self._answered.clear()
        self._late.clear()
        self._threads.clear()
        del self._tape  # which calls this: nothing is left to the collector
        return self._marks

    def _end_early(self) -> None:
        """Say that the lines are unknown from when they were given up."""
        if self._ended_ns is None:
            return
        for thread in list(self._threads.values()):
            if thread.newest == NOWHERE:
                continue
            thread.flush(self._limit())
            times, _ = thread.columns()
            # The event that failed may have been written down later than that.
            moment = max(self._ended_ns, int(times.max(initial=0)) + 1000)
            thread.extend(np.array([moment]), np.array([UNKNOWN], np.uint32), self._limit())
