"""The panel in a real browser, over a real server, real kernels and the real NVML binding."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30
CARD = "#gpumem-magic-panel .gpumem-device"
REACH = "words => document.querySelector('.gpumem-range')?.innerText === words"
# The browser's own lines about requests that a test makes fail.
FAILED_REQUEST = r"Failed to load resource|WebSocket connection to"


@pytest.fixture(scope="module")
def lab(panel_server: Callable[..., Any]) -> Any:
    server = panel_server("lab", notebooks={"train.ipynb": ["1"], "eval/train.ipynb": ["2"]})
    # The number of devices is looked up again only now and then.
    server.show(*(server.device() for _ in range(8)))
    server.kernels = [server.start_kernel(path) for path in ("train.ipynb", "eval/train.ipynb")]
    return server


@pytest.fixture
def eight(lab: Any) -> Any:
    """Eight devices: two notebooks on the first, a stranger on the second, nobody on the others."""
    first, second = (kernel["pid"] for kernel in lab.kernels)
    processes = [{"pid": first, "used": 60 * GIB}, {"pid": second, "used": 20 * GIB}]
    lab.devices = [
        lab.device(used=85 * GIB, utilization=93, throttle=4, processes=processes),
        lab.device(used=11 * GIB, processes=[{"pid": 1, "used": 11 * GIB}]),
        *(lab.device() for _ in range(6)),
    ]
    lab.show(*lab.devices)
    return lab


def rows(page: Any, card: int) -> list[tuple[str, str]]:
    """Name and size of each visible row of a card's list."""
    found = page.locator(CARD).nth(card).locator(".gpumem-row")
    read = "e => ['.gpumem-name', '.gpumem-bytes'].map(part => e.querySelector(part).innerText.split(':')[0].trim())"
    return [tuple(row.evaluate(read)) for row in found.all()]


def test_every_device_says_which_notebook_holds_its_memory(eight: Any, page: Any) -> None:
    eight.open(page, "train.ipynb")
    page.wait_for_selector(f"{CARD} .gpumem-row >> text=eval/train.ipynb")
    assert page.locator(CARD).count() == 8
    assert rows(page, 0) == [
        ("train.ipynb", "60.0 GiB"),
        ("eval/train.ipynb", "20.0 GiB"),
        ("Not attributed", "5.00 GiB"),
        ("Driver", "1.00 GiB"),
        ("Free", "14.0 GiB"),
    ]
    first = page.locator(CARD).first
    assert "86.0 of 100 GiB" in first.inner_text()
    assert "93 %" in first.inner_text()
    assert "77 of 700 W" in first.inner_text()
    widths = first.locator(".gpumem-bar").first.evaluate("e => [...e.children].map(c => parseFloat(c.style.width))")
    assert widths == [60, 20, 5, 1, 14]
    colors = first.evaluate(
        "e => ['.gpumem-part', '.gpumem-swatch'].map(s => [...e.querySelectorAll(s)].slice(0, 2)"
        ".map(n => getComputedStyle(n).backgroundColor))"
    )
    assert colors[0] == colors[1]
    assert len(set(colors[0])) == 2


def test_this_notebook_stands_first(eight: Any, page: Any) -> None:
    eight.open(page, "train.ipynb")
    eight.jupyter.wait_for_kernel(page)
    section = page.locator(".gpumem-notebook")
    section.locator("text=60.0 GiB").wait_for()
    assert re.search(r"On GPU 0\s+60\.0 GiB", section.inner_text())
    assert re.search(r"On the host\s+\d+(\.\d+)? MiB", section.inner_text())


def test_a_click_opens_the_notebook(eight: Any, page: Any) -> None:
    eight.open(page, "train.ipynb")
    page.locator(f"{CARD} .gpumem-link >> text=eval/train.ipynb").first.click()
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget?.context?.path === 'eval/train.ipynb'")


