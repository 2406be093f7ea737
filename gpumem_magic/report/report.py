"""The report of one recording: a plain, finished object that shows itself and answers questions."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic._errors import ExportError
from gpumem_magic._format import printed_encoding
from gpumem_magic.report.text import report_text
from gpumem_magic.report.wording import WIDTH
from gpumem_magic.trace.constant import is_constant

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from gpumem_magic.analysis.leaks import Leak
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.recording.model import Note
    from gpumem_magic.report.whatif.model import Answer
    from gpumem_magic.trace.model import Trace

__all__ = ["Report"]

# A stretch that a view asks for; beyond it single allocations are summed, and the view asks again nearer.
_DETAIL_BYTES = 1_500_000


def column_bytes(device: DeviceAnalysis) -> int:
    """Return the bytes of the columns that a device's analysis holds."""
    memory = device.memory
    held: tuple[object, ...] = (device.timeline, *device.lanes)
    if memory is not None:
        held = (*held, memory.device.events, memory.lifetimes)
    columns = [column for one in held for column in vars(one).values() if isinstance(column, np.ndarray)]
    # Timeline and lifetimes share some of them.
    own = {id(column if column.base is None else column.base): column for column in columns if not is_constant(column)}
    return sum(column.nbytes for column in own.values())


# What `Report.save` writes, by the file's name.
_FORMS = ".html, .png, .pickle, .perfetto.json or .speedscope.json"


