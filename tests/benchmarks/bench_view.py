"""What the view costs in a browser: size, first paint, a frame of a pan or zoom step, heap.

    python tests/benchmarks/bench_view.py                      # generated recordings of 600 k and 2 M events
    python tests/benchmarks/bench_view.py big.pickle.xz        # and a real one
    python tests/benchmarks/bench_view.py big.pickle.xz --torch-viewer MemoryViz.js  # and torch's own viewer on it

Needs Playwright and a Chromium (``--chromium``), and the built view (``jlpm build:prod``). Headless, software raster.
Torch's viewer is a file of its sources (``torch/utils/viz/MemoryViz.js``), taken from an installed torch where that has
one; it is bundled with the d3 of ``labextension/node_modules``, as it would load its own from a network.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import lzma
import re
import statistics
import subprocess
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "gpumem_magic" / "static" / "report.js"
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-precise-memory-info",
    "--js-flags=--expose-gc",
]
LINES, STACKS, DEPTH = 40, 400, 25
# Some day of 2026: a recording that begins at 0 has no times, and is drawn by order.
_BEGAN_US = 1_780_000_000_000_000

# Stands in the page before everything else. `paint`: ms from the script's start to the frame after the picture was
# drawn. `frames`: what each of the view's own frames took.
PROBE = """
window.bench = {start: 0, paint: null, frames: []};
addEventListener('gpumem-frame', event => {
  window.bench.frames.push(event.detail);
  if (window.bench.paint === null) requestAnimationFrame(() => requestAnimationFrame(() => {
    window.bench.paint ??= performance.now() - window.bench.start;
  }));
}, true);
"""


def training(changes: int, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A training loop's shape: parameters that stay, activations that pile up and go, small buffers in between."""
    rng = np.random.default_rng(seed)
    alive: list[int] = []
    start: list[int] = []
    end: list[int] = []
    size: list[int] = []
    line: list[int] = []

    def make(change: int, bytes_: int, owner: int) -> None:
        alive.append(len(start))
        start.append(change)
        end.append(0)
        size.append(bytes_)
        line.append(owner)

    change = 0
    sizes = 512 * (1 + rng.integers(0, 200_000, 4096))
    owners = rng.integers(2, LINES, 4096)
    for _ in range(200):
        make(change, 4 << 20, 0)
        change += 1
    floor = len(alive)
    going_up = True
    while change < changes:
        k = change % 4096
        if going_up or len(alive) == floor:
            make(change, int(sizes[k]), int(owners[k]))
            going_up = len(alive) < floor + 300 or len(alive) == floor
        else:
            # Backward frees from the top, with a passing buffer now and then.
            which = alive.pop() if k % 5 else alive.pop(floor + k % (len(alive) - floor))
            end[which] = change - start[which]
            going_up = len(alive) == floor
        change += 1
    count = len(start)
    distinct, index = np.unique(np.array(size, np.float64), return_inverse=True)
    gaps = rng.integers(1, 30, changes).astype(np.uint32)
    arrays: dict[str, np.ndarray] = {
        "d0.t": gaps,
        "d0.start": np.diff(np.array(start), prepend=0).astype(np.uint32),
        "d0.span": np.array(end, np.uint32),
        "d0.sizes": distinct,
        "d0.bytes": index.astype(np.uint32),
        "d0.requested": index.astype(np.uint32),
        "d0.group": np.array(line, np.uint16),
        "d0.stack": (1 + (np.arange(count) * 7) % STACKS).astype(np.uint32),
        "d0.stream": np.zeros(count, np.uint8),
    }
    delta = np.zeros(changes)
    np.add.at(delta, start, size)
    ends = np.flatnonzero(arrays["d0.span"])
    np.add.at(delta, np.array(start)[ends] + arrays["d0.span"][ends], -np.array(size)[ends])
    total = np.cumsum(delta)
    lane = np.linspace(0, changes - 1, 2000).astype(int)
    times = np.cumsum(gaps.astype(np.float64))
    arrays["d0.lane0.t"] = times[lane]
    arrays["d0.lane0.v"] = np.maximum.accumulate(total)[lane] * 1.2
    return header(changes, count, total, times), arrays


