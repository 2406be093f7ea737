"""What a person does with the picture, by real mouse and keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

HOST = "#gpumem-report"
# What is written too small to be read.
SMALL = """() => [...document.querySelector('#gpumem-report').shadowRoot.querySelectorAll('*')]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.tagName !== 'STYLE')
  .filter(e => parseFloat(getComputedStyle(e).fontSize) < 11).map(e => e.outerHTML.slice(0, 80))"""
# What a screen reader could make nothing of: pictures and controls without a name, tables without caption or heads.
UNREAD = """() => {
  const all = selector => [...document.querySelector('#gpumem-report').shadowRoot.querySelectorAll(selector)];
  const hidden = e => e.closest('[aria-hidden=true]') !== null;
  const named = e => (e.getAttribute('aria-label') ?? e.textContent ?? '').trim() !== '' || e.labels?.length > 0;
  return [
    ...all('canvas, svg').filter(e => !hidden(e) && !e.getAttribute('aria-label')),
    ...all('button, select, input').filter(e => !hidden(e) && !named(e)),
    ...all('table').filter(e => !(e.caption?.textContent ?? '').trim() || e.tHead === null),
    ...all('thead th').filter(e => !hidden(e) && e.textContent.trim() !== '' && e.scope !== 'col'),
  ].map(e => e.outerHTML.slice(0, 90));
}"""
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def overlay(page: Page) -> Locator:
    return page.locator(f"{HOST} .overlay")


def seen(page: Page) -> str:
    """What the picture says that it shows: its stretch of time and the most in it."""
    two_frames(page)
    return overlay(page).get_attribute("aria-description") or ""


def two_frames(page: Page) -> None:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def point(page: Page, x: float, y: float) -> tuple[float, float]:
    """A place in the picture, as shares of its width and height."""
    box = overlay(page).bounding_box()
    assert box is not None
    return box["x"] + box["width"] * x, box["y"] + box["height"] * y


def exact(cell: Locator) -> int:
    return int(re.sub(r"\D", "", cell.get_attribute("title") or "0"))


def table(page: Page, column: int = 0) -> tuple[list[int], int]:
    """The exact bytes of a column of the table, and of its last line."""
    rows = page.locator(f"{HOST} tbody tr").all()
    return [exact(row.locator("td").nth(column)) for row in rows], exact(page.locator(f"{HOST} tfoot td").nth(column))


def test_it_opens_from_disk_alone_and_says_what_matters_first(open_report, shoot):
    page = open_report("lm_growing.c1")
    expect(page.locator(f"{HOST} .sentence")).to_contain_text("Peak")
    expect(page.locator("#gpumem-fallback")).to_be_hidden()
    rows, total = table(page)
    assert sum(rows) == total
    assert seen(page).startswith("The whole recording: at most")
    shoot(page, "whole")


def test_the_picture_is_drawn_once_before_it_is_seen(new_page, report_of):
    page = new_page()
    page.add_init_script("window.drawn = 0; addEventListener('gpumem-frame', () => { window.drawn += 1; }, true);")
    page.goto(report_of("lm_growing.c1").as_uri())
    page.wait_for_selector(f"{HOST} .overlay[aria-description]")
    for _ in range(3):
        two_frames(page)
    assert page.evaluate("window.drawn") == 1
    page.set_viewport_size({"width": 700, "height": 800})
    two_frames(page)
    two_frames(page)
    assert page.evaluate("window.drawn") > 1


def test_the_wheel_zooms_about_the_mouse_and_a_drag_pans(open_report, shoot):
    page = open_report("lm_growing.c1")
    whole = seen(page)
    x, y = point(page, 0.6, 0.7)
    page.mouse.move(x, y)
    two_frames(page)
    before = page.locator(f"{HOST} .tooltip").inner_text()
    at = re.search(r"at ([\d.]+) s", before)
    for _ in range(12):
        page.mouse.wheel(0, -100)
    zoomed = seen(page)
    assert zoomed != whole
    assert zoomed.startswith("From ")
    after = re.search(r"at ([\d.]+) s", page.locator(f"{HOST} .tooltip").inner_text())
    assert at is not None
    assert after is not None
    assert abs(float(at[1]) - float(after[1])) < 0.05
    page.mouse.down()
    page.mouse.move(x - 200, y, steps=5)
    page.mouse.up()
    panned = seen(page)
    assert panned not in {zoomed, whole}
    shoot(page, "zoomed")
    page.mouse.dblclick(x, y)
    assert seen(page) == whole


def test_w_a_s_d_work_by_their_place_on_the_keyboard(open_report):
    page = open_report("mlp_train.c0")
    whole = seen(page)
    overlay(page).focus()
    page.keyboard.press("w")
    zoomed = seen(page)
    page.keyboard.press("d")
    right = seen(page)
    page.keyboard.press("a")
    assert seen(page) == zoomed
    page.keyboard.press("s")
    assert seen(page) == whole
    assert len({whole, zoomed, right}) == 3
    page.keyboard.press("w")
    page.keyboard.press("0")
    assert seen(page) == whole


def test_a_page_that_scrolls_past_is_not_caught(open_report):
    page = open_report("mlp_train.c0", height=500)
    page.evaluate("document.body.style.paddingTop = '300px'; document.body.style.paddingBottom = '900px'")
    whole = seen(page)
    page.mouse.move(400, 450)
    # A scroll that begins above the picture brings the picture under the mouse, and goes on.
    for _ in range(8):
        page.mouse.wheel(0, 60)
        page.wait_for_timeout(30)
    assert page.evaluate("scrollY") > 300
    assert seen(page) == whole


def test_hovering_tells_bytes_time_line_and_stack(open_report, shoot):
    page = open_report("mlp_train.c0")
    overlay(page).focus()
    page.keyboard.press("p")
    x, y = point(page, 0.5, 0.86)
    page.mouse.move(x, y)
    tooltip = page.locator(f"{HOST} .tooltip")
    expect(tooltip).to_be_visible()
    expect(tooltip).to_contain_text(re.compile(r"at [\d.]+ m?s: [\d.]+ [KMG]iB allocated, reserved"))
    expect(tooltip).to_contain_text(re.compile(r"workloads\.py:\d+"))
    expect(tooltip).to_contain_text(re.compile(r"this allocation: [\d.]+ [KMG]?i?B"))
    shoot(page, "hover")


def test_a_click_shows_who_is_alive_there_adding_up(open_report, shoot):
    page = open_report("lm_growing.c1")
    for share in (0.3, 0.55, 0.8):
        page.mouse.click(*point(page, share, 0.9))
        expect(page.get_by_role("tab", name=re.compile("^Here"))).to_have_attribute("aria-selected", "true")
        rows, total = table(page)
        assert sum(rows) == total
        assert total > 0
    shoot(page, "here")
    page.get_by_role("button", name="tree").click()
    expect(page.locator(f"{HOST} .icicle button").first).to_be_visible()
    tree = page.locator(f"{HOST} [role=treegrid]")

    def exact(rows):
        return [int(re.sub(r"\D", "", row.locator("td").first.get_attribute("title"))) for row in rows.all()]

    assert sum(exact(tree.locator("tbody tr[aria-level='1']"))) == exact(tree.locator("tfoot tr"))[0] == total
    tree.locator("tbody tr").first.focus()
    page.keyboard.press("ArrowRight")
    opened = exact(tree.locator("tbody tr[aria-level='2']"))
    assert opened
    assert sum(opened) == exact(tree.locator("tbody tr"))[0]
    shoot(page, "tree")


def test_a_drag_shows_what_happened_in_the_stretch(open_report, shoot):
    page = open_report("lm_growing.c1")
    page.mouse.move(*point(page, 0.4, 0.5))
    page.mouse.down()
    page.mouse.move(*point(page, 0.6, 0.5), steps=5)
    page.mouse.up()
    expect(page.get_by_role("tab", name=re.compile("^This stretch"))).to_have_attribute("aria-selected", "true")
    allocated, total = table(page, 0)
    kept, kept_total = table(page, 2)
    passing, passing_total = table(page, 3)
    assert sum(allocated) == total == kept_total + passing_total
    assert (sum(kept), sum(passing)) == (kept_total, passing_total)
    shoot(page, "range")
    whole = seen(page)
    overlay(page).focus()
    page.keyboard.press("f")
    assert seen(page) != whole
    page.keyboard.press("Escape")
    expect(page.get_by_role("tab", name=re.compile("^This stretch"))).to_have_count(0)


def test_one_allocation_its_neighbours_and_its_life(open_report, shoot):
    page = open_report("mlp_train.c0")
    page.mouse.click(*point(page, 0.9, 0.88))
    card = page.locator(f"{HOST} .card")
    expect(card).to_contain_text(re.compile("alive from"))
    first = card.inner_text()
    overlay(page).focus()
    page.keyboard.press(".")
    assert card.inner_text() != first
    page.keyboard.press(",")
    assert card.inner_text() == first
    whole = seen(page)
    page.keyboard.press("f")
    page.keyboard.press(".")
    shoot(page, "one")
    assert card.count() == 1
    page.keyboard.press("0")
    assert seen(page) == whole


def test_search_finds_walks_and_shows_matches_only(open_report):
    page = open_report("lm_growing.c1")
    page.keyboard.press("Tab")
    overlay(page).focus()
    whole = seen(page)
    page.keyboard.press("/")
    page.keyboard.type("forward")
    found = page.locator(f"{HOST} .search output")
    expect(found).to_contain_text(re.compile(r"^[\d,]+, .* at most$"))
    page.keyboard.press("Enter")
    expect(found).to_contain_text(re.compile(r"^1 of "))
    page.keyboard.press("Enter")
    expect(found).to_contain_text(re.compile(r"^2 of "))
    page.keyboard.press("Shift+Enter")
    expect(found).to_contain_text(re.compile(r"^1 of "))
    page.get_by_role("button", name="only").click()
    overlay(page).focus()
    page.keyboard.press("0")
    only = seen(page)
    assert only != whole
    page.get_by_role("button", name="only").click()
    assert seen(page) == whole


def test_rows_and_legend_stress_their_bands(open_report, shoot):
    page = open_report("lm_growing.c1")
    canvas = "document.querySelector('#gpumem-report').shadowRoot.querySelector('.picture canvas').toDataURL()"
    two_frames(page)
    plain = page.evaluate(canvas)
    page.locator(f"{HOST} tbody tr").first.hover()
    two_frames(page)
    assert page.evaluate(canvas) != plain
    shoot(page, "row")
    page.mouse.move(2, 2)
    two_frames(page)
    assert page.evaluate(canvas) == plain


def test_hidden_bands_leave_and_come_back(open_report):
    page = open_report("lm_growing.c1")
    whole = seen(page)
    band = page.locator(f"{HOST} .legend button").nth(2)
    band.focus()
    page.keyboard.press("Enter")
    expect(band).to_have_attribute("aria-pressed", "false")
    assert seen(page) != whole
    page.locator(f"{HOST} .legend button").nth(2).focus()
    page.keyboard.press("Enter")
    assert seen(page) == whole


@pytest.mark.parametrize("by", ["size", "lifetime", "stack"])
def test_colouring_never_changes_the_total(open_report, shoot, by):
    page = open_report("lm_growing.c1")
    whole = seen(page)
    page.get_by_label("Colour by").select_option(by)
    assert seen(page) == whole
    shoot(page, f"colour-{by}")


def test_axes_and_log_scale(open_report, shoot):
    page = open_report("lm_growing.c1")
    most = seen(page).rsplit(":", 1)[1]
    for value in ("event", "time"):
        page.get_by_label("Axis").select_option(value)
        assert seen(page).rsplit(":", 1)[1] == most
        shoot(page, f"axis-{value}")
    overlay(page).focus()
    page.keyboard.press("l")
    expect(page.get_by_role("button", name="log")).to_have_attribute("aria-pressed", "true")
    shoot(page, "log")


def test_saved_pictures_are_what_they_say(open_report, tmp_path):
    page = open_report("mlp_train.c0")
    for item, suffix, start in (("PNG", "png", b"\x89PNG"), ("SVG", "svg", b"<svg")):
        page.get_by_role("button", name="save").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=f"Picture as {item}").click()
        path = tmp_path / f"picture.{suffix}"
        download.value.save_as(path)
        assert path.read_bytes().startswith(start)
        assert download.value.suggested_filename.endswith(f".cuda0.{suffix}")


def test_device_tabs(open_report, shoot):
    page = open_report("multi_gpu")
    peaks = []
    for name in ("cuda:0", "cuda:1"):
        page.get_by_role("tab", name=re.compile(name)).click()
        peaks.append(page.locator(f"{HOST} .numbers .key dd").inner_text())
        rows, total = table(page)
        assert sum(rows) == total
    assert len(set(peaks)) == 2
    shoot(page, "devices")


@pytest.mark.parametrize("width", [400, 760, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_narrow_and_wide_light_and_dark(open_document, shoot, width, dark):
    page = open_document("complete", width=width, height=1000, dark=dark)
    two_frames(page)
    shoot(page, f"{width}-{'dark' if dark else 'light'}")
    # Nothing sticks out sideways, and no text is under 11 px.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SMALL) == []
    theme = page.evaluate("document.querySelector('#gpumem-report').shadowRoot.querySelector('.gm').dataset.theme")
    assert theme == ("dark" if dark else "light")


def test_every_tab_is_read_without_the_picture_and_without_a_glass(open_report, shoot):
    page = open_report("lm_growing.c1", height=1100)
    x, y = point(page, 0.5, 0.8)
    page.mouse.click(x, y)
    tabs = page.locator(f"{HOST} .tabs [role=tab]")
    names = tabs.all_inner_texts()
    assert len(names) >= 5
    for number in range(len(names)):
        tabs.nth(number).click()
        two_frames(page)
        assert page.evaluate(SMALL) == []
        assert page.evaluate(UNREAD) == []
        panel = page.locator(f"{HOST} [role=tabpanel]")
        assert panel.get_attribute("aria-label")
        shoot(page, f"tab-{number}")
    page.keyboard.press("Escape")
    page.locator(f"{HOST} .overlay").focus()
    page.keyboard.press("?")
    assert page.evaluate(SMALL) == []


@pytest.mark.parametrize("width", [400, 700, 1200])
def test_the_menu_stays_in_the_view(open_report, width):
    page = open_report("mlp_train.c0", width=width)
    page.locator(f"{HOST} button", has_text="save").click()
    items = page.locator(f"{HOST} [role=menuitem]")
    assert items.count() >= 4
    for item in items.all():
        box = item.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_nothing_moves_where_the_reader_wants_no_motion(open_report):
    moving = """() => [...document.querySelector('#gpumem-report').shadowRoot.querySelectorAll('*')].filter(e => {
      const style = getComputedStyle(e);
      const times = (style.transitionDuration + ',' + style.animationDuration).split(',');
      return times.some(text => parseFloat(text) > 0) || style.scrollBehavior === 'smooth';
    }).length"""
    page = open_report("mlp_train.c0", reduced_motion="no-preference")
    assert page.evaluate(moving) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == 0
    assert page.evaluate("document.getAnimations().length") == 0


def test_a_chosen_theme_is_kept(open_report):
    page = open_report("mlp_train.c0")
    theme = "document.querySelector('#gpumem-report').shadowRoot.querySelector('.gm').dataset.theme"
    assert page.evaluate(theme) == "light"
    page.get_by_role("button", name="theme: auto").click()
    page.get_by_role("button", name="theme: light").click()
    assert page.evaluate(theme) == "dark"
    page.reload()
    page.wait_for_selector(f"{HOST} .overlay[aria-description]")
    assert page.evaluate(theme) == "dark"
    assert page.evaluate("document.documentElement.dataset.gpumemTheme") == "dark"


@pytest.mark.parametrize("name", ["complete", "aggregated", "counters", "gap", "empty"])
def test_documents_of_every_kind(open_document, shoot, name):
    page = open_document(name, height=1000)
    two_frames(page)
    shoot(page, f"document-{name}")
    expect(page.locator(f"{HOST} .sentence")).not_to_be_empty()
    expect(page.locator(f"{HOST} [role=alert]")).to_have_count(0)


def test_text_of_any_script_reads_in_its_own_direction(open_document):
    page = open_document("complete")
    for text in ("x  # модель", "損失の逆伝播(loss)"):
        expect(page.locator(f"{HOST} tbody bdi", has_text=text.split("  ")[-1]).first).to_be_visible()
    directions = page.locator(f"{HOST} td bdi").evaluate_all("all => all.map(one => [one.dir, one.textContent])")
    # Code runs from left to right, as in an editor; words about it by their own letters.
    assert {text for how, text in directions if how == "ltr"} == {
        "model = build()", "y = model(x)  # модель", "loss = criterion(y, هدف)", "損失の逆伝播(loss)",
    }  # fmt: skip
    words = {text for how, text in directions if how == "auto"}
    assert {"before the cell", "line 2", "rounding and unsplit remainders"} <= words


def test_printing_shows_the_whole_table_without_controls(open_report):
    page = open_report("lm_growing.c1")
    page.emulate_media(media="print")
    expect(page.locator(f"{HOST} .toolbar")).to_be_hidden()
    assert page.locator(f"{HOST} .panel").evaluate("e => e.scrollHeight <= e.clientHeight + 1")


def test_paper_shows_the_picture_with_what_is_selected_in_it(open_report):
    page = open_report("lm_growing.c1")
    host = "document.querySelector('#gpumem-report').shadowRoot"

    def on_paper() -> str:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        printed: str = page.evaluate(f"{host}.querySelector('.picture canvas').toDataURL()")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        return printed

    plain = on_paper()
    overlay(page).focus()
    page.keyboard.press("w")
    page.keyboard.press("r")
    page.keyboard.press("0")
    two_frames(page)
    # The range lies on the picture itself: on paper, Chromium paints a canvas above it white.
    assert on_paper() != plain
    page.emulate_media(media="print")
    shown = page.evaluate(f"[...{host}.querySelectorAll('canvas')].map(one => getComputedStyle(one).opacity)")
    assert sorted(shown) == ["0", "0", "1", "1"]
    page.emulate_media(media="screen")
    expect(overlay(page)).to_be_focused()
    page.keyboard.press("Escape")
    two_frames(page)
    assert on_paper() == plain


def test_everything_is_reached_by_the_tab_key(open_report):
    page = open_report("mlp_train.c0")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(() => { const e = document.querySelector('#gpumem-report').shadowRoot.activeElement;"
                " return e && (e.getAttribute('role') || e.tagName); })()"
            )
        )
    assert {"application", "tab", "TR", "SELECT", "INPUT", "BUTTON"} <= reached
