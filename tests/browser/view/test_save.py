"""What the save menu gives, opened again: pictures, the table, a copy to share, the recording for torch's viewer."""

from __future__ import annotations

import base64
import gzip
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import expect

from gpumem_magic.trace.reader import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

DATA = Path(__file__).parents[2] / "data" / "recordings"
DOCUMENT = re.compile(r'id="gpumem-document">([A-Za-z0-9+/=]+)<')


def saved(page: Page, item: str, folder: Path) -> Path:
    page.get_by_role("button", name="save", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=item).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_pictures_are_whole_files(open_report: Callable[..., Page], tmp_path: Path):
    page = open_report("leak_losses.c0", width=1000)
    png = saved(page, "Picture as PNG", tmp_path)
    assert png.name == "leak_losses.c0.pickle.xz.cuda0.png"
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    box = page.locator("#gpumem-report .picture").bounding_box()
    assert box is not None
    assert (width, height) == (round(box["width"]) * 2, round(box["height"]) * 2)
    svg = saved(page, "Picture as SVG", tmp_path)
    root = ET.fromstring(svg.read_text("utf-8"))  # noqa: S314 - our own
    assert root.tag.endswith("svg")
    texts = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert "512 MiB" in texts
    page.goto(svg.as_uri())
    assert page.evaluate("document.documentElement.getBBox().width") > 500


def test_a_row_and_the_table_are_copied_as_text(open_report: Callable[..., Page]):
    page = open_report("leak_losses.c0", width=1000)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    rows = page.locator("#gpumem-report tbody tr")
    rows.nth(1).hover()
    rows.nth(1).locator(".copy").click()
    first = rows.nth(1).locator("td").first.inner_text()
    row = page.evaluate("navigator.clipboard.readText()")
    assert row.split("\t")[0] == first
    page.get_by_role("button", name="save", exact=True).click()
    page.get_by_role("menuitem", name="Copy the table").click()
    lines = page.evaluate("navigator.clipboard.readText()").split("\n")
    assert row in lines
    assert len(lines) == rows.count() + 2


def test_a_copy_to_share_names_no_folder_and_draws_the_same(
    open_report: Callable[..., Page], new_page: Callable[..., Page], tmp_path: Path
):
    page = open_report("mlp_train.c0")
    path = saved(page, "Report without source, to share", tmp_path)
    text = path.read_text("utf-8")
    found = DOCUMENT.search(text)
    assert found is not None
    inside = gzip.decompress(base64.b64decode(found[1]))
    assert b"/home/user" not in inside
    assert "/home/user" not in text
    assert b"workloads.py" in inside
    copy = new_page()
    problems: list[str] = []
    copy.on("console", lambda message: problems.append(message.text))
    copy.goto(path.as_uri())
    copy.wait_for_selector("#gpumem-report .overlay[aria-description]")
    assert problems == []
    own, theirs = (one.locator("#gpumem-report .numbers").inner_text() for one in (page, copy))
    assert own == theirs
    description = "#gpumem-report .overlay"
    assert page.locator(description).get_attribute("aria-description") == copy.locator(description).get_attribute(
        "aria-description"
    )
    expect(copy.locator("body > footer")).to_contain_text("Contains no source")
    # A copy of the copy is the copy.
    again = saved(copy, "Report without source, to share", tmp_path / "again")
    assert DOCUMENT.search(again.read_text("utf-8")) is not None


@pytest.fixture
def lab(start_jupyter):
    cell = f'gpumem_magic.read_snapshot("{DATA / "streams.c0.pickle.xz"}")'
    return start_jupyter("lab", notebooks={"a.ipynb": ["%load_ext gpumem_magic\nimport gpumem_magic", cell]})


def test_the_kernel_writes_the_recording_and_the_report(lab, new_page: Callable[..., Page], tmp_path: Path):
    page = new_page(height=1000)
    lab.open(page, "a.ipynb")
    lab.wait_for_kernel(page)
    lab.run_all(page)
    page.locator(".jp-OutputArea-output .overlay").wait_for(timeout=60_000)
    snapshot = saved(page, "Recording for torch’s viewer", tmp_path)
    assert snapshot.read_bytes()[:2] == b"\x80\x04"
    original = read_trace(DATA / "streams.c0.pickle.xz").devices[0]
    again = read_trace(snapshot).devices[0]
    assert again.events.addr.tolist() == original.events.addr.tolist()
    assert again.segments == original.segments
    html = saved(page, "Report without source, to share", tmp_path).read_text("utf-8")
    assert html.startswith("<!DOCTYPE html>\n<!-- gpumem-magic report -->")
    assert "/home/user" not in html