def header(changes: int, lifetimes: int, total: np.ndarray, times: np.ndarray) -> dict[str, Any]:
    groups = [
        {
            "kind": "line", "label": f"line {k + 1}", "source": f"x{k} = layer{k}(x)", "cell": "In [1]", "file": "3.py",
            "line": k + 1, "function": None, "reason": None, "color": k,
        }
        for k in range(LINES)
    ]  # fmt: skip
    headline = dict.fromkeys(
        ["stayed", "freed", "reservedBefore", "reservedPeak", "reservedAfter", "deviceUsed", "processUsed", "headroom"]
    )
    headline |= {
        "allocatedBefore": 0,
        "allocatedPeak": int(total.max()),
        "peakUs": _BEGAN_US + int(times[total.argmax()]),
        "allocatedAfter": int(total[-1]),
    }
    device = {
        "key": "cuda:0", "name": "generated", "kind": "cuda", "total": 80 << 30, "limit": 80 << 30, "events": changes,
        "startUs": _BEGAN_US, "endUs": _BEGAN_US + int(times[-1]), "headline": headline, "missing": {},
        "groups": groups, "peak": [], "end": [], "markers": [], "regions": [],
        "lanes": [{"name": "reserved", "shape": "step"}],
        "timeline": {
            "changes": changes, "lifetimes": lifetimes, "preexisting": 0, "streams": [0], "rest": None,
        },
    }  # fmt: skip
    strings = [f"/usr/lib/python3.12/site-packages/torch/nn/file{k}.py" for k in range(60)] + ["forward", "step"]
    return {
        "package": "bench", "title": "bench", "sentence": "Generated.",
        "createdUs": 0, "origin": "file", "outcome": None, "error": None, "cell": None, "notes": [], "discloses": "",
        "strings": strings, "frames": [[k % 60, k, 60 + k % 2] for k in range(2000)],
        "stacks": [[], *([(s * 13 + d * 31) % 2000 for d in range(DEPTH)] for s in range(STACKS))], "devices": [device],
    }  # fmt: skip


def page_of(document: bytes) -> str:
    data = base64.b64encode(document).decode()
    return (
        f'<!DOCTYPE html><meta charset="utf-8"><script>{PROBE}</script><div id="gpumem-report"></div>'
        f'<script type="application/octet-stream;base64" id="gpumem-document">{data}</script>'
        f"<script>window.bench.start = performance.now()</script><script>{SCRIPT.read_text('utf-8')}</script>"
    )


def report_page(file: Path) -> tuple[str, int]:
    """The real report of a recording, with the probe in it."""
    from gpumem_magic.cli import main

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.html"
        if main(["report", str(file), "-o", str(out)]) != 0:
            raise SystemExit(f"no report of {file}")
        html = out.read_text("utf-8")
    size = len(html.encode())
    # The page's own policy would refuse the probe.
    html = html.replace('http-equiv="Content-Security-Policy"', 'name="policy"')
    html = html.replace("<head>", f"<head><script>{PROBE}</script>", 1)
    at = html.rindex("<script>")
    return html[:at] + "<script>window.bench.start = performance.now()</script>" + html[at:], size


def events_of(html: str) -> int:
    """Return the number of events that a report is about."""
    from gpumem_magic.report.container import decode

    found = re.search(r'id="gpumem-document">([A-Za-z0-9+/=]+)<', html)
    if found is None:
        raise SystemExit("the page holds no report")
    return sum(device["events"] for device in decode(base64.b64decode(found[1]))[0]["devices"])


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return f"p50 {statistics.median(values):5.1f}  p95 {p95:5.1f}  max {ordered[-1]:5.1f} ms  (n={len(values)})"


def steps(page: Page) -> dict[str, list[float]]:
    """Zoom in, pan, zoom out, hover, by real events; what the view's own frames took."""
    box = page.locator("#gpumem-report .overlay").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.6
    page.mouse.move(x, y)
    out: dict[str, list[float]] = {}

    def measure(name: str, count: int, act: Any) -> None:
        page.evaluate("window.bench.frames.length = 0")
        for k in range(count):
            act(k)
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        out[name] = page.evaluate("window.bench.frames")

    measure("zoom in", 40, lambda _: page.mouse.wheel(0, -100))
    measure("zoom out", 30, lambda _: page.mouse.wheel(0, 100))
    measure("pan", 30, lambda k: page.mouse.wheel(60 if k % 10 < 7 else -60, 0))
    measure("hover", 40, lambda k: page.mouse.move(x - 200 + k * 10, y - 30 + k))
    page.mouse.move(x, y)
    measure("zoom out to all", 12, lambda _: page.mouse.wheel(0, 300))
    return out


def measure(browser: Browser, name: str, html: str, size: int, *, events: int, runs: int) -> list[float]:
    print(f"\n{name}: {events:,} events, {size / 1e6:.2f} MB, {size / events:.2f} B an event")
    paints, heap, frames = [], 0.0, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(html, "utf-8")
        for run in range(runs):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.as_uri())
            page.wait_for_function("window.bench.paint !== null", timeout=60_000)
            paints.append(page.evaluate("window.bench.paint"))
            if run == runs - 1:
                frames = steps(page)
                page.evaluate("window.gc && window.gc()")
                heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
            page.close()
    low, high = min(paints), max(paints)
    print(
        f"  data in the page to painted   median {statistics.median(paints):.0f} ms"
        f"  ({low:.0f} to {high:.0f}, n={runs})"
    )
    for what, values in frames.items():
        print(f"  {what:<28}  {spread(values)}")
    print(f"  heap after                    {heap:.0f} MB")
    return paints


