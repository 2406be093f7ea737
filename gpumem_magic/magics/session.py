"""One shell's measurements: begun before a cell, ended after it, shown last.

The cell under ``%%gpumem`` runs natively: an input transformer takes the magic's line away, and IPython's own events
begin and end the recording. Where the magic stands below another one (``%%time``, ``%%timeit``, ``%%capture``) or is
used for a statement, IPython hands us text to run; that is a nested measurement, shown when its cell ends.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import classic_prompt, ipython_prompt, leading_indent
from IPython.display import publish_display_data

from gpumem_magic._errors import LeakError
from gpumem_magic._format import say
from gpumem_magic.magics.arguments import find_magic_line
from gpumem_magic.magics.cells import Cells, running_number
from gpumem_magic.magics.code import Body, compile_body
from gpumem_magic.magics.fail import fail_cell
from gpumem_magic.magics.timeit_runs import counted_timeit
from gpumem_magic.magics.warmup import no_warm_up, own_imports, warm_up_soon
from gpumem_magic.recording.interrupts import (
    free_import_lock,
    interrupt_between_imports,
    interrupt_deferred,
    press_again,
    take_press_back,
)
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from gpumem_magic.magics.arguments import Request
    from gpumem_magic.magics.auto import Keeper
    from gpumem_magic.magics.measurement import Measurement
    from gpumem_magic.recording.model import Cell

__all__ = ["Session"]

# What uses this package without a measured cell, and so imports modules of it.
_OTHER_WAYS = ("%gpumem_", "gpumem_magic.")


@dataclass
class _Frame:
    """A cell that runs: IPython's own information about it, and what we measure in it."""

    info: Any
    native: Measurement | None = None
    nested: dict[tuple[str, str], Measurement] = field(default_factory=dict)


