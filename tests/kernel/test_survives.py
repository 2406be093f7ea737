"""A report outlives its kernel: in the notebook's file, in what nbconvert makes of it, within bounds."""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, LatexExporter, MarkdownExporter

if TYPE_CHECKING:
    from pathlib import Path

    from nbformat import NotebookNode

pytest.importorskip("torch", reason="a report to look at needs torch")
pytestmark = pytest.mark.timeout(120)

VIEW = "application/vnd.jupyter.widget-view+json"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
LOAD = "%load_ext gpumem_magic\nimport torch"
MEASURED = """%%gpumem --label "обучение <b>学習</b>"
kept = [torch.ones(1024, 256) for _ in range(3)]
lost = torch.ones(2048, 1024)
del lost"""


def run(folder: Path, *, front_end: bool) -> Any:
    """Run the cells; with a front end, as a notebook server starts the kernel of an open notebook."""
    cells = [nbformat.v4.new_code_cell(source) for source in (LOAD, MEASURED)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    environment = {name: value for name, value in os.environ.items() if name != "JPY_SESSION_NAME"}
    if front_end:
        environment["JPY_SESSION_NAME"] = str(folder / "notebook.ipynb")
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}).execute(env=environment)
    return notebook


@pytest.fixture(scope="module")
def headless(tmp_path_factory) -> Any:
    return run(tmp_path_factory.mktemp("headless"), front_end=False)


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Any:
    return run(tmp_path_factory.mktemp("watched"), front_end=True)


def report_of(notebook: NotebookNode) -> dict[str, Any]:
    found = [
        output.data
        for output in notebook.cells[1].outputs
        if output.output_type == "display_data" and output.data.get("text/plain", "").startswith("gpumem:")
    ]
    assert len(found) == 1, notebook.cells[1].outputs
    return dict(found[0])


@pytest.mark.parametrize("name", ["headless", "watched"])
def test_the_output_holds_text_picture_and_html_and_the_notebook_is_valid(name, request):
    notebook = request.getfixturevalue(name)
    nbformat.validate(notebook)
    report = report_of(notebook)
    assert base64.b64decode(report["image/png"]).startswith(PNG_MAGIC)
    assert "<img" in report["text/html"]
    # What JupyterLab strips from an untrusted notebook may not be needed.
    assert not re.search(r"<(script|svg|style|link|iframe)\b", report["text/html"])
    assert "<b>学習</b>" not in report["text/html"]
    assert report["text/plain"].startswith("gpumem: Peak 11.0 MiB at line 3")
    assert "3.00 MiB stayed" in report["text/plain"].splitlines()[0]


def test_a_widget_is_sent_only_where_a_front_end_is(headless, watched):
    assert VIEW not in report_of(headless)
    assert VIEW in report_of(watched)


def test_the_stored_widget_state_is_small(watched):
    states = watched.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    model = states[report_of(watched)[VIEW]["model_id"]]
    size = sum(len(buffer["data"]) for buffer in model.get("buffers", []))
    assert size <= 100_000
    # The view's own code comes along with every stored widget.
    assert len(str(states)) <= 2 * 2**20


def test_html_of_a_headless_run_shows_the_picture_without_a_network(headless):
    body, _ = HTMLExporter().from_notebook_node(headless)
    picture = report_of(headless)["image/png"].replace("\n", "")
    html = report_of(headless)["text/html"]
    assert picture in body.replace("\n", "") or html in body
    assert 'src="data:image/png;base64,' in body


def test_html_of_a_notebook_saved_without_widget_state_shows_the_picture(watched):
    saved = nbformat.from_dict({**watched, "metadata": {}})
    body, _ = HTMLExporter().from_notebook_node(saved)
    assert 'src="data:image/png;base64,' in body


def test_latex_contains_the_picture(headless):
    body, resources = LatexExporter().from_notebook_node(headless)
    pictures = [data for name, data in resources["outputs"].items() if name.endswith(".png")]
    assert len(pictures) == 1
    assert pictures[0].startswith(PNG_MAGIC)
    assert "includegraphics" in body


def test_markdown_contains_the_picture_or_the_html(headless):
    body, resources = MarkdownExporter().from_notebook_node(headless)
    assert any(name.endswith(".png") for name in resources["outputs"]) or "<img" in body


@pytest.fixture(scope="module")
def stripped(watched) -> Any:
    """The notebook as a host keeps it that knows no widgets of ours: without the view, the state and the trust."""
    notebook = nbformat.from_dict({**watched, "metadata": {}})
    notebook.cells = [nbformat.from_dict(cell) for cell in watched.cells]
    for output in notebook.cells[1].outputs:
        output.get("data", {}).pop(VIEW, None)
    nbformat.validate(notebook)
    return notebook


@pytest.mark.parametrize("exporter", [HTMLExporter, LatexExporter, MarkdownExporter])
def test_without_the_widget_every_format_still_has_the_picture(stripped, exporter):
    assert VIEW not in report_of(stripped)
    body, resources = exporter().from_notebook_node(stripped)
    pictures = [data for name, data in resources.get("outputs", {}).items() if name.endswith(".png")]
    inline = re.findall(r'src="data:image/png;base64,([A-Za-z0-9+/=\s]+)"', body)
    pictures += [base64.b64decode(text) for text in inline]
    assert pictures
    assert all(picture.startswith(PNG_MAGIC) for picture in pictures)


def papermill_run(folder: Path, source: str, **parameters: object) -> Any:
    """Run a notebook as a job does, with its parameters put in; return what papermill wrote, and what it raised."""
    papermill = pytest.importorskip("papermill", reason="tests/compat installs it")
    marked = nbformat.v4.new_code_cell("rows = 1", metadata={"tags": ["parameters"]})
    cells = [nbformat.v4.new_code_cell(LOAD), marked, *map(nbformat.v4.new_code_cell, (source, "reached = 1"))]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), folder / "in.ipynb")
    try:
        papermill.execute_notebook(folder / "in.ipynb", folder / "out.ipynb", parameters, progress_bar=False)
        error = None
    except papermill.PapermillExecutionError as raised:
        error = raised
    return nbformat.read(folder / "out.ipynb", as_version=4), error


def test_papermill_runs_a_measured_notebook_with_parameters(tmp_path):
    done, error = papermill_run(tmp_path, "%%gpumem\nkept = torch.ones(rows, 256)", rows=2048)
    assert error is None
    (report,) = (output.data for output in done.cells[-2].outputs)
    assert report["text/plain"].startswith("gpumem: Peak 2.00 MiB at line 2 `kept = torch.ones(rows, 256)`")
    assert base64.b64decode(report["image/png"]).startswith(PNG_MAGIC)


def test_papermill_stops_at_a_broken_promise_and_keeps_its_report(tmp_path):
    leaky = "%%gpumem --assert-no-leak\nlosses = []\nfor _ in range(8):\n    losses.append(torch.ones(rows, 256))"
    done, error = papermill_run(tmp_path, leaky, rows=1024)
    assert error is not None
    assert error.ename == "LeakError"
    # papermill puts cells of its own above: the parameters, and what failed.
    (cell,) = (cell for cell in done.cells if cell.source.startswith("%%gpumem"))
    said = "".join(output.data["text/plain"] for output in cell.outputs if output.output_type == "display_data")
    assert "keeps 1.00 MiB more each iteration, 8 times" in said
    assert done.cells[-1].execution_count is None