def test_a_lost_device_says_so_and_the_others_go_on(eight: Any, page: Any) -> None:
    eight.open(page)
    page.wait_for_selector(CARD)
    eight.show(eight.devices[0] | {"utilization": 12}, {"error": 15}, *eight.devices[2:])
    page.wait_for_selector(f"{CARD}.gpumem-silent")
    lost = page.locator(f"{CARD}.gpumem-silent")
    assert lost.count() == 1
    assert "fallen off the bus" in lost.inner_text()
    page.locator(CARD).first.locator("text=12 %").wait_for()
    eight.show(*eight.devices)
    page.wait_for_selector(f"{CARD}.gpumem-silent", state="detached")


def test_a_missing_value_gives_its_reason_by_keyboard(lab: Any, page: Any) -> None:
    lab.show(*(lab.device() for _ in range(7)), lab.device(errors={"nvmlDeviceGetPowerUsage": 3}))
    lab.open(page)
    card = page.locator(CARD).last
    card.locator(".gpumem-toggle").click()
    value = card.locator(".gpumem-missing").first
    value.wait_for()
    reason = value.get_attribute("data-tip")
    assert reason
    assert value.text_content() == f"n/a: {reason}"
    value.focus()
    page.wait_for_selector(f".gpumem-tip:has-text({reason!r})")


def test_folding_by_keyboard(eight: Any, page: Any) -> None:
    eight.open(page)
    toggle = page.locator(f"{CARD} .gpumem-toggle").first
    page.wait_for_selector(f"{CARD} .gpumem-toggle[aria-expanded=true]")
    toggle.focus()
    page.keyboard.press("Enter")
    assert toggle.get_attribute("aria-expanded") == "false"
    assert page.locator(CARD).first.locator(".gpumem-body").is_hidden()


def test_the_graphs_reach_back_as_far_as_asked_for_also_after_a_reload(eight: Any, page: Any) -> None:
    eight.open(page)
    reach = page.locator(".gpumem-range").first
    page.wait_for_function(REACH, arg="last 10 min")
    reach.press("Enter")
    # The menu opens on its first item: a minute.
    page.wait_for_function("() => document.activeElement.matches('.lm-Menu')")
    assert page.locator(".lm-Menu .lm-mod-active").inner_text().strip() == "Last 1 min"
    with page.expect_response(lambda answer: answer.request.method == "PUT" and "settings/gpumem" in answer.url):
        # JupyterLab may take the focus for its launcher late while it starts.
        page.locator(".lm-Menu").press("Enter")
        page.wait_for_function(REACH, arg="last 1 min")
    # What the server keeps of the time before this page.
    page.wait_for_timeout(3000)
    eight.open(page)
    page.wait_for_function(REACH, arg="last 1 min")
    drawn = page.locator(f"{CARD} .gpumem-line").first
    page.wait_for_function("e => (e.getAttribute('d') ?? '').split('L').length >= 4", arg=drawn.element_handle())
    with page.expect_download() as saved:
        page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:export-history'); }")
    lines = Path(saved.value.path()).read_text("utf-8").splitlines()
    assert lines[0] == "time_utc,index,uuid,name,used_bytes,total_bytes,utilization_percent"
    first = [line for line in lines if ",0,GPU-" in line]
    assert len(first) >= 3
    assert first[-1].split(",")[4:] == [str(85 * GIB), str(100 * GIB), "93"]
    assert any(",,host," in line for line in lines)


def test_shutting_down_asks_first(lab: Any, page: Any) -> None:
    kernel = lab.start_kernel("eval/other.ipynb")
    busy = lab.device(used=9 * GIB, processes=[{"pid": kernel["pid"], "used": 8 * GIB}])
    lab.show(busy, *(lab.device() for _ in range(7)))
    lab.open(page)
    page.get_by_role("button", name="Actions for other.ipynb").first.click()
    page.get_by_role("menuitem", name="Shut Down Kernel").click()
    dialog = page.locator(".jp-Dialog")
    assert "8.00 GiB of device memory" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    running = {one["id"] for one in lab.jupyter.request("api/kernels")}
    assert kernel["id"] in running
    page.get_by_role("button", name="Actions for other.ipynb").first.click()
    page.get_by_role("menuitem", name="Shut Down Kernel").click()
    dialog.get_by_role("button", name="Shut Down").click()
    page.wait_for_selector(".gpumem-row >> text=other.ipynb", state="detached")
    assert kernel["id"] not in {one["id"] for one in lab.jupyter.request("api/kernels")}


