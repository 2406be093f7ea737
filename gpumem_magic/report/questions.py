"""What a live view asks of a finished report, and the answers. Reads only; safe to call beside the user's cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import BadUsageError, GpumemError
from gpumem_magic.report.places import neighbours
from gpumem_magic.report.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumem_magic.report.comparison import Comparison
    from gpumem_magic.report.reading import ExportedReport
    from gpumem_magic.report.whatif.desk import Desk

__all__ = ["Questions"]

_KINDS = ("detail", "export", "place", "segments", "whatif")
_GONE = "this report no longer answers: run its cell again"


class Questions:
    """Answers the questions of one view.

    Parameters
    ----------
    report
        What is shown.
    """

    def __init__(self, report: Report | Comparison | ExportedReport) -> None:
        self._report: Report | Comparison | ExportedReport | None = report
        self._desk: Desk | None = None

    @property
    def report(self) -> Report | Comparison | ExportedReport | None:
        """What is shown; None once it was let go."""
        return self._report

    def close(self) -> None:
        """Let the report go: further questions are told so."""
        self._report = None
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.stop()

    def answer(self, content: object, send: Callable[[dict[str, Any], list[bytes] | None], None]) -> None:
        """Answer a message; foreign ones are left alone.

        Parameters
        ----------
        content
            ``{"kind": "detail", "id", "device", "startUs", "endUs"}``: single allocations of a stretch.
            ``{"kind": "export", "id", "what"}``: a file: ``"html"``, ``"bare"`` (without source), ``"snapshot"``,
            ``"perfetto"`` or ``"speedscope"``.
            ``{"kind": "place", "id", "device", "address", "startUs"}``: who was there before and after (`neighbours`).
            ``{"kind": "segments", "id", "device", "timeUs"}``: the map of segments at a time.
            ``{"kind": "whatif", "id", "device", "confs", "capBytes", "stop"}``: other settings (see `Desk`).
        send
            Takes a reply of the same kind and id, with ``error``, and buffers. For ``whatif`` it is called several
            times, from another thread.
        """
        kind = content.get("kind") if isinstance(content, dict) else None
        if not isinstance(content, dict) or kind not in _KINDS:
            return
        reply: dict[str, Any] = {"kind": kind, "id": content.get("id"), "error": None}
        try:
            report = self._report  # `close` may come from another thread meanwhile
            if report is None:
                raise BadUsageError(_GONE)
            if kind == "whatif":
                self._explore(report, content, lambda message: send({**reply, **message}, None))
            elif kind == "place":
                send({**reply, **_place(report, content)}, None)
            else:
                send(reply, [_look(report, content)])
        except GpumemError as error:
            send({**reply, "error": str(error)}, None)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            send({**reply, "error": f"not a question that can be answered: {error}"}, None)

    def _explore(
        self,
        report: Report | Comparison | ExportedReport,
        content: Mapping[str, Any],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        from gpumem_magic.report.whatif.desk import Desk

        if not isinstance(report, Report):
            raise BadUsageError("a comparison cannot be replayed: ask the report of one cell")
        if self._desk is None:
            self._desk = Desk(report.analysis)
        if content.get("stop"):
            self._desk.stop()
        else:
            self._desk.ask(content, send)


def _export(report: Report | Comparison | ExportedReport, what: object) -> bytes:
    from gpumem_magic.report.reading import ExportedReport

    if what in {"perfetto", "speedscope"}:
        from gpumem_magic.report.interchange import exported

        return exported(report.to_document(), str(what))
    if isinstance(report, ExportedReport):
        raise BadUsageError("this was read from an exported report: that file is the export")
    if what == "snapshot":
        if not isinstance(report, Report):
            raise BadUsageError("a comparison is no recording: save those of its two sides")
        return report.to_snapshot()
    if what not in {"html", "bare"}:
        raise BadUsageError("not something that can be exported")
    return (report.without_source() if what == "bare" else report).to_html()


def _place(report: Report | Comparison | ExportedReport, content: Mapping[str, Any]) -> dict[str, Any]:
    device, start = int(content["device"]), content["startUs"]
    # Reading and comparing come with the questions: this module comes with the first report.
    from gpumem_magic.report.comparison import Comparison

    if isinstance(report, Comparison):
        own = len(report.a.devices)
        report, device = (report.a, device) if device < own else (report.b, device - own)
    if not isinstance(report, Report) or not 0 <= device < len(report.devices):
        raise BadUsageError("no such device")
    return dict(neighbours(report.devices[device], int(content["address"]), None if start is None else int(start)))


def _look(report: Report | Comparison | ExportedReport, content: Mapping[str, Any]) -> bytes:
    if content["kind"] == "export":
        return _export(report, content["what"])
    device = int(content["device"])
    if not 0 <= device < len(report.devices):
        raise BadUsageError("no such device or stretch")
    if content["kind"] == "segments":
        found = report.segments(device, int(content["timeUs"])) if isinstance(report, Report) else None
        if found is None:
            raise BadUsageError("there is no map of segments: memory there does not come from torch's allocator")
        return found
    start, end = int(content["startUs"]), int(content["endUs"])
    if end < start:
        raise BadUsageError("no such device or stretch")
    return report.detail(device, start, end)
