"""Two recordings side by side in a real browser: one scale, signed rows that add up, stacks inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

DATA = Path(__file__).parents[2] / "data" / "recordings"


@pytest.fixture
def open_diff(new_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    from gpumem_magic.cli import main

    def open_(a: str, b: str, **options: object) -> Page:
        out = tmp_path / "diff.html"
        assert main(["diff", str(DATA / f"{a}.pickle.xz"), str(DATA / f"{b}.pickle.xz"), "-o", str(out)]) == 0
        page = new_page(**options)
        page.goto(out.as_uri())
        page.wait_for_selector("#gpumem-report .overlay[aria-description]")
        return page

    return open_


@pytest.fixture
def open_untimed(new_page: Callable[..., Page], tmp_path: Path, untimed: Callable[[str], Path]) -> Callable[..., Page]:
    from gpumem_magic.cli import main

    def open_() -> Page:
        out = tmp_path / "diff.html"
        sides = [str(untimed(name)) for name in ("oom_fragmented", "streams.c0")]
        assert main(["diff", *sides, "-o", str(out)]) == 0
        page = new_page(width=1000)
        page.goto(out.as_uri())
        page.wait_for_selector("#gpumem-report .overlay[aria-description]")
        return page

    return open_


def count(cell: Locator) -> int:
    return int((cell.get_attribute("title") or "").replace(",", "").replace(" bytes", "").replace("−", "-"))


def test_signed_rows_add_up_and_open_into_stacks(open_diff: Callable[..., Page], shoot):
    page = open_diff("leak_losses.c0", "mlp_train.c0", width=1200)
    expect(page.locator(".sentence")).to_contain_text("B's peak is 67.3 MiB lower (777 MiB → 710 MiB)")
    assert page.locator(".pair .overlay").count() == 2
    rows = page.locator("#gpumem-report tbody tr")
    changes = [count(row.locator("td").nth(2)) for row in rows.all()]
    assert sum(changes) == count(page.locator("#gpumem-report tfoot td").nth(2)) < 0
    assert [abs(change) for change in changes[:-1]] == sorted((abs(c) for c in changes[:-1]), reverse=True)
    fold = rows.first.locator(".fold")
    fold.focus()
    page.keyboard.press("Enter")
    inside = page.locator("tr.inside", has=page.locator("td.n"))
    assert inside.count() >= 1
    assert sum(count(row.locator("td").nth(2)) for row in inside.all()) == changes[0]
    shoot(page, "compare")
    page.set_viewport_size({"width": 480, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 480
    shoot(page, "compare-narrow")


def test_two_clicked_moments_are_compared(open_diff: Callable[..., Page]):
    page = open_diff("leak_losses.c0", "mlp_train.c1", width=1200)
    overlays = page.locator(".pair .overlay")
    for nth, share in ((0, 0.3), (1, 0.9)):
        box = overlays.nth(nth).bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] * share, box["y"] + box["height"] * 0.85)
    tab = page.locator("[role=tab][aria-selected=true]")
    expect(tab).to_have_text("At the clicked moments")
    foot = page.locator("#gpumem-report tfoot td")
    assert count(foot.nth(1)) > count(foot.nth(0)) > 0
    changes = [count(row.locator("td").nth(2)) for row in page.locator("#gpumem-report tbody tr").all()]
    assert sum(changes) == count(foot.nth(2))


def test_both_pictures_read_across_and_say_what_their_lines_are(open_diff: Callable[..., Page], shoot):
    # A has no regions, B's title is long: neither may lower one plot.
    page = open_diff("oom_fragmented", "lm_growing.c1", width=1000)
    boxes = [one.bounding_box() for one in page.locator(".pair .overlay").all()]
    a, b = boxes
    assert a is not None
    assert b is not None
    assert (a["y"], a["height"]) == (b["y"], b["height"])
    # What each said of itself is a click away, and does not push the pictures off the screen.
    assert a["y"] < 250
    page.locator("summary", has_text="notes of A and B").click()
    expect(page.locator("details.notes")).to_contain_text("A: Do 1: free the 60.0 MiB")
    shoot(page, "compare-aligned")
    picture = "[...document.querySelector('#gpumem-report').shadowRoot.querySelectorAll('.picture canvas')]"
    pixels = f"{picture}.filter(one => !one.classList.contains('overlay')).map(one => one.toDataURL())"
    before = page.evaluate(pixels)
    line = page.locator(".legend button", has_text="reserved")
    line.focus()
    page.keyboard.press("Enter")
    expect(line).to_have_attribute("aria-pressed", "false")
    expect(line).to_be_focused()
    page.wait_for_function(f"before => {pixels}.every((one, k) => one !== before[k])", arg=before)


def test_recordings_without_times_are_told_by_their_order(open_untimed: Callable[..., Page]):
    page = open_untimed()
    overlays = page.locator(".pair .overlay")
    for nth in (0, 1):
        overlays.nth(nth).focus()
        page.keyboard.press("p")
    expect(page.locator("#gpumem-report tfoot")).to_contain_text("in A at change 272, in B at change")
    assert "µs" not in page.locator("#gpumem-report").inner_text()


def test_the_same_recording_twice_has_no_difference(open_diff: Callable[..., Page]):
    page = open_diff("multi_gpu", "multi_gpu")
    assert page.locator(".devices [role=tab]").all_inner_texts() == ["cuda:0", "cuda:1"]
    expect(page.locator(".panel")).to_contain_text("Nothing differs at each one’s peak.")
    page.locator(".devices [role=tab]").nth(1).click()
    expect(page.locator(".panel")).to_contain_text("Nothing differs at each one’s peak.")
