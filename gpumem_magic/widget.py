"""The report as a live widget, with everything beside it that keeps a notebook readable without one.

`bundle` is what a finished cell shows: exactly one output, whatever the front end can show.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import OrderedDict
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import GpumemError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import TypeAlias

    from gpumem_magic.report import Report
    from gpumem_magic.report.comparison import Comparison
    from gpumem_magic.report.reading import ExportedReport

    _Shown: TypeAlias = Report | Comparison | ExportedReport

__all__ = ["bundle", "can_show_widgets", "preload_view", "report_widget"]

_SCRIPT = Path(__file__).resolve().parent / "static" / "widget.js"
# The saved state holds the script (about 150 kB) and this in base64; a notebook with 20 reports stays under 10 MB.
_DOCUMENT_BYTES = 256_000
# Versions that do not fit each other fail in many ways, with warnings too where the user makes errors of them.
IMPORT_ERRORS = (ImportError, OSError, AttributeError, TypeError, ValueError, RuntimeError, Warning)
# Below, the document takes as long as a thread takes to start.
_MANY_EVENTS = 20_000
# Older widgets still show what they hold, but no longer answer questions: their reports' columns are let go.
_MOST_ANSWERING = 16

_VIEW = "application/vnd.jupyter.widget-view+json"
# labextension/src/output draws it: the widget while its kernel lives, else the picture; ipywidgets knows no else.
_REPORT = "application/vnd.gpumem.report+json"
_open: OrderedDict[Hashable, Any] = OrderedDict()


def can_show_widgets() -> bool:
    """Return whether a front end is there that draws widgets.

    nbclient and papermill set no ``JPY_SESSION_NAME``; what nbconvert then makes of a widget view is blank offline.
    """
    if "ipykernel.kernelapp" not in sys.modules:
        return False
    if "google.colab" in sys.modules or "COLAB_RELEASE_TAG" in os.environ or "JPY_SESSION_NAME" in os.environ:
        return True
    # VS Code names its notebook in the namespace; the variable is older. Its terminal sets others of the kind, and a
    # headless run from there is no front end.
    named = hasattr(sys.modules["__main__"], "__vsc_ipynb_file__")
    return named or ("VSCODE_PID" in os.environ and os.environ.get("TERM_PROGRAM") != "vscode")


@cache
def _widget_class() -> type[Any]:
    """Make the widget's class on first use: anywidget takes 0.1 s to import."""
    import anywidget
    import traitlets

    from gpumem_magic.report.questions import Questions

    if not _SCRIPT.is_file():
        raise GpumemError(f"the interactive view was not built ({_SCRIPT} is missing): reinstall gpumem-magic")

    class ReportWidget(anywidget.AnyWidget):
        """The view of one report."""

        _esm = _SCRIPT
        document = traitlets.Bytes().tag(sync=True)
        can_detail = traitlets.Bool(default_value=True).tag(sync=True)

        def __init__(self, report: _Shown, document: bytes) -> None:
            super().__init__(document=document, can_detail=not getattr(report, "is_read_back", False))
            self._questions = Questions(report)
            _answer_beside_the_cell(self.comm)
            self.on_msg(self._answer)

        def _answer(self, _widget: object, content: object, _buffers: object) -> None:
            """Answer a question of the view. May run beside the user's cell: reads the finished report only."""
            self._questions.answer(content, self.send)

        def close(self) -> None:
            """Close the view; what it asked for last is not worth finishing."""
            self._questions.close()
            super().close()

        def retire(self) -> None:
            """Let the report go; the view keeps what it was sent."""
            self._questions.close()
            self.can_detail = False

        def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            data: dict[str, Any] = {}
            metadata: dict[str, Any] = {}
            report = self._questions.report
            if report is not None:
                data, metadata = report.static_bundle()
            data[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
            data[_REPORT] = {"version": 1}
            return data, metadata

    return ReportWidget


def _answer_beside_the_cell(comm: Any) -> None:
    """Let the front end say where its questions are answered: in JupyterLab on a thread of their own.

    ipykernel 7.4 sends them to the loop that spoke last, which is the cell's own, so that an answer would wait for the
    end of the cell that runs (``ipykernel.comm.comm.BaseComm``). Without that hook nothing is to be done.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = _as_asked  # noqa: SLF001 - there is no public way


def _as_asked(_data: object, subshell: str | None) -> str | None:
    return subshell


def preload_view() -> None:
    """Import what the live view needs, where a front end can show it."""
    if can_show_widgets():
        with suppress(*IMPORT_ERRORS, GpumemError):
            _widget_class()
            importlib.import_module("gpumem_magic.report.document")


def report_widget(report: _Shown) -> Any:
    """Return a live widget of a report.

    Raises
    ------
    GpumemError
        The view's script was not built.
    """
    return _widget_class()(report, report.to_document(_DOCUMENT_BYTES))


def _document(report: _Shown) -> Callable[[], bytes]:
    """Begin to write what the view shows, on a thread of its own where that takes long, and return what waits for it.

    Most of it is sums and packing, for which the interpreter's lock is let go: it costs little beside the picture.
    """
    if getattr(report, "events", 0) < _MANY_EVENTS:
        return partial(report.to_document, _DOCUMENT_BYTES)
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1, "gpumem-document")
    try:
        written = pool.submit(report.to_document, _DOCUMENT_BYTES)
    except RuntimeError:  # no more threads for this user, or the interpreter ends
        return partial(report.to_document, _DOCUMENT_BYTES)
    pool.shutdown(wait=False)
    return written.result


def _remember(cell_key: Hashable, widget: Any) -> None:
    former = _open.pop(cell_key, None)
    if former is not None:
        former.close()
    _open[cell_key] = widget
    for old in list(_open.values())[:-_MOST_ANSWERING]:
        old.retire()


def _forget(cell_key: Hashable) -> None:
    former = _open.pop(cell_key, None)
    if former is not None:
        former.close()


def bundle(report: _Shown, cell_key: Hashable = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the mime bundle (data, metadata) of a report, with a live widget where a front end draws one.

    Parameters
    ----------
    report
        What to show.
    cell_key
        Names the cell: running it again closes the widget of its former run. None: nothing is closed.
    """
    if cell_key is not None:
        _forget(cell_key)
    document = _document(report) if report.drawable and can_show_widgets() else None
    data, metadata = report.static_bundle()
    if document is not None:
        try:
            widget = _widget_class()(report, document())
        except Exception as error:  # noqa: BLE001 - a widget stack that fails must not cost the report
            # The picture is there; why nothing more is belongs under it.
            data["text/plain"] += f"\n  ! no interactive view: {error}"
        else:
            data[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
            data[_REPORT] = {"version": 1}
            _remember(cell_key if cell_key is not None else object(), widget)
    return data, metadata
