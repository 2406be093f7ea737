"""The tabs for segments and other settings: in a file, and in JupyterLab with a kernel that answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

HOST = "#gpumem-report"
RECORDINGS = Path(__file__).parents[2] / "data" / "recordings"
STATIC = Path(__file__).parents[3] / "gpumem_magic" / "static"


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


@pytest.fixture
def open_explored(new_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Open the report of a recording that was written with --whatif."""
    from gpumem_magic.cli import main

    if not (STATIC / "report.js").is_file():
        pytest.skip("the view is not built (jlpm build:prod in labextension/)")

    def open_(name: str, **options: object) -> Page:
        path = tmp_path / "x.html"
        assert main(["report", str(RECORDINGS / f"{name}.pickle.xz"), "-o", str(path), "--whatif"]) == 0
        page = new_page(**options)
        page.goto(path.as_uri())
        page.wait_for_selector(f"{HOST} .overlay[aria-description]")
        return page

    return open_


def test_the_best_setting_is_said_first_and_comes_as_a_line_to_paste(open_explored, shoot):
    page = open_explored("kv_cache.c0")
    open_tab(page, "What if")
    tab = page.locator(f"{HOST} .whatif")
    expect(tab.locator(".verdict")).to_contain_text("would have reserved 2.05 GiB instead of 16.9 GiB: 14.8 GiB back")
    expect(tab.locator("tr.best td.conf")).to_contain_text("expandable_segments:True,roundup_power2_divisions:4")
    expect(tab.locator(".paste code").first).to_contain_text("%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    expect(tab.locator("tr.inert")).to_have_count(3)
    # A file cannot be asked for more.
    expect(tab.locator("form")).to_have_count(0)
    # Longer bars reserve more.
    width = {
        name: tab.locator("tbody tr", has=page.get_by_text(name, exact=True)).locator(".bars i").bounding_box()["width"]
        for name in ("(defaults)", "expandable_segments:True", "roundup_power2_divisions:4")
    }
    assert width["(defaults)"] > width["roundup_power2_divisions:4"] > width["expandable_segments:True"]
    shoot(page, "whatif")


def test_the_map_follows_the_picture_and_the_slider(open_report, shoot):
    page = open_report("load_swap.c0")
    open_tab(page, "Segments")
    tab = page.locator(f"{HOST} .segments")
    says = tab.locator(".says")
    expect(says).to_contain_text("3.00 GiB reserved for 3.00 GiB in use; next to nothing is wasted.")
    shoot(page, "segments")
    tab.get_by_role("button", name="end").click()
    expect(says).to_contain_text("4.66 GiB reserved for 1.66 GiB in use; empty_cache() would give back 3.00 GiB.")
    # A click in the picture moves the map, and does not leave the tab.
    box = page.locator(f"{HOST} .overlay").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.6)
    expect(tab).to_be_visible()
    early = tab.locator("output").inner_text()
    slider = tab.get_by_role("slider", name="Moment")
    slider.focus()
    page.keyboard.press("End")
    expect(tab.locator("output")).not_to_have_text(early)
    expect(tab.locator("output")).to_contain_text("(end)")
    page.keyboard.press("ArrowLeft")
    expect(tab.locator("output")).not_to_contain_text("(end)")
    # The cursor of the picture went along: that moment can be opened as a table.
    expect(page.get_by_role("tab", name=re.compile("^Here"))).to_be_visible()


def test_segments_are_reached_by_keys_and_their_pins_named(open_report):
    page = open_report("random_mix.c0")
    open_tab(page, "Segments")
    tab = page.locator(f"{HOST} .segments")
    expect(tab.locator(".says")).to_contain_text("more is free but pinned in 19 segments")
    tab.get_by_role("application").focus()
    page.keyboard.press("Home")
    expect(tab.locator(".lens h4")).to_contain_text("Segment 1 of")
    expect(tab.locator("[aria-live]")).to_contain_text("pinned free")
    expect(tab.locator(".lens tbody tr").first).to_contain_text("workloads.py")
    page.keyboard.press("ArrowRight")
    expect(tab.locator(".lens h4")).to_contain_text("Segment 2 of")
    page.keyboard.press("Escape")
    expect(tab.locator(".lens h4")).to_contain_text("Who keeps free memory from going back")
    # The twin for those who cannot see the map.
    tab.get_by_text("All segments as a table").click()
    expect(tab.get_by_role("region", name="All segments").locator("tbody tr").first).to_be_visible()


