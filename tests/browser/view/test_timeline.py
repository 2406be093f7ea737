"""All measured cells on one axis, in JupyterLab: from a band to its cell and back."""

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
    "%load_ext gpumem_magic\n%gpumem_auto on\nimport time\nimport torch",
    "kept = torch.ones(1024, 1024)\ntime.sleep(0.05)",
    "more = [torch.ones(1024, 256) for _ in range(8)]\ntime.sleep(0.05)",
    "'\\n'.join(str(n) for n in range(60))",
    "%gpumem_timeline",
]


@pytest.fixture(scope="module", params=["lab", "notebook"])
def jupyter(start_jupyter, request):
    return start_jupyter(request.param, notebooks={"a.ipynb": CELLS})


def test_a_band_leads_to_its_cell_and_back(jupyter, new_page: Callable[..., Page], shoot):
    page = new_page(height=700)
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    jupyter.run_all(page)
    overlay = page.locator(".jp-OutputArea-output .overlay")
    overlay.wait_for(timeout=60_000)
    overlay.scroll_into_view_if_needed()
    view = page.locator(".jp-OutputArea-output .gm")
    expect(view.locator(".sentence")).to_contain_text("2 measured runs: peak 8.00 MiB, reached by In [3], line 1")
    view.locator("[role=tab]", has_text="Cells").click()
    rows = view.locator(".panel tbody tr")
    expect(rows).to_have_count(2)
    assert rows.nth(1).locator("td").all_inner_texts()[:2] == ["8.00 MiB", "?"]
    shoot(page, "timeline")
    # A click on the second cell's band asks what happened in it.
    box = overlay.bounding_box()
    assert box is not None
    where = (box["x"] + box["width"] - 60, box["y"] + 14)
    page.mouse.click(*where)
    expect(view.locator("[role=tab][aria-selected=true]")).to_contain_text("This stretch")
    expect(view.locator(".panel p b").first).to_have_text("In [3]")
    expect(view.locator(".panel tfoot")).to_contain_text("8.00 MiB")
    # A double click goes there.
    page.mouse.dblclick(*where)
    active = page.locator(".jp-Notebook .jp-Cell.jp-mod-active")
    expect(active).to_contain_text("more = [torch.ones(1024, 256)")
    page.locator("button", has_text="Back to the timeline").click()
    expect(active).to_contain_text("%gpumem_timeline")
    # Where both cells fit on the screen the notebook itself makes the double-clicked one active, and must not be last.
    page.set_viewport_size({"width": 1280, "height": 2000})
    overlay.scroll_into_view_if_needed()
    overlay.hover()
    box = overlay.bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] - 60, box["y"] + 14)
    page.evaluate("() => new Promise(done => setTimeout(done, 50))")
    expect(active).to_contain_text("more = [torch.ones(1024, 256)")