# torch's viewer is written for d3 5, whose listeners read `d3.event`; d3 7 hands the event over instead.
SHIM = """
import * as own from 'd3';
export * from 'd3';
export let event = null;
const wrap = fn => typeof fn !== 'function' ? fn : function (e, d) { event = e; return fn.call(this, d); };
const on = own.selection.prototype.on;
own.selection.prototype.on = function (type, fn, options) {
  return arguments.length < 2 ? on.call(this, type) : on.call(this, type, wrap(fn), options);
};
const behave = make => (...args) => {
  const made = make(...args);
  const listen = made.on;
  made.on = (type, ...fn) => fn.length === 0 ? listen(type) : (listen(type, wrap(fn[0])), made);
  return made;
};
export const zoom = behave(own.zoom);
export const brushX = behave(own.brushX);
"""
BUNDLE = """
const [esbuild, entry, out] = process.argv.slice(1);
const { buildSync } = require(esbuild);
const nodePaths = [require('path').dirname(esbuild)];
buildSync({ entryPoints: [entry], bundle: true, format: 'esm', outfile: out, nodePaths });
"""


def installed_viewer() -> Path | None:
    """Find the copy of torch's viewer that lies beside an installed torch; most wheels have none."""
    spec = importlib.util.find_spec("torch")
    found = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "utils/viz/MemoryViz.js"]
    return next((path for path in found if path.is_file()), None)


def offline_viewer(script: Path, folder: Path) -> None:
    """Bundle torch's viewer with the d3 of our node_modules, so that it loads nothing."""
    text = re.sub(r'from "https://cdn[^"]*"', "from './shim.js'", script.read_text("utf-8"))
    (folder / "viewer.js").write_text(text, "utf-8")
    (folder / "shim.js").write_text(SHIM, "utf-8")
    esbuild = ROOT / "labextension" / "node_modules" / "esbuild"
    arguments = [str(esbuild), str(folder / "viewer.js"), str(folder / "MemoryViz.js")]
    subprocess.run(["node", "-e", BUNDLE, "--", *arguments], check=True)


class Quiet(SimpleHTTPRequestHandler):
    """Serves without a line a request."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def torch_viewer(browser: Browser, script: Path, recording: Path, runs: int) -> list[float]:
    """Open the same recording in torch's own viewer, served over loopback: ms from its bytes in the page to painted."""
    raw = lzma.decompress(recording.read_bytes()) if recording.suffix == ".xz" else recording.read_bytes()
    paints = []
    with tempfile.TemporaryDirectory() as scratch:
        offline_viewer(script, Path(scratch))
        (Path(scratch) / "snapshot.pickle").write_bytes(raw)
        (Path(scratch) / "index.html").write_text(
            "<!DOCTYPE html><body><script type=module>import {add_local_files} from './MemoryViz.js';"
            "const bytes = new Uint8Array(await (await fetch('snapshot.pickle')).arrayBuffer());"
            "let text = ''; for (let i = 0; i < bytes.length; i += 32768)"
            " text += String.fromCharCode(...bytes.subarray(i, i + 32768));"
            "window.start = performance.now();"
            "add_local_files([{name: 'snapshot.pickle', base64: btoa(text)}], 'Active Memory Timeline');"
            "const wait = () => document.querySelector('svg polygon') ? requestAnimationFrame(() =>"
            " requestAnimationFrame(() => { window.paint = performance.now() - window.start; }))"
            " : requestAnimationFrame(wait);"
            "wait();</script>",
            "utf-8",
        )
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=scratch))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(runs):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html")
            page.wait_for_function("window.paint !== undefined", timeout=120_000)
            paints.append(float(page.evaluate("window.paint")))
            page.close()
        server.shutdown()
    return paints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--events", nargs="*", type=int, default=[600_000, 2_000_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torch-viewer", type=Path, metavar="MemoryViz.js", default=installed_viewer())
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from gpumem_magic.report.container import encode

    viewer: Path | None = options.torch_viewer
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=ARGS)
        print(f"Chromium {browser.version}, view {SCRIPT.stat().st_size / 1e3:.0f} kB")
        for recording in options.recordings:
            html, size = report_page(recording)
            events = events_of(html)
            own = measure(browser, recording.name, html, size, events=events, runs=options.runs)
            if viewer is None:
                continue
            theirs = torch_viewer(browser, viewer, recording, min(options.runs, 3))
            ratio = statistics.median(theirs) / statistics.median(own)
            print(
                f"  torch's viewer, the same      median {statistics.median(theirs):.0f} ms"
                f"  ({min(theirs):.0f} to {max(theirs):.0f}, n={len(theirs)}): {ratio:.1f} x ours"
            )
        for events in options.events:
            # An allocation is three events (its free is requested, then completed) and two changes of allocated bytes.
            document = encode(*training(events * 2 // 3, 1))
            html = page_of(document)
            measure(browser, f"generated, {DEPTH}-frame stacks", html, len(html), events=events, runs=options.runs)
        browser.close()


if __name__ == "__main__":
    main()