@dataclass(frozen=True, eq=False)
class Report:
    """What happened to memory in one cell, statement, block or file.

    Holds numbers and texts only: no tensor, frame or exception. Evaluating one in a notebook shows its picture.

    Attributes
    ----------
    analysis
        Everything that is known, as documented dataclasses.
    top
        Rows of the table in text form.
    answers
        What other allocator settings would have done, by the device's key; empty until `explored`.
    """

    analysis: Analysis
    top: int = field(default=5)
    answers: Mapping[str, Answer] = field(default_factory=dict, repr=False)

    @property
    def sentence(self) -> str:
        """The one line that a tired person can act on."""
        return self.analysis.sentence

    @property
    def title(self) -> str:
        """``"In [7]"``, the label, or a file's name."""
        return self.analysis.title

    @property
    def devices(self) -> tuple[DeviceAnalysis, ...]:
        """One entry a device, the one with the highest peak first; see `DeviceAnalysis.headline` for the numbers."""
        return self.analysis.devices

    @property
    def events(self) -> int:
        """Number of recorded events, on all devices."""
        return sum(device.events for device in self.analysis.devices)

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the report takes: its columns."""
        return sum(map(column_bytes, self.analysis.devices))

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """Memory that grew with each iteration of a loop and is still there: verdicts, with their evidence.

        Also what earlier runs of the same cell left behind. Empty when nothing leaks, or nothing was repeated at least
        three times; `devices[i].growth` says which, and what stayed for another reason.
        """
        return self.analysis.leaks

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the reader must know, warnings first."""
        return self.analysis.notes

    @property
    def drawable(self) -> bool:
        """Whether there is anything to draw; if not, the sentence says why."""
        return self.analysis.drawable

    def __repr__(self) -> str:
        return f"<gpumem report of {self.title}: {self.sentence}>"

    def __str__(self) -> str:
        # Mostly to be printed.
        return self.to_text(encoding=printed_encoding())

    def to_text(self, top: int | None = None, *, width: int = 100, encoding: str = "utf-8") -> str:
        """Return sentence, numbers and a compact table.

        Parameters
        ----------
        top
            Rows of the table; as set by ``--top`` when None.
        width
            Terminal cells a line.
        encoding
            What the reader can show; other characters get look-alikes.
        """
        return report_text(self.analysis, top=self.top if top is None else top, width=width, encoding=encoding)

    @cached_property
    def _picture(self) -> tuple[bytes | None, str | None]:
        """Return the picture, or why there is none: a broken matplotlib or font must not cost the user the numbers."""
        if not self.drawable:
            return None, "there is nothing to draw"
        try:
            from gpumem_magic.report.png import report_png

            return report_png(self.analysis), None
        except Exception as error:  # noqa: BLE001 - told in one line under the numbers
            return None, f"drawing it failed ({type(error).__name__}: {error})"

    def to_png(self) -> bytes | None:
        """Return the picture, or None when there is nothing to draw or matplotlib cannot."""
        return self._picture[0]

    def to_document(self, limit: int | None = None) -> bytes:
        """Return the view document, at most `limit` bytes when given."""
        # What only a view needs comes with it: a tenth of our imports.
        from gpumem_magic.report.document import view_document

        return view_document(self.analysis, limit)

    def to_html(self) -> bytes:
        """Return the standalone report as UTF-8 HTML."""
        from gpumem_magic.report.html import report_html

        return report_html(self.analysis, self.to_png(), WIDTH, self.answers)

    def save(self, path: str | os.PathLike[str] = ".") -> Path:
        """Write the standalone HTML report, the picture, or the recording for another tool, by the file's name.

        Parameters
        ----------
        path
            A file, or a folder that gets a file named after the report; relative to the current folder. A name that
            ends in ``.pickle`` or ``.pkl``, also packed (``.pickle.gz``, ``.pickle.xz``), asks for the snapshot, which
            torch's own viewer opens; one that ends in ``.perfetto.json`` or ``.speedscope.json`` for those tools' form;
            one that ends in ``.png`` for the picture.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        ExportError
            It cannot be written there, or a file lies there that is not a report of ours; for all but HTML, when a file
            lies there at all; for a snapshot, when the recording has no events of torch's caching allocator; for a
            picture, when there is none.
        """
        # Files come with the first one that is written: a tenth of what a report would import.
        from gpumem_magic.report.files import (
            default_name,
            interchange_format,
            is_picture_name,
            is_snapshot_name,
            write_new,
            write_new_snapshot,
            write_report,
        )

        if is_snapshot_name(path):
            return write_new_snapshot(self.to_trace(), path)
        if is_picture_name(path):
            picture, why = self._picture
            if picture is None:
                raise ExportError(f"{self.title}: no picture, as {why}")
            return write_new(picture, path)
        tool = interchange_format(path)
        if tool is not None:
            from gpumem_magic.report.interchange import exported

            return write_new(exported(self.to_document(), tool), path)
        return write_report(self.to_html(), path, default_name(self.analysis), _FORMS)

    def to_trace(self) -> Trace:
        """Return the recording; allocations without a stack carry their line as its only frame.

        Raises
        ------
        ExportError
            It has no events of torch's caching allocator.
        """
        from gpumem_magic.report.pickling import trace_of

        return trace_of(self.analysis)

    def to_snapshot(self) -> bytes:
        """Return the recording as the pickle that ``torch.cuda.memory._dump_snapshot`` would have written.

        Raises
        ------
        ExportError
            It has no events of torch's caching allocator.
        """
        from gpumem_magic.trace.writer import pickled

        return pickled(self.to_trace())

    def without_source(self) -> Report:
        """Return a copy to share: no source lines, no folders, no label, no error message."""
        from gpumem_magic.analysis.anonymous import without_source
        from gpumem_magic.report.whatif.model import bare

        answers = {key: bare(answer) for key, answer in self.answers.items()}
        return Report(without_source(self.analysis), self.top, answers)

    def explored(
        self,
        confs: Iterable[str] | None = None,
        *,
        cap: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Return a copy that knows what other allocator settings would have done.

        Parameters
        ----------
        confs
            Settings to try, as in ``PYTORCH_CUDA_ALLOC_CONF``; None: the usual ones.
        cap
            Most bytes that may be reserved; None: the limit that the recorded process had, if it is known.
        progress
            Called with the number of settings done, and of all, device by device.

        Raises
        ------
        SnapshotError
            No device has events of torch's caching allocator, so there is nothing to replay.
        BadUsageError
            A setting is wrong.
        """
        # The replay comes with the first question.
        from gpumem_magic.report.whatif.replay import explore

        return replace(self, answers=explore(self.analysis, confs, cap, progress))

    def segments(self, device: int, time_us: int) -> bytes | None:
        """Return the map of one device's segments at a time, for a view; None without a caching allocator."""
        from gpumem_magic.report.segments import moment_document

        return moment_document(self.devices[device], time_us)

    def detail(self, device: int, start_us: int, end_us: int) -> bytes:
        """Return the view document of a stretch of one device, for a view that zooms in."""
        from gpumem_magic.report.document import detail_document

        return detail_document(self.analysis, device, start_us, end_us, _DETAIL_BYTES)

    def static_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the mime bundle (data, metadata) that reads without a kernel, a network or a script."""
        data: dict[str, Any] = {"text/plain": self.to_text()}
        metadata: dict[str, Any] = {}
        if not self.drawable:
            return data, metadata
        png, problem = self._picture
        if png is None:
            data["text/plain"] += f"\n  ! no picture: {problem}"
            return data, metadata
        from gpumem_magic.report.fallback import fallback_html

        data["image/png"] = base64.b64encode(png).decode("ascii")
        data["text/html"] = fallback_html(self.analysis, png, WIDTH, self.top)
        metadata["image/png"] = {"width": WIDTH}
        return data, metadata

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = self.static_bundle()
        kept = {
            key: value
            for key, value in data.items()
            if (include is None or key in include) and (exclude is None or key not in exclude)
        }
        return kept, {key: value for key, value in metadata.items() if key in kept}