class Session:
    """What one shell is measuring.

    Parameters
    ----------
    shell
        The running IPython shell.
    read
        Reads a magic line's options; raises ``UsageError``.
    keeper
        Keeps the ledger, and says which cells are measured without being asked.
    """

    def __init__(self, shell: Any, read: Callable[[str], Request], keeper: Keeper) -> None:
        self._shell = shell
        self._read = read
        self._keeper = keeper
        self._cells = Cells(shell)
        self._frames: list[_Frame] = []
        self._closing: Callable[[], None] | None = None

    # -- what IPython calls ----------------------------------------------------------------------------------------

    def strip_magic(self, lines: list[str]) -> list[str]:
        """Take ``%%gpumem`` out of a cell that is about to run, keeping the line numbers.

        Pure: IPython and front ends call it for other reasons too. Below another magic, or with options that cannot be
        read, the line stays, so that IPython calls the magic itself.
        """
        if self._running():
            return lines
        found = find_magic_line(lines)
        if found is None or self._request(found.arguments) is None:
            return lines
        rest = lines[found.at + 1 :]
        following = _first_line(rest)
        if following is not None and rest[following].startswith("%%"):
            return rest[following:]
        return [*lines[: found.at], "\n", *_cleaned(rest)]

    # For `check_complete`, which must go on seeing a cell magic (IPython leaves such transformers out there).
    strip_magic.has_side_effects = True  # type: ignore[attr-defined]

    def before_cell(self, info: Any) -> None:
        """Begin to measure, when the cell's magic line says so or every cell is measured."""
        try:
            with interrupt_deferred():
                self._begin(info)
        except KeyboardInterrupt:
            press_again()  # IPython would swallow it here and run the cell

    def _begin(self, info: Any) -> None:
        outer = self._running()
        if not outer and any(name in (info.raw_cell or "") for name in _OTHER_WAYS):
            no_warm_up()  # it imports itself what it needs
        self._cells.note(info.raw_cell or "", nested=bool(outer))
        self._frames = [*outer, _Frame(info)]
        if outer:
            self._note_body(info.raw_cell or "", outer)
            return
        lines = _cleaned((info.raw_cell or "").splitlines(keepends=True))
        found = find_magic_line(lines)
        request = self._keeper.request_for(info) if found is None else self._request(found.arguments)
        if request is None:
            return
        measurement = self._measurement(request)
        self._frames[-1].native = measurement
        above = 0 if found is None else found.at + 1
        rest = lines[above:]
        following = _first_line(rest)
        if following is not None and rest[following].startswith("%%"):
            measurement.lines.above = above + following + 1
            if rest[following].startswith("%%timeit"):
                measurement.hooks.enter_context(counted_timeit(measurement.count))
        measurement.begin(info.raw_cell or "")

    def _note_body(self, text: str, outer: list[_Frame]) -> None:
        """Note that another magic runs the end of its cell as a cell of its own."""
        measuring = [measurement for measurement in _measurements(outer) if measurement.is_running]
        if not measuring or not text.strip():
            return
        body = Body.of(text, self.running_sources())
        name = self._cells.file_name(text) if body.shown is not text else None
        if name is not None:
            for measurement in measuring:
                measurement.lines.bodies[name] = body.offset

    def after_cell(self, result: Any) -> None:
        """End what the cell measured, and show it."""
        free_import_lock()  # an import of the cell's may have been interrupted
        frame = self._take(result)
        # What was pressed for this cell must not stop the next one that somebody runs.
        came_late = not self._frames and take_press_back()
        if frame is not None and (frame.native is not None or frame.nested or self._ran_out_unmeasured(result)):
            try:
                # Snapshot and trace are hundreds of thousands of objects that a collection would only walk over.
                with interrupt_between_imports(once_more=_was_stopped(result)), paused_collector():
                    self._finish(frame, result)
            except KeyboardInterrupt:
                say("gpumem: no report: interrupted while it was made; the cell itself had ended")
                came_late = True
        if came_late:  # IPython would let the cells behind this one run
            fail_cell(self._shell, result, KeyboardInterrupt("after the cell had ended"))
        if self._closing is not None and self.is_idle:
            self._closing()
        else:
            warm_up_soon()

    def _finish(self, frame: _Frame, result: Any) -> None:
        measurement = frame.native
        if measurement is not None and measurement.is_running:
            if result is not None and result.error_before_exec is not None:
                measurement.abandon()
            else:
                error = KeyboardInterrupt() if result is None else result.error_in_exec
                measurement.finish(error, self._cell(measurement, frame, result))
        cell = self._cell_id(frame.info)
        for number, shown in enumerate(_measurements([frame])):
            shown.show(None if cell is None else (cell, number), cell)
        for measurement in _measurements([frame]):
            if measurement.broken_promise is not None:
                fail_cell(self._shell, result, LeakError(measurement.broken_promise))
        if measurement is None and not frame.nested:
            self._explain(frame, result)

    def _ran_out_unmeasured(self, result: Any) -> bool:
        """Tell whether the user's own cell ended because memory ran out, where nothing else is being measured."""
        error = getattr(result, "error_in_exec", None)
        if error is None or self._frames or getattr(result.info, "silent", False):
            return False
        if _was_stopped(result):
            return False
        with interrupt_deferred(), own_imports():
            from gpumem_magic.recording.failure import chain, is_out_of_memory

        return any(is_out_of_memory(one) for one in chain(error))

    def _explain(self, frame: _Frame, result: Any) -> None:
        """Say why a cell that nobody measured ran out of memory."""
        from gpumem_magic.magics.explain import explanation
        from gpumem_magic.recording.notes import one_line

        try:
            cell = self._describe(None, frame.info.raw_cell, *self._numbered(result))
            text = explanation(self._shell, result.error_in_exec, cell, self._keeper.idle)
        except Exception as error:  # noqa: BLE001 - told in one line; the cell's own error stands
            text = f"gpumem: why memory ran out could not be told ({one_line(error)})"
        if text is not None:
            publish_display_data({"text/plain": text})

    def close(self, forget: Callable[[], None]) -> None:
        """Call `forget`, which takes `after_cell` out of IPython's events, once nothing is being measured.

        A cell that unloads the extension still runs, with our marks between its lines.
        """
        if self.is_idle:
            forget()
        else:
            self._closing = forget

    @property
    def is_idle(self) -> bool:
        """True when no cell is being measured."""
        return not any(measurement.is_running for measurement in _measurements(self._running()))

    # -- what our own magics call ----------------------------------------------------------------------------------

    def run_nested(self, request: Request, body: Body, local_ns: dict[str, Any] | None = None) -> Any:
        """Measure text that another magic or a statement hands us, in the user's namespace.

        Parameters
        ----------
        request
            What the magic's line asks for.
        body
            What to run.
        local_ns
            Local names where the magic was called, when they are not the notebook's.

        Returns
        -------
        object
            The last expression's value.
        """
        __tracebackhide__ = True
        running = self._running()
        frame = running[-1] if running else _Frame(None)
        for outer in running:
            if outer.native is not None and outer.native.is_running and outer.native.request.brief:
                # Nobody asked for that one, so it ends here: two at a time would disturb each other.
                outer.native.finish(None, self._cell(outer.native, outer, None))
        if any(measurement.is_running for measurement in _measurements(running)):
            # One measurement at a time: what is under way covers this text.
            if body.is_statement:
                body = body._replace(offset=self._lines_above())
                of_no_cell = len(running) > 1  # it stands in text that the user's cell runs as a cell
            else:
                of_no_cell = body.shown not in self.running_sources()[:1]
            return compile_body(self._shell, body, of_no_cell=of_no_cell).run(self._shell, local_ns)
        key = (body.text, repr(request))
        known = frame.nested.get(key)
        if known is not None:
            known.count()
            if known.again is None:
                known.again = compile_body(self._shell, body)
            return known.again.run(self._shell, local_ns)
        measurement = self._measurement(request)
        frame.nested[key] = measurement
        try:
            value = self._run_first(measurement, body, local_ns)
        finally:
            if not running:  # no cell runs whose end would show it
                measurement.show()
        if not running and measurement.broken_promise is not None:
            raise LeakError(measurement.broken_promise)
        return value

    def _lines_above(self) -> int:
        """Count the lines of the running cell above the one that calls us; 0 where that is not known."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the cell's is below ours
        cells = self._cells.numbers()
        while frame is not None:
            if frame.f_code.co_filename in cells:
                return frame.f_lineno - 1
            frame = frame.f_back
        return 0

    def running_sources(self) -> list[str]:
        """Return the running cells as they were typed, the user's first, then those that magics run within it."""
        return [frame.info.raw_cell or "" for frame in self._running()]

    def _run_first(self, measurement: Measurement, body: Body, local_ns: dict[str, Any] | None) -> Any:
        __tracebackhide__ = True
        error: BaseException | None = None
        filenames: tuple[str, ...] = ()
        try:
            with interrupt_deferred():
                measurement.begin(body.text)
            compiled = compile_body(self._shell, body)
            filenames = (compiled.filename,)
            measurement.count()
            return compiled.run(self._shell, local_ns)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with interrupt_deferred():  # else a second press would leave it running
                cell = self._describe(measurement, body.shown, running_number(self._shell), filenames)
                measurement.finish(error, replace(cell, is_statement=body.is_statement))
            # A name that refers to the exception would keep the frame and its tensors alive.
            del error

    def _measurement(self, request: Request) -> Measurement:
        # The recorder comes with the first measured cell, not with the extension: half of what loading would cost.
        with interrupt_deferred(), own_imports():
            from gpumem_magic.magics.measurement import Measurement

        book = partial(self._keeper.book, brief=request.brief)
        keeper = self._keeper
        return Measurement(
            self._shell,
            request,
            self._cells.numbers,
            book,
            idle=keeper.idle,
            cleared=keeper.cleared,
            origin=keeper.origin,
        )

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _request(self, arguments: str) -> Request | None:
        """Read options; None where they are wrong, which the magic itself then says."""
        try:
            return self._read(arguments)
        except UsageError:
            return None

    def _running(self) -> list[_Frame]:
        """Cells that run now. One whose end IPython did not tell us is known by being the last one that finished."""
        last = getattr(self._shell, "last_execution_result", None)
        return [frame for frame in self._frames if last is None or frame.info is not last.info]

    def _take(self, result: Any) -> _Frame | None:
        """Remove and return the frame that ends, and forget those inside it whose end we were not told."""
        for index in range(len(self._frames) - 1, -1, -1):
            # A cell that was cancelled while it awaited has no result; it is the innermost.
            if result is None or _is_of(result, self._frames[index].info):
                frame = self._frames[index]
                lost = self._frames[index + 1 :]
                del self._frames[index:]
                for measurement in _measurements(lost):
                    measurement.abandon()
                return frame
        return None

    def _cell_id(self, info: Any) -> str | None:
        """Return the front end's name of the cell, where it gives one."""
        identity = getattr(info, "cell_id", None)
        if identity is None:
            # IPython 7, and kernels that do not hand it on.
            parent = getattr(self._shell, "parent_header", None) or {}
            identity = (parent.get("metadata") or {}).get("cellId")
        return identity if isinstance(identity, str) else None

    def _cell(self, measurement: Measurement, frame: _Frame, result: Any) -> Cell:
        return self._describe(measurement, frame.info.raw_cell, *self._numbered(result))

    def _numbered(self, result: Any) -> tuple[int, tuple[str, ...]]:
        """Return the number of the cell that ended, and the names of its code."""
        number = getattr(result, "execution_count", None)
        if number is None:
            number = running_number(self._shell)
        return number, tuple(name for name, count in self._cells.numbers().items() if count == number)

    def _describe(self, measurement: Measurement | None, source: str, number: int, filenames: tuple[str, ...]) -> Cell:
        from gpumem_magic.recording.model import Cell

        return Cell(
            execution_count=number,
            label=None if measurement is None else measurement.request.record.label,
            source=source,
            filenames=filenames,
            others=self._cells.others(filenames),
        )


def _measurements(frames: Sequence[_Frame]) -> Iterator[Measurement]:
    for frame in frames:
        if frame.native is not None:
            yield frame.native
        yield from frame.nested.values()


def _is_of(result: Any, info: Any) -> bool:
    """Tell whether a result is a cell's: IPython makes a new one, of the same text, where it cannot show an error."""
    if result.info is info:
        return True
    return result.error_in_exec is not None and result.info.raw_cell == info.raw_cell


def _was_stopped(result: Any) -> bool:
    """Tell whether the stop button ended a cell; IPython has no result of one whose error it could not show."""
    return result is None or isinstance(result.error_in_exec, KeyboardInterrupt)


def _first_line(lines: Sequence[str]) -> int | None:
    """Return the index of the first line that is not blank."""
    return next((index for index, line in enumerate(lines) if line.strip()), None)


def _cleaned(lines: list[str]) -> list[str]:
    """Take away what IPython takes away from the beginning of a cell (indentation, pasted prompts)."""
    first = _first_line(lines)
    if first is None:
        return lines
    rest = lines[first:]
    transforms: tuple[Any, ...] = (leading_indent, classic_prompt, ipython_prompt)
    for transform in transforms:
        rest = transform(rest)
    return [*lines[:first], *rest]