def test_interrupting_asks_first(lab: Any, page: Any) -> None:
    held = [{"pid": lab.kernels[1]["pid"], "used": GIB}]
    lab.show(lab.device(processes=held), *(lab.device() for _ in range(7)))
    lab.open(page, "eval/train.ipynb")
    lab.jupyter.wait_for_kernel(page)
    running = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    # The kernel's status says nothing here: a subshell's answers call it idle beside a running cell.
    code = "print('begun', flush=True); __import__('time').sleep(600)"
    page.evaluate(
        f"""code => {{
          Object.assign(window, {{begun: false, ended: null}});
          const run = {running}.requestExecute({{code}});
          run.onIOPub = message => {{ window.begun ||= message.header.msg_type === 'stream'; }};
          run.done.then(reply => {{ window.ended = reply.content.ename; }});
        }}""",
        code,
    )
    page.wait_for_function("() => window.begun")
    for answer in ("Cancel", "Interrupt"):
        page.get_by_role("button", name="Actions for eval/train.ipynb").first.click()
        page.get_by_role("menuitem", name="Interrupt Kernel").click()
        page.locator(".jp-Dialog").get_by_role("button", name=answer, exact=True).click()
        page.wait_for_selector(".jp-Dialog", state="detached")
        if answer == "Cancel":
            page.wait_for_timeout(500)
            assert page.evaluate("() => window.ended") is None
    page.wait_for_function("() => window.ended === 'KeyboardInterrupt'")


def test_a_process_of_somebody_else_offers_its_pid_and_nothing_more(eight: Any, page: Any) -> None:
    eight.open(page)
    card = page.locator(CARD).nth(1)
    card.locator(".gpumem-toggle[aria-expanded=false]").click()
    card.locator(".gpumem-more").first.click()
    assert [item.inner_text().strip() for item in page.locator(".lm-Menu [role=menuitem]").all()] == ["Copy PID 1"]


def test_a_full_device_warns_once(lab: Any, page: Any) -> None:
    lab.show(lab.device(used=97 * GIB), *(lab.device() for _ in range(7)))
    lab.open(page)
    toast = page.locator(".Toastify__toast")
    toast.first.wait_for()
    assert "GPU 0 is 98 % full: 98.0 of 100 GiB." in toast.first.inner_text()
    page.wait_for_timeout(2500)
    assert toast.count() == 1


def test_the_status_bar_shows_the_fullest_device(eight: Any, page: Any) -> None:
    eight.jupyter.open(page)
    item = page.locator(".gpumem-status-button")
    page.wait_for_selector(".gpumem-status-button:has-text('GPU 0: 86.0 of 100 GiB')")
    item.click()
    page.wait_for_selector(CARD)


def test_requests_take_over_where_sockets_are_blocked(eight: Any, page: Any, watch: Any) -> None:
    watch.allowed.append(FAILED_REQUEST)
    page.route_web_socket("**/gpumem-magic/feed*", lambda socket: socket.close())
    eight.open(page)
    page.locator(CARD).first.locator("text=93 %").wait_for()
    eight.show(eight.devices[0] | {"utilization": 21}, *eight.devices[1:])
    page.locator(CARD).first.locator("text=21 %").wait_for()


