"""Two reports side by side: what changed, as text, HTML, widget and view document."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpumem_magic._format import encodable, printed_encoding, visible
from gpumem_magic.analysis.diff import Side, compare, side_of
from gpumem_magic.report.diff_text import diff_html, diff_text
from gpumem_magic.report.files import write_report
from gpumem_magic.report.html import document_limit, html_page
from gpumem_magic.report.merging import merged_document
from gpumem_magic.report.reading import ExportedReport

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from gpumem_magic.analysis.diff import Diff
    from gpumem_magic.report.report import Report

__all__ = ["Comparison"]

_TOP = 10
_STATIC_ROWS = 60


def _side(report: Report | ExportedReport, title: str) -> Side:
    if isinstance(report, ExportedReport):
        return Side(title, report.side.devices)
    return side_of(report.analysis, title)


def _numbered(report: Report | ExportedReport) -> str:
    """Return the title with the cell's number, for two runs under one label."""
    cell = None if isinstance(report, ExportedReport) else report.analysis.cell
    return (
        report.title
        if cell is None or cell.execution_count is None
        else f"{report.title} (In [{cell.execution_count}])"
    )


@dataclass(frozen=True)
class Comparison:
    """What changed from one recording to another, aligned by the code that allocated.

    Evaluating one in a notebook shows it. Holds numbers and texts only.

    Attributes
    ----------
    a, b
        The earlier and the later one.
    top
        Rows of the table in text form.
    """

    a: Report | ExportedReport
    b: Report | ExportedReport
    top: int = field(default=_TOP)

    @cached_property
    def diff(self) -> Diff:
        """The rows, the largest change first."""
        name_a, name_b = self.titles
        return compare(_side(self.a, name_a), _side(self.b, name_b))

    @property
    def titles(self) -> tuple[str, str]:
        """The names of both."""
        if self.a.title == self.b.title:
            return _numbered(self.a), _numbered(self.b)
        return self.a.title, self.b.title

    @property
    def sentence(self) -> str:
        """The one line that a tired person can act on."""
        return self.diff.sentence

    @property
    def title(self) -> str:
        """Both names."""
        return " → ".join(self.titles)

    @property
    def drawable(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.diff.rows)

    @property
    def devices(self) -> tuple[object, ...]:
        """Devices of A, then those of B, as the view document numbers them."""
        return (*self.a.devices, *self.b.devices)

    def __repr__(self) -> str:
        return visible(f"<gpumem comparison of {self.title}: {self.sentence}>")

    def __str__(self) -> str:
        # Mostly to be printed.
        return self.to_text(encoding=printed_encoding())

    def to_text(self, top: int | None = None, *, encoding: str = "utf-8") -> str:
        """Return the sentence, the totals and the rows that changed most.

        Parameters
        ----------
        top
            Rows of the table, 0 for all; as set when the comparison was made when None.
        encoding
            What the reader can show; other characters get look-alikes.
        """
        text = diff_text(self.diff, self.top if top is None else top)
        # Names come from files: they may not steer the terminal.
        return encodable(visible(text, keep="\n"), encoding)

    def to_document(self, limit: int | None = None) -> bytes:
        """Return the view document of both, about `limit` bytes when given; half of them each."""
        half = None if limit is None else limit // 2
        return merged_document(self.a.to_document(half), self.b.to_document(half), self.diff)

    def to_html(self) -> bytes:
        """Return the standalone comparison as UTF-8 HTML."""
        document = self.to_document(document_limit(self.a.events + self.b.events, 0))
        return html_page(self.title, document, diff_html(self.diff, _STATIC_ROWS))

    def save(self, path: str | os.PathLike[str] = ".") -> Path:
        """Write the standalone comparison.

        Parameters
        ----------
        path
            A file, or a folder that gets a file named after both; relative to the current folder.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        ExportError
            It cannot be written there, or a file lies there that is not a report of ours.
        """
        slug = re.sub(r"[^\w.-]+", "-", "-to-".join(self.titles)).strip("-.")[:80]
        return write_report(self.to_html(), path, f"gpumem-diff-{slug}.html")

    def without_source(self) -> Comparison:
        """Return a copy to share.

        Raises
        ------
        ExportError
            One side was read from an exported report: what is in it is not known well enough to strip it.
        """
        return Comparison(self.a.without_source(), self.b.without_source(), self.top)

    def detail(self, device: int, start_us: int, end_us: int) -> bytes:
        """Return the view document of a stretch of one device, for a view that zooms in.

        Raises
        ------
        SnapshotError
            That side was read from an exported report, which holds no more than it showed.
        """
        own = len(self.a.devices)
        if device < own:
            return self.a.detail(device, start_us, end_us)
        return self.b.detail(device - own, start_us, end_us)

    def static_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the mime bundle (data, metadata) that reads without a kernel, a network or a script."""
        return {"text/plain": self.to_text(), "text/html": diff_html(self.diff, self.top)}, {}

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.static_bundle()
