"""Line marks through ``sys.monitoring`` (Python 3.12 and later).

How the notebook's code is found: PY_START and PY_RESUME are switched on for all code, and the first time a code object
runs its file name decides. A library's answers DISABLE and is never heard of again; the notebook's gets LINE, PY_RETURN
and PY_YIELD of its own. That finds a cell's statements, what ``%%time`` compiles, functions, methods and generators of
earlier cells however they are reached, with no hook on IPython. It costs 1 µs per distinct code object that runs in the
cell, and 1 µs more after it (3,000 of them: 3 ms; a hook on ``compile`` would miss what earlier cells made, and a scan
of all objects takes longer than that). PY_UNWIND and PY_THROW exist as global events only.

Each thread has a stack of the notebook's frames, kept by these events. An event that does not fit the stack (of a
greenlet, of a generator closed by the garbage collector) makes it be read again from the real frames. Frames are never
held, because they keep tensors alive.

When lines run by the thousands (see `Pace`), the watch goes quiet: the locations that fired lately answer DISABLE, and
the thread's place becomes what they have in common, "lines 3 to 5" or the line that called them all. The first location
that fires outside of these ends the quiet, as does a look every 50 ms if anything was allocated. DISABLE is undone by
switching the code object's local events off and on: ``restart_events`` would do so to debuggers and coverage as well.
PY_START and PY_RESUME cannot be brought back that way, being global; a function that lost them is recognised by its
frame at its next line.
"""

from __future__ import annotations

import sys
import threading
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.marks.pace import Pace
from gpumem_magic.recording.marks.quiet import summarise
from gpumem_magic.recording.marks.store import BLOCK, NOWHERE, UNKNOWN, Spots, ThreadLog, build_marks
from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks.quiet import Hot
    from gpumem_magic.recording.model import Marks

__all__ = ["MonitoringMarks"]

_mon: Any = getattr(sys, "monitoring", None)
_TOOL = "gpumem_magic"
_FREE_IDS = (3, 4)  # 0, 1, 2 and 5 are for debuggers, coverage, profilers and optimizers
_LOOK_SECONDS = 0.05
_STRIKES = 3  # so often may a quiet be widened before all is "line unknown" until the next look
_PARENT = -1  # key of the calling spot among a function's lines
_STALE = -1  # `_Frame.ident` of a stack that must be read again


class _Code:
    """A code object of the notebook, and the spots of its lines by calling spot."""

    __slots__ = ("callers", "code", "deaf", "key", "muted")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.key = (code.co_filename, code.co_name)
        self.callers: dict[int, dict[int, int]] = {}
        self.muted = False  # some location answered DISABLE
        self.deaf = False  # PY_START or PY_RESUME answered DISABLE, for good

    def line_at(self, offset: int) -> int:
        """Return the line of the instruction at `offset` bytes; the first line when it has none."""
        for start, end, line in self.code.co_lines():
            if start <= offset < end:
                return line or self.code.co_firstlineno
        return self.code.co_firstlineno

    def span(self) -> tuple[int, int]:
        """Return the first and last line of its own instructions."""
        lines = [line for _, _, line in self.code.co_lines() if line]
        return (min(lines), max(lines)) if lines else (self.code.co_firstlineno,) * 2


class _Frame:
    """An entry of a thread's stack: the spots of the function's lines for this caller, and where it is now.

    `code` is what events are compared with; it is None where the frame itself must be looked at (`ident`).
    """

    __slots__ = ("below", "code", "ident", "lines", "spot")

    def __init__(
        self, code: CodeType | None, lines: dict[int, int], spot: int, below: _Frame | None, ident: int = 0
    ) -> None:
        self.code = code
        self.lines = lines
        self.spot = spot
        self.below = below
        self.ident = ident


class _Thread(ThreadLog):
    """A thread's marks and its stack, whose lowest entry stands for "no notebook code"."""

    __slots__ = ("top",)

    def __init__(self, ident: int) -> None:
        super().__init__(ident)
        self.top = _Frame(None, {}, NOWHERE, None)

    def forget(self, spot: int) -> None:
        """Stay at `spot` until the stack is read again."""
        self.top = _Frame(None, {}, spot, None, _STALE)


