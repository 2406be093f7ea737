"""The main job as a person does it: run a measured cell, see it, keep it, open it elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

pytest.importorskip("torch", reason="a measured cell needs torch")
pytestmark = pytest.mark.timeout(180)

LOAD = "%load_ext gpumem_magic\nimport os\nimport time\nimport torch"
MEASURED = """%%gpumem --export kept.gpumem.html
kept = [torch.ones(1024, 256) for _ in range(3)]
for size in (1, 2, 3, 4):
    lost = torch.ones(size * 1024, 512)
    time.sleep(0.05)
del lost"""
SENTENCE = re.compile(r"Peak 1\d\.\d MiB at line 4")
FAILING = """%%gpumem
kept = torch.ones(1024, 1024)
raise ValueError("on purpose")"""
LONG = """%%gpumem
held = []
for _ in range(8):
    held.append(torch.ones(1024, 1024))
while not os.path.exists("seen"):
    time.sleep(0.1)"""
KEPT_S = 30_000


def shoot(page: Page, name: str) -> None:
    """Keep a picture where somebody asked for it: GPUMEM_SCREENSHOTS names the folder."""
    folder = os.environ.get("GPUMEM_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def outputs(page: Page, cell: int) -> Locator:
    return page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".jp-OutputArea-output")


@pytest.fixture(scope="module", params=["lab", "notebook"])
def jupyter(request, start_jupyter):
    return start_jupyter(
        request.param,
        notebooks={
            "measured.ipynb": [LOAD, MEASURED],
            "again.ipynb": [LOAD, MEASURED],
            "failing.ipynb": [LOAD, FAILING, "print('never')"],
            "long.ipynb": [LOAD, LONG],
        },
    )


def run_all(page: Page, jupyter, path: str) -> None:
    jupyter.open(page, path)
    jupyter.wait_for_kernel(page)
    jupyter.run_all(page)


def test_a_measured_cell_shows_the_interactive_view(jupyter, new_page: Callable[..., Page]):
    page = new_page(height=1100)
    run_all(page, jupyter, "measured.ipynb")
    report = outputs(page, 1).last
    expect(report).to_contain_text(SENTENCE, timeout=KEPT_S)
    expect(report.locator("canvas").first).to_be_visible()
    # The widget stands for the fallback, not beside it.
    expect(report.locator("img")).to_have_count(0)
    report.scroll_into_view_if_needed()
    shoot(page, f"{jupyter.app}-measured")


def test_a_failing_cell_shows_its_traceback_once_and_then_the_report(jupyter, page: Page):
    run_all(page, jupyter, "failing.ipynb")
    expect(outputs(page, 1).last).to_contain_text("4.00 MiB", timeout=KEPT_S)
    expect(outputs(page, 1)).to_have_count(2)
    expect(outputs(page, 1).first).to_contain_text("ValueError")
    assert page.locator(".jp-Notebook").inner_text().count("ValueError: on purpose") == 1
    expect(outputs(page, 2)).to_have_count(0)
    shoot(page, f"{jupyter.app}-failing")


def test_a_long_cell_has_a_live_line_that_the_report_replaces(jupyter, page: Page):
    jupyter.open(page, "long.ipynb")
    jupyter.wait_for_kernel(page)
    # Not awaited: the line is there only while the cell runs.
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    expect(outputs(page, 1).last).to_contain_text(re.compile(r"host used \d.* of \d.* GiB"), timeout=KEPT_S)
    shoot(page, f"{jupyter.app}-live")
    (jupyter.root / "seen").touch()
    expect(outputs(page, 1).last).to_contain_text("Peak 32.0 MiB", timeout=KEPT_S)
    expect(outputs(page, 1).filter(visible=True)).to_have_count(1)


@pytest.fixture(scope="module")
def saved(start_jupyter, chromium):
    """A notebook that was run and saved by JupyterLab, its kernel gone."""
    lab = start_jupyter("lab", notebooks={"measured.ipynb": [LOAD, MEASURED]})
    page = chromium.new_page()
    run_all(page, lab, "measured.ipynb")
    expect(outputs(page, 1).last).to_contain_text(SENTENCE, timeout=KEPT_S)
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    page.close()
    for session in lab.request("api/sessions"):
        lab.request(f"api/sessions/{session['id']}", method="DELETE")
    return lab


def test_a_reopened_notebook_shows_the_view_again_while_its_kernel_lives(jupyter, new_page: Callable[..., Page]):
    page = new_page(height=1100)
    run_all(page, jupyter, "again.ipynb")
    expect(outputs(page, 1).last).to_contain_text(SENTENCE, timeout=KEPT_S)
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    page.close()
    page = new_page(height=1100)
    jupyter.open(page, "again.ipynb")
    report = outputs(page, 1).last
    expect(report.locator("canvas").first).to_be_visible(timeout=KEPT_S)
    # The picture that stood there meanwhile is gone.
    expect(report.locator("img").filter(visible=True)).to_have_count(0)


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "untrusted"])
def test_a_reopened_notebook_shows_the_picture_without_its_kernel(saved, page: Page, watch, trusted):
    # ipywidgets says so itself, before the picture takes the place of its message.
    watch.allowed.append("widget model not found")
    path = "measured.ipynb"
    if not trusted:
        # Trust goes by the content's signature; a changed word makes a notebook that nobody has signed.
        text = (saved.root / path).read_text(encoding="utf-8").replace("Peak", "Summit")
        path = "changed.ipynb"
        (saved.root / path).write_text(text, encoding="utf-8")
    saved.open(page, path)
    report = outputs(page, 1).last
    picture = report.locator("img").first
    expect(picture).to_be_visible(timeout=KEPT_S)
    assert picture.evaluate("image => image.naturalWidth") > 300
    expect(report).to_contain_text("MiB")
    expect(report).not_to_contain_text("Error displaying widget", use_inner_text=True)
    shoot(page, f"reopened-{'trusted' if trusted else 'untrusted'}")


def test_nbconvert_makes_a_page_that_shows_the_picture_offline(saved, new_page: Callable[..., Page]):
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(saved.root / "measured.ipynb")]
    subprocess.run(command, check=True, capture_output=True)
    page = new_page(offline=True, java_script_enabled=False)
    page.goto((saved.root / "measured.html").as_uri())
    picture = page.locator('img[src^="data:image/png"]').first
    expect(picture).to_be_visible()
    box = picture.bounding_box()
    assert box is not None
    assert box["width"] > 300


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_exported_page_opens_from_disk_without_a_network(saved, new_page: Callable[..., Page], dark):
    page = new_page(offline=True, dark=dark)
    page.goto((saved.root / "kept.gpumem.html").as_uri())
    expect(page.locator("body")).to_contain_text(SENTENCE)
    expect(page.locator("canvas").first).to_be_visible()
    shoot(page, f"export-{'dark' if dark else 'light'}")


def test_the_saved_notebook_is_small_and_holds_no_path_of_ours(saved):
    text = (saved.root / "measured.ipynb").read_text(encoding="utf-8")
    assert len(text) < 2 * 2**20
    assert json.loads(text)["cells"][1]["outputs"]
