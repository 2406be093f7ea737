"""The notebooks run, and the demo command writes what it says."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    result = subprocess.run(
        [sys.executable, "-m", "gpumem_magic", "demo", "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return folder, result.stdout


def test_the_demo_prints_a_sentence_for_every_measured_cell_and_where_the_files_are(demo):
    folder, printed = demo
    sentences = [line for line in printed.splitlines() if line.startswith("In [")]
    assert len(sentences) == 4
    assert all("Peak" in sentence for sentence in sentences)
    assert str(folder / "quickstart.ipynb") in printed
    assert str(folder / "quickstart.gpumem.html") in printed


def test_the_demos_notebook_holds_a_picture_and_text_for_every_measured_cell(demo):
    notebook = nbformat.read(demo[0] / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    measured = [cell for cell in notebook.cells if cell.source.startswith("%%gpumem")]
    assert len(measured) == 4
    for cell in measured:
        (report,) = [
            output for output in cell.outputs if output.get("data", {}).get("text/plain", "").startswith("gpumem:")
        ]
        assert report is cell.outputs[-1]
        assert "image/png" in report.data
        assert "application/vnd.jupyter.widget-view+json" not in report.data


def test_a_second_run_replaces_the_first_and_nothing_else(demo, tmp_path):
    from gpumem_magic._errors import ExportError
    from gpumem_magic.cli.demo import _prepare

    # The run itself takes half a minute; what it asks first decides.
    _prepare(demo[0], demo[0] / "quickstart.ipynb")
    mine = tmp_path / "quickstart.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), mine)
    with pytest.raises(ExportError, match="was not written by this command"):
        _prepare(tmp_path, mine)


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.name != "quickstart.ipynb"], ids=lambda path: path.name
)
def test_every_other_notebook_runs_on_what_the_machine_has(path, tmp_path):
    # The demo command runs the quickstart. A copy: what a notebook writes shall not lie beside the original.
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(tmp_path / "notebooks")}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    nbformat.validate(notebook)
    printed = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in printed if output.output_type == "stream" and output.name == "stderr"]
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.startswith(("%%gpumem", "%gpumem_diff", "%gpumem_whatif")):
            texts = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            assert any(text.startswith("gpumem:") for text in texts), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_stored_notebooks_show_their_result_and_nothing_of_the_machine(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert len(text) < 600_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert not failed or "raises-exception" in cell.metadata.get("tags", ())
    assert str(Path.home()) + "/" not in text
    assert tempfile.gettempdir() + "/" not in text
    assert "widgets" not in json.loads(text)["metadata"]
