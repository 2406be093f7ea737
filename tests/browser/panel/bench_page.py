"""What the panel costs the page. Run by hand: ``pytest tests/browser/panel/bench_page.py -s``; it asserts nothing.

Main thread: processor time of the page's tasks at one reading a second, as a share of a core, with the panel shown and
hidden in turn; eight unfolded devices whose every number and process changes with each reading. Heap and nodes: before
and after 3,600 readings that are sent through the panel's own socket as fast as the page takes them, after a garbage
collection each.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30
DURATIONS = ("Task", "Script", "RecalcStyle", "Layout")
SECONDS = 15
ROUNDS = 3
TICKS = 3600
KEEP_SOCKETS = """
  window.sockets = [];
  window.WebSocket = class extends WebSocket { constructor(...a) { super(...a); window.sockets.push(this); } };
"""
# A delta each, one hour of them in all, with a pause for the page every 20.
REPLAY = """async ticks => {
  const feed = window.sockets.find(socket => socket.url.includes('gpumem-magic/feed'));
  const take = feed.onmessage;
  feed.onmessage = null;
  const start = Date.now() * 1000;
  for (let tick = 1; tick <= ticks; tick += 1) {
    const devices = Array.from({length: 8}, (_, index) => ({
      index, memoryUsed: (20 + 10 * Math.sin(tick / 50 + index)) * 2 ** 30, memoryReserved: 2 ** 29, memoryFree: null,
      utilization: tick % 100, temperatureC: 50 + tick % 20, powerW: 300 + tick % 100,
    }));
    take({data: JSON.stringify({type: 'delta', timeUs: start + tick * 1e6, devices, host: {memoryUsed: tick * 1e6}})});
    if (tick % 20 === 0) { await new Promise(resolve => requestAnimationFrame(resolve)); }
  }
  feed.onmessage = take;
}"""


def metrics(session: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def share(session: Any, page: Any) -> str:
    before, began = metrics(session), time.monotonic()
    page.wait_for_timeout(SECONDS * 1000)
    after, seconds = metrics(session), time.monotonic() - began
    total, *parts = ((after[f"{name}Duration"] - before[f"{name}Duration"]) / seconds for name in DURATIONS)
    return f"{total:.2%} ({', '.join(f'{part:.2%}' for part in parts)})"


def settled(session: Any) -> tuple[float, float]:
    session.send("HeapProfiler.collectGarbage")
    now = metrics(session)
    return now["JSHeapUsedSize"] / 2**20, now["Nodes"]


def test_cost_of_the_page(panel_server: Callable[..., Any], page: Any) -> None:
    server = panel_server(
        "lab", notebooks={"train.ipynb": ["1"]}, settings={"gpumem-magic:panel": {"showStatusItem": False}}
    )
    server.show(*(server.device() for _ in range(8)))
    kernel = server.start_kernel("train.ipynb")
    ends = threading.Event()

    def train() -> None:
        moment = 0
        while not ends.wait(0.5):
            moment += 1
            held = (20 + moment % 10) * GIB
            one = server.device(
                used=held + GIB,
                utilization=moment % 100,
                power_mw=300_000 + moment % 90 * 1000,
                processes=[{"pid": kernel["pid"], "used": held}, {"pid": 1, "used": GIB // 2}],
            )
            server.show(*[one] * 8)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    page.add_init_script(KEEP_SOCKETS)
    server.open(page)
    page.wait_for_function("() => document.querySelectorAll('.gpumem-device [aria-expanded=true]').length === 8")
    session = page.context.new_cdp_session(page)
    # The thread's own time: on a machine that others use, a task's wall time is mostly theirs.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    shown, hidden = [], []
    for _ in range(ROUNDS):
        page.evaluate("() => window.jupyterapp.shell.collapseRight()")
        hidden.append(share(session, page))
        page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }")
        page.wait_for_timeout(3000)
        shown.append(share(session, page))
    ends.set()
    thread.join()
    heap, nodes = settled(session)
    page.evaluate(REPLAY, TICKS)
    full_heap, full_nodes = settled(session)
    page.evaluate(REPLAY, TICKS)
    last_heap, last_nodes = settled(session)
    print()
    print("main thread (script, style, layout), panel shown: ", ", ".join(shown))
    print("main thread (script, style, layout), panel hidden:", ", ".join(hidden))
    print(f"heap: {heap:.1f} MiB; after {TICKS} readings {full_heap:.1f}; after as many again {last_heap:.1f}")
    print(f"DOM nodes: {nodes:.0f}, {full_nodes:.0f}, {last_nodes:.0f}")