def test_a_file_without_the_answer_says_how_to_get_it(open_report):
    page = open_report("load_swap.c0")
    open_tab(page, "What if")
    expect(page.locator(f"{HOST} .whatif")).to_contain_text("gpumem-magic report FILE --whatif")


def test_dark_and_narrow(open_explored, shoot):
    page = open_explored("oom_fragmented", width=420, dark=True)
    open_tab(page, "What if")
    expect(page.locator(f"{HOST} .whatif .verdict")).to_contain_text("fits under 4.00 GiB")
    # Nothing is wider than the page.
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    shoot(page, "whatif-narrow")
    open_tab(page, "Segments")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    shoot(page, "segments-narrow")


# Until the test has seen enough, with the interpreter's lock let go as torch does.
BUSY = "import os, time\nwhile not os.path.exists('enough'):\n    time.sleep(0.25)"
CELLS = [
    "%load_ext gpumem_magic\nimport gpumem_magic",
    f"gpumem_magic.read_snapshot({str(RECORDINGS / 'load_swap.c0.pickle.xz')!r})",
    BUSY,
]


@pytest.fixture(scope="module")
def jupyter(start_jupyter):
    return start_jupyter("lab", notebooks={"a.ipynb": CELLS})


@pytest.mark.timeout(180)
def test_a_live_kernel_answers_beside_the_notebook(jupyter, new_page: Callable[..., Page], shoot):
    page = new_page(height=1300)
    jupyter.open(page, "a.ipynb")
    jupyter.wait_for_kernel(page)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.locator(".jp-OutputArea-output .overlay").wait_for(timeout=60_000)
    open_tab(page, "What if")
    tab = page.locator(".jp-OutputArea-output .whatif")
    expect(tab.locator(".verdict")).to_contain_text(
        "expandable_segments:True would have reserved 3.72 GiB", timeout=60_000
    )
    # The last cell still runs: the kernel answers beside it.
    running = "() => window.jupyterapp.shell.currentWidget.content.widgets[2].model.executionState === 'running'"
    assert page.evaluate(running)
    (jupyter.root / "enough").touch()
    page.wait_for_function(running.replace("===", "!=="))
    # A wrong setting is answered with the corrected one, which is one click away.
    tab.get_by_label("your own setting").fill("max_split_size_mb=32")
    tab.get_by_role("button", name="Try it").click()
    tab.get_by_role("button", name="Try max_split_size_mb:32").click()
    expect(tab.locator("td.conf", has_text="max_split_size_mb:32")).to_be_visible(timeout=60_000)
    tab.get_by_label("limit in GiB").fill("3")
    tab.get_by_role("button", name="Try it").click()
    expect(tab.locator(".verdict")).to_contain_text("fit under 3.00 GiB", timeout=60_000)
    shoot(page, "whatif-live")
    open_tab(page, "Segments")
    segments = page.locator(".jp-OutputArea-output .segments")
    expect(segments.locator(".says")).to_contain_text("3.00 GiB reserved", timeout=30_000)
    before = segments.locator(".says").inner_text()
    segments.get_by_role("slider", name="Moment").focus()
    page.keyboard.press("End")
    expect(segments.locator(".says")).not_to_have_text(before, timeout=30_000)
    shoot(page, "segments-live")


def test_a_recording_without_times_has_its_moments_by_order(new_page: Callable[..., Page], untimed, tmp_path: Path):
    from gpumem_magic.cli import main

    out = tmp_path / "r.html"
    assert main(["report", str(untimed("oom_fragmented")), "-o", str(out)]) == 0
    page = new_page()
    page.goto(out.as_uri())
    page.wait_for_selector(f"{HOST} .overlay[aria-description]")
    open_tab(page, "Segments")
    tab = page.locator(f"{HOST} .segments")
    expect(tab.locator("output")).to_have_text("at change 496 (out of memory)")
    expect(tab.locator(".says")).to_contain_text("2.13 GiB is free but pinned in 32 segments")
    tab.get_by_role("button", name="peak").click()
    expect(tab.locator("output")).to_have_text("at change 272 (peak)")
    expect(tab.locator(".says")).to_contain_text("4.00 GiB reserved for 4.00 GiB in use")
    page.get_by_role("tab", name="Here (change 272)").click()
    expect(page.locator(f"{HOST} .panel tfoot")).to_contain_text("alive at change 272")
