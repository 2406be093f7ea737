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
