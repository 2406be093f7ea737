"""The view inside a notebook: its theme follows Jupyter's, its keys are not the notebook's commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

pytest.importorskip("torch", reason="a measured cell needs torch")
pytestmark = pytest.mark.timeout(180)

CELLS = [
    "%load_ext gpumem_magic\nimport torch",
    "%%gpumem\nkept = [torch.ones(1024, 256) for _ in range(8)]\nfor n in range(9):\n    lost = torch.ones(n, 1024)",
    "after = 1",
]


@pytest.fixture(scope="module")
def jupyter(start_jupyter):
    dark = {"theme": "JupyterLab Dark"}
    return start_jupyter("lab", notebooks={"a.ipynb": CELLS}, settings={"@jupyterlab/apputils-extension:themes": dark})


def test_dark_theme_and_keys(jupyter, new_page: Callable[..., Page], shoot):
    page = new_page(height=1100)
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    jupyter.run_all(page)
    overlay = page.locator(".jp-OutputArea-output .overlay")
    overlay.wait_for(timeout=60_000)
    # The browser prefers light: what counts is the notebook around.
    assert overlay.evaluate("e => e.getRootNode().querySelector('.gm').dataset.theme") == "dark"
    overlay.scroll_into_view_if_needed()
    whole = overlay.get_attribute("aria-description")
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    overlay.focus()
    # In the notebook's command mode "d d" deletes a cell, "a" inserts one, "x" cuts one.
    for key in ("d", "d", "a", "a", "x", "w", "w"):
        page.keyboard.press(key)
    expect(overlay).not_to_have_attribute("aria-description", whole or "")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    shoot(page, "lab-dark")
    # Jupyter's theme changes under the view.
    change = "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})"
    page.evaluate(f"async () => {{ await {change}; }}")
    theme = (
        "document.querySelector('.jp-OutputArea-output [data-lm-suppress-shortcuts]').shadowRoot.querySelector('.gm')"
    )
    page.wait_for_function(f"() => {theme}.dataset.theme === 'light'")


@pytest.fixture(scope="module")
def pair(start_jupyter):
    grow = "%%gpumem --label grow --quiet\nkept = [torch.ones(1024, 256) for _ in range({})]"
    cells = ["%load_ext gpumem_magic\nimport torch", grow.format(2), grow.format(7), "%gpumem_diff grow~1 grow"]
    return start_jupyter("lab", notebooks={"a.ipynb": cells})


def test_two_runs_side_by_side_in_a_notebook(pair, new_page: Callable[..., Page], shoot):
    page = new_page(height=1000)
    pair.open(page, "a.ipynb")
    pair.wait_for_kernel(page)
    pair.run_all(page)
    pictures = page.locator(".jp-OutputArea-output .pair .overlay")
    pictures.first.wait_for(timeout=60_000)
    assert pictures.count() == 2
    view = page.locator(".jp-OutputArea-output .gm")
    expect(view.locator(".sentence")).to_contain_text("B's peak is 5.00 MiB higher (2.00 MiB → 7.00 MiB)")
    expect(view.locator(".pair h4").first).to_contain_text("grow (In [2])")
    row = view.locator(".panel tbody tr").first
    expect(row).to_contain_text("+5.00 MiB")
    expect(row).to_contain_text("for _ in range(7)]")
    shoot(page, "diff-in-lab")