class MonitoringMarks:
    """See `gpumem_magic.recording.marks.start`."""

    transformer = None

    def __init__(self, is_cell: Callable[[str], bool], *, progress: Callable[[], int] | None, max_marks: int) -> None:
        self._is_cell = is_cell
        self._files: dict[str, bool] = {}
        self._codes: dict[int, _Code] = {}
        self._muted: list[_Code] = []
        self._recursive: set[tuple[str, str]] = set()
        self._threads: dict[int, _Thread] = {}
        self._spots = Spots()
        self._max_marks = max_marks
        self._notes: list[Note] = []
        self._hot: Hot | None = None
        self._raced: list[_Code] = []
        self._looks: threading.Thread | None = None
        self._over = threading.Event()
        self._marks: Marks | None = None
        self._pace = Pace(time_ns(), progress)
        self._tool = self._take_tool()
        if self._tool is not None:
            self._begin()

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why lines are missing or incomplete."""
        return tuple(self._notes)

    # Beginning and end

    def _take_tool(self) -> int | None:
        for tool in _FREE_IDS:
            if _mon.get_tool(tool) is None:
                try:
                    _mon.use_tool_id(tool, _TOOL)
                except ValueError:  # taken in between by another thread
                    continue
                return tool
        names = " and ".join(str(_mon.get_tool(tool)) for tool in _FREE_IDS)
        text = f"lines are unknown: {names} hold sys.monitoring's free tool ids; use --stacks python, or end them"
        self._notes.append(Note("warning", text))
        return None

    def _begin(self) -> None:
        events = _mon.events
        self._local = events.LINE | events.PY_RETURN | events.PY_YIELD
        self._listen()
        _mon.set_events(self._tool, events.PY_START | events.PY_RESUME | events.PY_UNWIND | events.PY_THROW)
        try:
            # Code that is under way already: a ``with`` block's own, other threads'.
            for ident, frame in sys._current_frames().items():
                thread = self._thread(ident)
                self._read_stack(thread, frame)
                if thread.top.spot != NOWHERE:
                    self._write(thread, thread.top.spot)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _listen(self) -> None:
        events, quiet = _mon.events, self._hot is not None
        for event, loud_one, quiet_one in (
            (events.LINE, self._on_line, self._quiet_line),
            (events.PY_START, self._on_start, self._quiet_start),
            (events.PY_RESUME, self._on_resume, self._quiet_resume),
            (events.PY_THROW, self._on_throw, self._quiet_throw),
            (events.PY_RETURN, self._on_leave, self._quiet_leave),
            (events.PY_YIELD, self._on_leave, self._quiet_leave),
            (events.PY_UNWIND, self._on_unwind, self._quiet_unwind),
        ):
            _mon.register_callback(self._tool, event, quiet_one if quiet else loud_one)

    def _release(self) -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        _mon.set_events(tool, 0)
        for info in list(self._codes.values()):
            _mon.set_local_events(tool, info.code, 0)
        events = _mon.events
        for event in ("LINE", "PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD", "PY_UNWIND"):
            _mon.register_callback(tool, getattr(events, event), None)
        _mon.free_tool_id(tool)

    def _fail(self, error: Exception) -> None:
        text = f"line marks ended early ({type(error).__name__}: {error}); the cell itself is not affected"
        self._notes.append(Note("warning", " ".join(text.split())))
        self._over.set()
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
            self._release()
            if self._looks is not None:
                self._looks.join(1)
            if not watched:
                return None
            self._marks = build_marks(list(self._threads.values()), self._spots, has_functions=True)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        self._codes.clear()
        self._muted.clear()
        self._raced.clear()
        self._threads.clear()
        return self._marks

    # Code, threads, stacks

    def _is_mine(self, code: CodeType) -> bool:
        name = code.co_filename
        mine = self._files.get(name)
        if mine is None:
            mine = self._files[name] = bool(self._is_cell(name))
        return mine

    def _find(self, code: CodeType) -> _Code | None:
        """Return what is known of a code object; None for a library's."""
        # By identity: hashing a code object reads all of it. The entry keeps it alive, so the id stays its own.
        info = self._codes.get(id(code))
        if info is None and self._tool is not None and self._is_mine(code):
            info = self._codes.setdefault(id(code), _Code(code))
            _mon.set_local_events(self._tool, code, self._local)
        return info

    def _thread(self, ident: int) -> _Thread:
        thread = self._threads.get(ident)
        return thread if thread is not None else self._threads.setdefault(ident, _Thread(ident))

    def _lines(self, info: _Code, caller: int) -> dict[int, int]:
        """Return the spots of a function's lines when called from `caller`; a recursive call joins the outermost."""
        lines = info.callers.get(caller)
        if lines is not None:
            return lines
        parent = caller
        for spot in self._spots.path(caller):
            if (spot.file, spot.name) == info.key:
                self._recursive.add(info.key)
                parent = spot.parent
                break
        lines = info.callers.setdefault(parent, {_PARENT: parent})
        info.callers[caller] = lines
        return lines

    def _spot(self, info: _Code, lines: dict[int, int], line: int) -> int:
        spot = lines.get(line)
        if spot is None:
            spot = lines[line] = self._spots.add(lines[_PARENT], *info.key, line, line)
        return spot

    def _read_stack(self, thread: _Thread, frame: FrameType | None) -> None:
        """Make the thread's stack what the real frames say, innermost `frame`."""
        chain: list[tuple[_Code, int, int]] = []
        while frame is not None:
            info = self._find(frame.f_code)
            if info is not None:
                chain.append((info, frame.f_lineno or frame.f_code.co_firstlineno, id(frame)))
            frame = frame.f_back
        top = _Frame(None, {}, NOWHERE, None)
        for info, line, ident in reversed(chain):
            lines = self._lines(info, top.spot)
            top = _Frame(None if info.deaf else info.code, lines, self._spot(info, lines, line), top, ident)
        thread.top = top
        if self._raced:
            # A location may have answered DISABLE just after it was brought back by the looking thread.
            raced, self._raced = self._raced, []
            self._unmute(raced)

    def _write(self, thread: _Thread, spot: int) -> None:
        if thread.count >= BLOCK:
            recent = set(thread.spots)
            thread.flush(max(4 * BLOCK, self._max_marks // len(self._threads)))
            if self._hot is None and not self._pace.spend_block(time_ns()):
                self._go_quiet(thread, recent | {spot})
                spot = thread.top.spot
        count = thread.count
        thread.times[count] = time_ns()
        thread.spots[count] = spot
        thread.count = count + 1

    # Events while awake
    #
    # At the interpreter's recursion limit there is no room for what they do. The error that says so is the cell's, not
    # ours: the mark is lost, and the next event of other code reads the stack anew.

    def _on_line(self, code: CodeType, line: int) -> Any:
        try:
            thread = self._threads[get_ident()]
            top = thread.top
            if top.code is code:
                spot = top.spot = top.lines[line]
                count = thread.count
                thread.times[count] = time_ns()
                thread.spots[count] = spot
                # Last, so that an interrupt in between loses a mark and mixes up none.
                thread.count = count + 1
                return None
        except LookupError:  # a new thread, a new line, or the block is full
            pass
        try:  # noqa: SIM105 - suppress() is a call, for which there is no room
            self._line(code, line, sys._getframe(1))
        except RecursionError:
            pass
        return None

    def _line(self, code: CodeType, line: int, frame: FrameType) -> None:
        try:
            info = self._find(code)
            if info is None:
                return
            thread = self._thread(get_ident())
            top = thread.top
            if top.code is not code and not (info.deaf and top.ident == id(frame)):
                self._read_stack(thread, frame)
                top = thread.top
            top.spot = self._spot(info, top.lines, line)
            self._write(thread, top.spot)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _on_start(self, code: CodeType, offset: int) -> Any:
        del offset
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is None:
                return _mon.DISABLE
            self._enter(info, sys._getframe(1))
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return None

    def _enter(self, info: _Code, frame: FrameType) -> _Thread:
        thread = self._thread(get_ident())
        top = thread.top
        if top.ident == _STALE:
            self._read_stack(thread, frame)
            return thread
        lines = info.callers.get(top.spot)
        if lines is None:
            lines = self._lines(info, top.spot)
        thread.top = _Frame(None if info.deaf else info.code, lines, top.spot, top, id(frame) if info.deaf else 0)
        return thread

    def _on_resume(self, code: CodeType, offset: int) -> Any:
        try:
            info = self._codes.get(id(code)) or self._find(code)
            if info is None:
                return _mon.DISABLE
            self._resume(info, offset, sys._getframe(1))
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return None

    def _resume(self, info: _Code, offset: int, frame: FrameType) -> None:
        # A generator goes on in the middle of a line, which does not fire again.
        thread = self._enter(info, frame)
        thread.top.spot = self._spot(info, thread.top.lines, info.line_at(offset))
        self._write(thread, thread.top.spot)

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

    def _on_leave(self, code: CodeType, offset: int, value: object) -> Any:
        del offset, value
        try:
            thread = self._threads[get_ident()]
            top = thread.top
            if top.code is code and top.below is not None:
                below = top.below
                count = thread.count
                thread.times[count] = time_ns()
                thread.spots[count] = below.spot
                thread.top = below
                thread.count = count + 1
                return None
        except LookupError:  # a new thread, or the block is full
            pass
        try:  # noqa: SIM105 - suppress() is a call, for which there is no room
            self._leave(code, sys._getframe(1))
        except RecursionError:
            pass
        return None

    def _leave(self, code: CodeType, frame: FrameType) -> None:
        try:
            thread = self._thread(get_ident())
            top = thread.top
            if top.code is not code and not (top.code is None and top.ident == id(frame)):
                self._read_stack(thread, frame)
                # Written down although it ends, so that what runs too often is seen to include it.
                self._write(thread, thread.top.spot)
            if thread.top.below is not None:
                thread.top = thread.top.below
            self._write(thread, thread.top.spot)
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

    # Quiet

    def _go_quiet(self, thread: _Thread, recent: set[int]) -> None:
        """Stop hearing what `thread` has been doing lately."""
        hot = self._hot = summarise(recent, self._spots, self._recursive)
        thread.forget(hot.spot)
        for other in list(self._threads.values()):
            if other is thread:
                continue
            for spot in self._spots.path(other.top.spot):
                if (spot.file, spot.name) in hot.inner or (spot.file, spot.name, spot.first) in hot.lines:
                    # It may move within the same functions unheard; the line that called them stays right.
                    other.forget(spot.parent if spot.parent != NOWHERE else UNKNOWN)
                    self._write(other, other.top.spot)
                    break
        self._listen()
        if self._looks is None:
            self._looks = threading.Thread(target=self._look, name="gpumem_magic line marks", daemon=True)
            self._looks.start()

    def _wake(self) -> None:
        """Hear everything again."""
        self._hot = None
        self._listen()
        self._raced, self._muted = self._muted, []
        self._unmute(self._raced)
        for thread in list(self._threads.values()):
            thread.forget(thread.top.spot)

    def _unmute(self, codes: list[_Code]) -> None:
        if self._tool is None:
            return
        for info in codes:
            info.muted = False
            _mon.set_local_events(self._tool, info.code, 0)
            _mon.set_local_events(self._tool, info.code, self._local)

    def _mute(self, info: _Code) -> Any:
        if not info.muted:
            info.muted = True
            self._muted.append(info)
        return _mon.DISABLE

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                if self._hot is not None and self._pace.allocated_since_check():
                    self._pace.spend_wake(time_ns())  # paid or not, a look is due
                    self._wake()
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
            if other is thread or other.top.spot != NOWHERE:
                other.forget(hot.spot if other is thread else UNKNOWN)
                self._write(other, other.top.spot)
        return False

    # Events while quiet. Global events of the notebook's code cannot be brought back: `_Code.deaf`.

    def _quiet_line(self, code: CodeType, line: int) -> Any:
        frame = sys._getframe(1)
        try:
            hot, info = self._hot, self._find(code)
            if info is None:
                return None
            if hot is not None and (hot.hears_nothing_of(info.key, line) or not self._is_news(frame)):
                return self._mute(info)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return self._line(code, line, frame)

    def _quiet_start(self, code: CodeType, offset: int) -> Any:
        return self._quiet_begin(code, offset, sys._getframe(1), resumes=False)

    def _quiet_resume(self, code: CodeType, offset: int) -> Any:
        return self._quiet_begin(code, offset, sys._getframe(1), resumes=True)

    def _quiet_begin(self, code: CodeType, offset: int, frame: FrameType, *, resumes: bool) -> Any:
        try:
            hot, info = self._hot, self._find(code)
            if info is None:
                return _mon.DISABLE
            if hot is not None and (hot.hears_nothing_of(info.key) or not self._is_news(frame)):
                info.deaf = True
                return _mon.DISABLE
            if resumes:
                self._resume(info, offset, frame)
            else:
                self._enter(info, frame)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return None

    def _quiet_leave(self, code: CodeType, offset: int, value: object) -> Any:
        del offset, value
        frame = sys._getframe(1)
        try:
            hot, info = self._hot, self._find(code)
            if info is None:
                return None
            if hot is not None and (hot.hears_no_end_of(info.key) or not self._is_news(frame.f_back)):
                return self._mute(info)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        return self._leave(code, frame)

    def _quiet_unwind(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del offset, error
        info = self._codes.get(id(code))
        hot = self._hot
        # Global, so it cannot be switched off: the shortest way comes first.
        if info is None or (hot is not None and hot.hears_no_end_of(info.key)):
            return
        frame = sys._getframe(1)
        try:
            if hot is not None and not self._is_news(frame.f_back):
                return
        except Exception as failure:  # noqa: BLE001 - becomes a note
            self._fail(failure)
        self._leave(code, frame)

    def _quiet_throw(self, code: CodeType, offset: int, error: BaseException) -> Any:
        del error
        frame = sys._getframe(1)
        try:
            hot, info = self._hot, self._find(code)
            if info is None or (hot is not None and (hot.hears_nothing_of(info.key) or not self._is_news(frame))):
                return
            self._resume(info, offset, frame)
        except Exception as failure:  # noqa: BLE001 - becomes a note
            self._fail(failure)
