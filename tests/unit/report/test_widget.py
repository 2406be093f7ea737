"""The widget: small state, one output, closed when its cell runs again, questions answered from the finished report."""

from __future__ import annotations

import sys
import threading

import make_documents  # type: ignore[import-not-found]
import pytest

from gpumem_magic import widget as module
from gpumem_magic.magics import show
from gpumem_magic.report import Report
from gpumem_magic.report.container import decode

START = make_documents.START
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def published(monkeypatch, tmp_path):
    """A front end in name: what would be sent to it is collected."""

    outputs = []
    script = tmp_path / "widget.js"
    script.write_text("export default { render() {} };", "utf-8")
    monkeypatch.setattr(module, "_SCRIPT", script)
    monkeypatch.setattr(module, "_open", type(module._open)())
    monkeypatch.setattr(show, "publish_display_data", lambda data, *_: outputs.append(data))
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", sys.modules[__name__])
    monkeypatch.setenv("JPY_SESSION_NAME", "x.ipynb")
    module._widget_class.cache_clear()
    yield outputs
    for widget in module._open.values():
        widget.close()
    module._widget_class.cache_clear()


def ask(widget, **content):
    sent = []
    widget.send = lambda content, buffers=None: sent.append((content, buffers))
    widget._answer(widget, content, [])
    return sent


def test_one_output_with_everything_beside_the_view(published):
    show.display(Report(make_documents.complete()), cell_key="a")
    (data,) = published
    assert set(data) == {"text/plain", "image/png", "text/html", VIEW, "application/vnd.gpumem.report+json"}
    assert data[VIEW]["model_id"] == module._open["a"].model_id


def test_running_again_closes_the_former_widget(published):
    report = Report(make_documents.gap())
    show.display(report, cell_key="a")
    first = module._open["a"]
    show.display(report, cell_key="b")
    show.display(report, cell_key="a")
    assert first.comm is None
    assert set(module._open) == {"a", "b"}
    empty = Report(make_documents.analysis((), text="Nothing."))
    show.display(empty, cell_key="b")
    assert set(module._open) == {"a"}
    assert set(published[-1]) == {"text/plain"}


@pytest.mark.usefixtures("published")
def test_state_stays_small():
    widget = module.report_widget(Report(make_documents.busy(1500)))
    assert len(widget.document) <= 256_000
    header, _ = decode(widget.document)
    assert header["devices"][0]["headline"]["allocatedPeak"]


def test_a_document_written_beside_the_picture_is_the_same(published, monkeypatch):
    report = Report(make_documents.busy(1500))
    show.display(report, cell_key="alone")
    monkeypatch.setattr(module, "_MANY_EVENTS", 0)
    show.display(report, cell_key="beside")
    alone, beside = (module._open[key].document for key in ("alone", "beside"))
    assert beside == alone
    assert published[1]["image/png"] == published[0]["image/png"]


def test_without_a_thread_the_document_is_written_after_the_picture(published, monkeypatch):
    def no_more(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_MANY_EVENTS", 0)
    monkeypatch.setattr(threading.Thread, "start", no_more)
    show.display(Report(make_documents.busy(1500)), cell_key="a")
    (data,) = published
    assert "no interactive view" not in data["text/plain"]
    assert data[VIEW]["model_id"] == module._open["a"].model_id


def test_a_document_that_fails_beside_the_picture_costs_the_view_alone(published, monkeypatch):
    def fail(_report, _limit=None):
        raise ValueError("no room")

    monkeypatch.setattr(module, "_MANY_EVENTS", 0)
    monkeypatch.setattr(Report, "to_document", fail)
    show.display(Report(make_documents.busy(1500)), cell_key="a")
    (data,) = published
    assert set(data) == {"text/plain", "image/png", "text/html"}
    assert data["text/plain"].endswith("! no interactive view: no room")


@pytest.mark.usefixtures("published")
def test_detail_is_answered():
    report = Report(make_documents.busy(20))
    ((reply, buffers),) = ask(
        module.report_widget(report), kind="detail", id=7, device=0, startUs=START + 1000, endUs=START + 3000
    )
    assert reply == {"kind": "detail", "id": 7, "error": None}
    header, _ = decode(buffers[0])
    assert header["devices"][0]["startUs"] == START + 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": 9, "startUs": 1, "endUs": 2},
        {"device": 0, "startUs": 5, "endUs": 2},
        {"device": "x", "startUs": 1, "endUs": 2},
        {"device": 0, "startUs": float("inf"), "endUs": 2},
        {"device": 0},
    ],
)
@pytest.mark.usefixtures("published")
def test_wrong_questions_get_an_answer_and_no_error(wrong):
    ((reply, buffers),) = ask(module.report_widget(Report(make_documents.gap())), kind="detail", id=1, **wrong)
    assert reply["error"]
    assert buffers is None


@pytest.mark.usefixtures("published")
def test_foreign_messages_are_left_alone():
    assert ask(module.report_widget(Report(make_documents.gap())), kind="other") == []


@pytest.mark.usefixtures("published")
def test_old_reports_are_let_go_and_say_so():
    report = Report(make_documents.gap())
    for number in range(module._MOST_ANSWERING + 1):
        show.display(report, cell_key=number)
    oldest = module._open[0]
    assert not oldest.can_detail
    assert module._open[1].can_detail
    ((reply, _),) = ask(oldest, kind="detail", id=1, device=0, startUs=0, endUs=1)
    assert reply["error"] == "this report no longer answers: run its cell again"


def test_no_view_where_no_front_end_is(published, monkeypatch):
    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    show.display(Report(make_documents.gap()), cell_key="a")
    assert set(published[0]) == {"text/plain", "image/png", "text/html"}


@pytest.mark.usefixtures("published")
def test_front_ends_are_told_apart(monkeypatch):
    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    assert not module.can_show_widgets()
    monkeypatch.setenv("VSCODE_PID", "7")
    assert module.can_show_widgets()
    # A headless run from the editor's terminal.
    monkeypatch.setenv("TERM_PROGRAM", "vscode")
    assert not module.can_show_widgets()
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", "x.ipynb", raising=False)
    assert module.can_show_widgets()
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp")
    assert not module.can_show_widgets()


def test_a_missing_bundle_is_one_line_under_the_result(published, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_SCRIPT", tmp_path / "none.js")
    show.display(Report(make_documents.gap()), cell_key="a")
    assert set(published[0]) == {"text/plain", "image/png", "text/html"}
    last = published[0]["text/plain"].split("\n")[-1]
    assert last.startswith("  ! no interactive view: ")
    assert last.endswith("reinstall gpumem-magic")


def test_a_terminal_gets_text_in_its_encoding(published, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp")
    show.display(Report(make_documents.complete()))
    assert set(published[0]) == {"text/plain"}
    assert published[0]["text/plain"].startswith("gpumem: ")
