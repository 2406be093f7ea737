"""The same measurement without IPython: ``with gpumem_magic.record() as r:`` in scripts, tests and marimo."""

from __future__ import annotations

import inspect
import linecache
import sys
from typing import TYPE_CHECKING, Any

from gpumem_magic import _reports
from gpumem_magic._errors import RecordingError
from gpumem_magic.holders.roles import RoleBook
from gpumem_magic.recording.devices import check_device
from gpumem_magic.recording.model import Cell
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from gpumem_magic.recording.recorder import LineMarks

__all__ = ["record"]


class record:  # noqa: N801 - used as a function: `with record():`
    """Record a block of code.

    Parameters
    ----------
    label
        What to call it in the report.
    device
        What to show: an ordinal, ``"cuda:1"``, ``"cpu"``; everything that was used when None.
    stacks
        ``"lines"`` (of the file that the block is in), ``"python"``, ``"cpp"`` or ``"none"``.
    max_entries
        Most events to keep; None for 1,000,000, or 200,000 with stacks.

    Attributes
    ----------
    report
        The report, once the block has ended; also when it raised. None inside the block.

    Raises
    ------
    BadUsageError
        For a device or option that does not exist.

    Examples
    --------
    >>> import gpumem_magic
    >>> with gpumem_magic.record(label="step") as r:
    ...     y = 1 + 1
    >>> r.report.to_text().startswith("gpumem:")
    True
    """

    def __init__(
        self,
        label: str | None = None,
        *,
        device: str | int | None = None,
        stacks: str = "lines",
        max_entries: int | None = None,
    ) -> None:
        options = RecordOptions(
            device=None if device is None else str(device), stacks=stacks, max_entries=max_entries, label=label
        )
        check_device(options)
        self.report: Any = None
        self._label = label
        self._file = ""
        self._names: Mapping[str, object] = {}
        # Before Python 3.12, lines are known only where IPython lets us change the code before it is compiled.
        has_lines = stacks != "none" and hasattr(sys, "monitoring")
        recorder = Recorder(
            options,
            start_marks=self._start_marks if has_lines else None,
            roles=None if stacks == "none" else RoleBook(lambda: self._names),
        )
        self._recorder: Recorder | None = recorder
        if stacks == "lines" and not has_lines:
            recorder.notes.info("lines outside a notebook need Python 3.12; on CUDA, stacks='python' names them")

    def __enter__(self) -> Self:
        frame = inspect.currentframe()
        caller = frame and frame.f_back
        self._file = caller.f_code.co_filename if caller is not None else ""
        self._names = caller.f_globals if caller is not None else {}
        if self._recorder is None:
            raise RecordingError("this recording has ended; make a new one with gpumem_magic.record()")
        self._recorder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.end()
        source = "".join(linecache.getlines(self._file))
        cell = Cell(execution_count=None, label=self._label, source=source, filenames=(self._file,))
        with paused_collector():
            self.report = _reports.build(recorder.stop(cell, *classify(error)))

    def _start_marks(self) -> LineMarks:
        from gpumem_magic.recording import marks

        progress = None if self._recorder is None else self._recorder.progress
        return marks.start(lambda filename: filename == self._file, progress=progress)
