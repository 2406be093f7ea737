"""The sidebar's "this notebook": the ledger that a kernel pushes, also after the page was loaded again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("torch", reason="a measured cell needs torch")
pytestmark = pytest.mark.timeout(180)

CELLS = [
    "%load_ext gpumem_magic\nimport torch\n%gpumem_auto on",
    "kept = torch.ones(1024, 1024)",
    "quiet = 1",
    "lost = torch.ones(2048, 1024)\ndel lost",
]
ROWS = "#gpumem-magic-panel .gpumem-notebook .gpumem-ledger > li"
OPEN = "async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }"


@pytest.fixture(scope="module")
def jupyter(start_jupyter: Callable[..., Any]) -> Any:
    return start_jupyter("lab", notebooks={"a.ipynb": CELLS, "plain.ipynb": ["1 + 1"]})


def ledger(page: Any) -> list[str]:
    page.wait_for_function(f"() => document.querySelectorAll('{ROWS}').length === 2", timeout=60_000)
    return [re.sub(r"\s+", " ", text) for text in page.locator(ROWS).all_inner_texts()]


def test_the_ledger_shows_after_a_run_after_a_reload_and_not_after_a_restart(
    jupyter: Any, page: Any, watch: Any
) -> None:
    # JupyterLab's debugger asks a kernel that is being restarted.
    watch.allowed.append("restore the debugger state")
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    page.evaluate(OPEN)
    jupyter.run_all(page)
    expected = ["In [4] peak 8.00 MiB · stayed 0 B", "In [2] peak 4.00 MiB · stayed 4.00 MiB"]
    assert ledger(page) == expected
    # The cell that a row names comes into view.
    page.locator(f"{ROWS} button").last.click()
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex === 1")
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    page.evaluate(OPEN)
    assert ledger(page) == expected
    # Another notebook's kernel has nothing to say, and is not troubled.
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:open', {path: 'plain.ipynb'}); }")
    page.wait_for_function(f"() => document.querySelectorAll('{ROWS}').length === 0")
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:open', {path: 'a.ipynb'}); }")
    assert ledger(page) == expected
    page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    page.wait_for_function(f"() => document.querySelectorAll('{ROWS}').length === 0")
    assert "No such comm" not in jupyter.log.read_text()
