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
SECTION = "#gpumem-magic-panel .gpumem-notebook"
RUNS = f"{SECTION} .gpumem-runs > li"
ALIVE = f"{SECTION} .gpumem-alive li"
OPEN = "async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }"


@pytest.fixture(scope="module")
def jupyter(start_jupyter: Callable[..., Any]) -> Any:
    return start_jupyter("lab", notebooks={"a.ipynb": CELLS, "plain.ipynb": ["1 + 1"]})


def texts(page: Any, rows: str, count: int) -> list[str]:
    page.wait_for_function(f"() => document.querySelectorAll('{rows}').length === {count}", timeout=60_000)
    return [re.sub(r"\s+", " ", text) for text in page.locator(rows).all_inner_texts()]


def ledger(page: Any) -> list[str]:
    return [*texts(page, RUNS, 2), *texts(page, ALIVE, 1)]


def test_the_ledger_shows_after_a_run_after_a_reload_and_not_after_a_restart(
    jupyter: Any, page: Any, watch: Any
) -> None:
    # JupyterLab asks a kernel that is being restarted, its debugger and 4.4's subshells do.
    watch.allowed.append(r"restore the debugger state|Canceled future for \w+_request")
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    page.evaluate(OPEN)
    jupyter.run_all(page)
    expected = [
        "In [4] lost = torch.ones(2048, 1024) peak 8.00 MiB · stayed 0 B",
        "In [2] kept = torch.ones(1024, 1024) peak 4.00 MiB · stayed 4.00 MiB",
        "In [2] kept = torch.ones(1024, 1024) 4.00 MiB 1 block · kept · last used in In [2]",
    ]
    assert ledger(page) == expected
    # The cell that a row names comes into view.
    page.locator(f"{RUNS} button").last.click()
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex === 1")
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    page.evaluate(OPEN)
    assert ledger(page) == expected
    # Nor need it wait for the end of a cell that runs meanwhile.
    kernel = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    page.evaluate(f"async () => {{ void {kernel}.requestExecute({{code: 'import time\\ntime.sleep(600)'}}); }}")
    page.wait_for_function(f"() => {kernel}.status === 'busy'")
    jupyter.open(page, "a.ipynb")
    page.evaluate(OPEN)
    assert ledger(page) == expected
    assert page.evaluate(f"() => {kernel}.status") != "idle"
    page.evaluate(f"async () => {{ await {kernel}.interrupt(); }}")
    page.wait_for_function(f"() => {kernel}.status === 'idle'")
    # Another notebook's kernel has nothing to say, and is not troubled.
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:open', {path: 'plain.ipynb'}); }")
    page.wait_for_function(f"() => document.querySelectorAll('{RUNS}').length === 0")
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:open', {path: 'a.ipynb'}); }")
    assert ledger(page) == expected
    page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    page.wait_for_function(f"() => document.querySelectorAll('{RUNS}').length === 0")
    assert "No such comm" not in jupyter.log.read_text()