def test_the_exported_page_stands_alone(eight: Any, page: Any, new_page: Callable[..., Any], tmp_path: Any) -> None:
    eight.open(page, "train.ipynb")
    page.wait_for_selector(f"{CARD} .gpumem-row >> text=eval/train.ipynb")
    with page.expect_download() as download:
        page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:export-report'); }")
    file = tmp_path / "report.html"
    download.value.save_as(file)
    text = file.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    other = new_page()
    other.goto(file.as_uri())
    assert other.locator(".gpumem-device .gpumem-body:visible").count() == 8
    assert "60.0 GiB" in other.locator(".gpumem-device").first.inner_text()


NUMBERS = """
from comm import create_comm
numbers = {"key": "cuda:0", "allocated": 5 << 30, "reserved": 6 << 30, "peak": 7 << 30, "outside": 1 << 29}
cells = [{"cellId": "cell-0", "title": "In [1]", "peak": 7 << 30, "stayed": 1 << 30}]
# Kept: a comm that dies says goodbye to front ends, and those that never opened it log an error.
feed = create_comm(target_name="gpumem_magic", comm_id="gpumem_magic", primary=False)
feed.send({"protocol": 1, "timeUs": 1, "devices": [numbers], "cells": cells})
"""


def test_a_kernel_pushes_its_own_numbers_and_cells(panel_server: Callable[..., Any], page: Any) -> None:
    server = panel_server("lab", notebooks={"a.ipynb": ["1", NUMBERS]})
    server.show(server.device())
    server.open(page, "a.ipynb")
    server.jupyter.wait_for_kernel(page)
    server.jupyter.run_all(page)
    section = page.locator(".gpumem-notebook")
    section.locator("text=peak 7.00 GiB").wait_for()
    assert re.search(r"cuda:0\s+allocated\s+5\.00 GiB", section.inner_text())
    assert re.search(r"outside torch\s+512 MiB", section.inner_text())
    section.get_by_role("button", name="In [1]").click()
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCell.model.id") == "cell-0"


def test_nothing_is_read_while_nobody_looks(panel_server: Callable[..., Any], page: Any) -> None:
    server = panel_server("lab", settings={"gpumem-magic:panel": {"showStatusItem": False}})
    server.show(server.device())
    server.jupyter.open(page)
    time.sleep(2)
    assert server.fake.calls() == {}
    page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }")
    page.wait_for_selector(CARD)
    page.evaluate("() => window.jupyterapp.shell.collapseRight()")
    server.fake.wait_until_quiet(2.5)


def test_without_a_driver_the_host_is_shown(panel_server: Callable[..., Any], page: Any) -> None:
    server = panel_server("lab", notebooks={"train.ipynb": ["1"]})
    server.show(init=12)
    server.start_kernel("train.ipynb")
    server.open(page)
    banner = page.locator(".gpumem-banner[data-level=info]")
    banner.wait_for()
    assert len(banner.inner_text().strip()) > 20
    assert page.locator(CARD).count() == 0
    page.wait_for_selector(".gpumem-card .gpumem-link >> text=train.ipynb")


def test_notebook_7_has_the_panel_too(panel_server: Callable[..., Any], page: Any) -> None:
    server = panel_server("notebook", notebooks={"train.ipynb": ["1"]})
    kernel = server.start_kernel("train.ipynb")
    server.show(server.device(used=31 * GIB, processes=[{"pid": kernel["pid"], "used": 30 * GIB}]))
    server.open(page, "train.ipynb")
    page.wait_for_selector(f"{CARD} .gpumem-link >> text=train.ipynb")
    assert rows(page, 0)[0] == ("train.ipynb", "30.0 GiB")


def test_a_server_without_the_package_is_told_what_to_install(
    start_jupyter: Callable[..., Any], page: Any, watch: Any
) -> None:
    watch.allowed.append(FAILED_REQUEST)
    server = start_jupyter("lab", args=["--ServerApp.jpserver_extensions={'gpumem_magic': False}"])
    server.open(page)
    page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }")
    banner = page.locator(".gpumem-banner[data-level=error]")
    banner.wait_for()
    assert "pip install gpumem-magic==" in banner.inner_text()
