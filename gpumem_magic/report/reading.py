"""Reading an exported report back: its view document is inside."""

from __future__ import annotations

import base64
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import ExportError, SnapshotError
from gpumem_magic._format import encodable, visible
from gpumem_magic.analysis.diff import Side, side_device
from gpumem_magic.analysis.model import Group, Row
from gpumem_magic.report.container import decode
from gpumem_magic.report.html import MARKER

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["ExportedReport", "is_report", "read_back", "read_report"]

_DOCUMENT = re.compile(
    rb'<script type="application/octet-stream;base64" id="gpumem-document">([A-Za-z0-9+/=]+)</script>'
)
# What data of another shape than a report's raises, wherever it is looked at.
_MISSHAPEN = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)


def is_report(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a report of ours does. A file that cannot be read does not."""
    if not Path(path).is_file():  # opening a pipe would wait for its writer
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MARKER)) == MARKER
    except OSError:
        return False


@dataclass(frozen=True)
class ExportedReport:
    """A report that was read back: what its view document holds.

    Attributes
    ----------
    title
        The report's own.
    side
        Its numbers, for a comparison.
    document
        Its view document.
    devices
        Their names, in the document's order.
    events
        Events of all devices.
    sentence
        Its first line.
    drawable, is_read_back
        It can be drawn, and holds no more than the document.
    """

    title: str
    side: Side
    document: bytes
    devices: tuple[str, ...]
    events: int
    sentence: str = ""
    drawable: bool = True
    is_read_back: bool = True

    def __repr__(self) -> str:
        return visible(f"<gpumem report of {self.title}, read back: {self.sentence}>")

    def to_text(self, top: int | None = None, *, encoding: str = "utf-8") -> str:  # noqa: ARG002 - as of `Report`
        """Return the sentence."""
        return encodable(visible(f"gpumem: {self.sentence}"), encoding)

    def static_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the mime bundle (data, metadata) that reads without a kernel: the sentence."""
        return {"text/plain": self.to_text()}, {}

    def to_document(self, _limit: int | None = None) -> bytes:
        """Return the view document. It cannot be made smaller: what it is made of is not there any more."""
        return self.document

    def detail(self, _device: int, _start_us: int, _end_us: int) -> bytes:
        """Fail: there is no more than what the document shows.

        Raises
        ------
        SnapshotError
            Always.
        """
        raise SnapshotError(f"{self.title} was read from an exported report, which holds no finer detail")

    def without_source(self) -> ExportedReport:
        """Fail: what is in the document is not known well enough to strip it.

        Raises
        ------
        ExportError
            Always.
        """
        raise ExportError(f"{self.title} was read from an exported report: export it again with its source left out")


def read_report(path: str | os.PathLike[str]) -> ExportedReport:
    """Read an exported report back.

    Raises
    ------
    SnapshotError
        The file holds no readable view document, or that of a comparison.
    """
    try:
        found = _DOCUMENT.search(Path(path).read_bytes())
        if found is None:
            raise SnapshotError(f"{path}: the report holds no data; export it again")
        document = base64.b64decode(found[1])
        header: dict[str, Any] = decode(document)[0]
        if header.get("compare") is not None:
            raise SnapshotError(f"{path} is itself a comparison: give one of the two recordings that it compares")
        devices = {}
        for device in header["devices"]:
            groups = [Group(**group) for group in device["groups"]]
            peak, end = ([Row(**row) for row in device[name]] for name in ("peak", "end"))
            totals = (device["headline"]["allocatedPeak"], device["headline"]["allocatedAfter"])
            devices[device["key"]] = side_device(groups, peak, end, totals, device["headline"].get("reservedPeak"))
        title, sentence = str(header["title"]), str(header["sentence"])
        events = sum(int(device["events"]) for device in header["devices"])
    except (OSError, *_MISSHAPEN) as error:
        raise SnapshotError(f"{path}: not a readable report ({error}); export it again") from error
    return ExportedReport(title, Side(title, devices), document, tuple(devices), events, sentence)


@contextmanager
def read_back(*reports: object) -> Iterator[None]:
    """Name the damaged report where one that was read back is used and does not hold what it should.

    Reading it looks at little more than its numbers. An error over reports of this process alone is ours, and passes.

    Raises
    ------
    SnapshotError
        In place of what reading foreign data raises.
    """
    foreign = [report for report in reports if isinstance(report, ExportedReport)]
    try:
        yield
    except _MISSHAPEN as error:
        if not foreign:
            raise
        names = " or ".join(dict.fromkeys(visible(report.title) for report in foreign))
        detail = f"{type(error).__name__}: {str(error)[:120]}"
        raise SnapshotError(f"the exported report {names} is damaged ({detail}); export it again") from error
