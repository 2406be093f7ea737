"""The view in a real browser, from documents and from recordings, without a Jupyter server."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "gpumem_magic" / "static"
DOCUMENTS = ROOT / "tests" / "data" / "view"
RECORDINGS = ROOT / "tests" / "data" / "recordings"


@pytest.fixture(scope="session")
def report_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a function that writes the HTML report of a recording of tests/data, once each."""
    from gpumem_magic.cli import main

    folder = tmp_path_factory.mktemp("reports")

    def write(name: str) -> Path:
        out = folder / f"{name}.gpumem.html"
        if not out.exists():
            assert main(["report", str(RECORDINGS / f"{name}.pickle.xz"), "-o", str(out)]) == 0
        return out

    return write


@pytest.fixture
def open_report(new_page: Callable[..., Page], report_of: Callable[[str], Path]) -> Callable[..., Page]:
    """Open a recording's HTML report from disk and wait until the picture is drawn."""
    if not (STATIC / "report.js").is_file():
        pytest.skip("the view is not built (jlpm build:prod in labextension/)")

    def open_(name: str, **options: object) -> Page:
        page = new_page(**options)
        page.goto(report_of(name).as_uri())
        page.wait_for_selector("#gpumem-report .overlay[aria-description]")
        return page

    return open_


@pytest.fixture
def open_document(new_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Open a view document of tests/data/view in a bare page."""

    def open_(name: str, **options: object) -> Page:
        data = base64.b64encode((DOCUMENTS / f"{name}.bin").read_bytes()).decode()
        html = (
            '<!DOCTYPE html><meta charset="utf-8"><div id="gpumem-report"></div>'
            f'<script type="application/octet-stream;base64" id="gpumem-document">{data}</script>'
            f"<script>{(STATIC / 'report.js').read_text('utf-8')}</script>"
        )
        path = tmp_path / f"{name}.html"
        path.write_text(html, "utf-8")
        page = new_page(**options)
        page.goto(path.as_uri())
        page.wait_for_selector("#gpumem-report header")
        return page

    return open_


@pytest.fixture
def shoot() -> Callable[[Page, str], None]:
    """Keep a picture where somebody asked for it: GPUMEM_SCREENSHOTS names the folder."""

    def keep(page: Page, name: str) -> None:
        folder = os.environ.get("GPUMEM_SCREENSHOTS")
        if folder:
            page.screenshot(path=Path(folder) / f"view-{name}.png")

    return keep
