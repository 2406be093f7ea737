"""What the monitor costs: calls and wall time a tick, the server's response with ten clients, memory over an hour.

``python tests/benchmarks/bench_monitor.py [--seconds S] [--rounds N] [--json]``. Runs over the fake NVML with the
per-call delays measured on an H200 (tests/fake_nvml; delays below); where ``nvitop`` and ``gpustat`` are importable
they are measured over the same library in the same run, and ``jupyterlab_nvdashboard`` and ``jupyter_resource_usage``
as servers. Ratios and their spread count, seconds are this machine's. ``--keep`` puts the lines, dated, at the top of
``monitor_results.txt``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib.metadata
import importlib.util
import json
import logging
import multiprocessing
import os
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("monitor_results.txt")

# Microseconds a call on an H200, driver 580. Process lists are asked twice (size, then entries): half each.
DELAYS = {
    "nvmlDeviceGetMemoryInfo": 8,
    "nvmlDeviceGetMemoryInfo_v2": 8,
    "nvmlDeviceGetUtilizationRates": 2,
    "nvmlDeviceGetTemperature": 2,
    "nvmlDeviceGetPowerUsage": 2,
    "nvmlDeviceGetCurrentClocksEventReasons": 2,
    "nvmlDeviceGetComputeRunningProcesses_v3": 20,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 15,
    "nvmlDeviceGetMigMode": 79,
    "nvmlDeviceGetTotalEccErrors": 3,
    "nvmlDeviceGetTotalEnergyConsumption": 2300,
    "nvmlDeviceGetPcieThroughput": 20500,
}
FAST = ("MemoryInfo_v2", "UtilizationRates", "Temperature", "PowerUsage")


def load_build() -> Any:
    spec = importlib.util.spec_from_file_location("fake_nvml_build", ROOT / "tests" / "fake_nvml" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def devices(count: int, moment: int = 0) -> dict[str, Any]:
    """So many devices with a process each; `moment` moves every number, as training does."""
    held = (1 << 30) + ((moment * 37) % 64 << 24)
    one = {"processes": [{"pid": os.getpid(), "used": held}], "used": held + (2 << 30), "utilization": moment * 7 % 100}
    return {"count": count, "delay_us": DELAYS, "devices": [one] * count}


@contextmanager
def training(fake: Any) -> Iterator[None]:
    """Have eight devices and their processes change four times a second."""
    ends = threading.Event()

    def change() -> None:
        moment = 0
        while not ends.wait(0.25):
            moment += 1
            fake.control(devices(8, moment))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": 1e3 * statistics.median(ordered),
        "p95_ms": 1e3 * ordered[int(0.95 * (len(ordered) - 1))],
        "p99_ms": 1e3 * ordered[int(0.99 * (len(ordered) - 1))],
        "max_ms": 1e3 * ordered[-1],
    }


def bench_ticks(fake: Any, count: int, ticks: int = 400) -> dict[str, Any]:
    """Read alone, as the poller's thread does it."""
    from gpumem_magic.nvml.reader import Reader
    from gpumem_magic.nvml.session import Session

    fake.control(devices(count))
    session = Session()
    reader = Reader(session)
    reader.read(0)
    fake.reset_calls()
    walls, busy = [], time.process_time()
    for tick in range(1, ticks + 1):
        began = time.perf_counter()
        reader.read(tick)
        walls.append(time.perf_counter() - began)
    busy = time.process_time() - busy
    calls = fake.calls()
    session.close()
    fast = sum(calls[f"nvmlDeviceGet{name}"] for name in FAST)
    return {
        "devices": count,
        "fast_calls_per_tick_and_device": fast / ticks / count,
        "all_calls_per_tick_and_device": sum(calls.values()) / ticks / count,
        **quantiles(walls),
        "cpu_ms": 1e3 * busy / ticks,
    }


def bench_peers(fake: Any, count: int) -> list[dict[str, Any]]:
    fake.control(devices(count))
    found = []
    for name, take in (("nvitop", nvitop_snapshot), ("gpustat", gpustat_query)):
        if importlib.util.find_spec(name) is None:
            continue
        take()
        fake.reset_calls()
        walls = []
        for _ in range(10):
            began = time.perf_counter()
            take()
            walls.append(time.perf_counter() - began)
        calls = sum(fake.calls().values()) / 10 / count
        found.append({"tool": name, "devices": count, "all_calls_per_tick_and_device": calls, **quantiles(walls)})
    return found


def nvitop_snapshot() -> None:
    import nvitop  # type: ignore[import-not-found]

    for device in nvitop.Device.all():
        device.as_snapshot()


def gpustat_query() -> None:
    import gpustat  # type: ignore[import-not-found]

    gpustat.new_query()


def bench_hour(fake: Any, ticks: int = 3600) -> dict[str, Any]:
    """One hour at 1 Hz, as fast as it goes: reading, owners, state and history, without a server."""
    import psutil

    from gpumem_magic.nvml.reader import Reader
    from gpumem_magic.nvml.sampling import default_session
    from gpumem_magic.server.attribution import Directory
    from gpumem_magic.server.monitor import Monitor

    async def directory() -> Directory:
        return Directory()

    fake.control({**devices(8), "delay_us": {}})
    monitor = Monitor(
        directory,
        interval=1.0,
        record=False,
        device_files=(),
        root_dir=None,
        package="0",
        describe_kernel=lambda _pid: {},
        log=logging.getLogger("bench"),
    )
    reader = Reader(default_session())
    process = psutil.Process()
    start_us = time.time_ns() // 1000 - ticks * 1_000_000
    sizes = []
    walls = []
    for tick in range(ticks):
        began = time.perf_counter()
        # The history files by time, which must pass as it would.
        reading = reader.read(tick)
        monitor._take(dataclasses.replace(reading, time_us=start_us + tick * 1_000_000))
        walls.append(time.perf_counter() - began)
        if tick % (ticks // 6) == 0:
            sizes.append(process.memory_info().rss / 2**20)
    began = time.perf_counter()
    points = len(json.dumps(monitor.history.window(3600, time.time_ns() // 1000)))
    return {
        "ticks": ticks,
        "rss_mib": [round(size, 1) for size in sizes],
        **quantiles(walls),
        "history_ms": 1e3 * (time.perf_counter() - began),
        "history_bytes": points,
    }


class Feed(NamedTuple):
    """Where an extension gives its numbers, and what a client says first; without one it is asked by requests."""

    extension: str
    path: str
    greeting: dict[str, Any] | None
    clients: int
    words: str


# What ten tabs do, at a reading a second; one chart of eight devices, at its default of ten frames a second and at one;
# the indicator of ten tabs, at its default of one request in five seconds.
FEEDS = (
    Feed("gpumem_magic", "gpumem-magic/feed", {"type": "visible", "visible": True}, 10, "10 panels"),
    Feed(
        "jupyterlab_nvdashboard",
        "nvdashboard/gpu_resource",
        {"updateFrequency": 100, "isPaused": False},
        1,
        "1 chart, its default 10 Hz",
    ),
    Feed(
        "jupyterlab_nvdashboard",
        "nvdashboard/gpu_resource",
        {"updateFrequency": 1000, "isPaused": False},
        1,
        "1 chart at 1 Hz",
    ),
    Feed("jupyter_resource_usage", "api/metrics/v1", None, 10, "10 indicators (host memory only)"),
)
POLL_SECONDS = 5.0


def run_clients(address: str, token: str, feed: Feed, pipe: Any) -> None:
    """Look at a server until told to stop; then tell how many frames came."""
    asyncio.run(_look(address, {"Authorization": f"token {token}"}, feed, pipe))


async def _look(address: str, headers: dict[str, str], feed: Feed, pipe: Any) -> None:
    from tornado.httpclient import AsyncHTTPClient, HTTPRequest
    from tornado.websocket import websocket_connect

    frames = 0

    def count(message: str | bytes | None) -> None:
        nonlocal frames
        frames += message is not None

    async def poll(place: int) -> None:
        # Not all at the same moment, as tabs are not.
        await asyncio.sleep(POLL_SECONDS * place / feed.clients)
        while True:
            await AsyncHTTPClient().fetch(f"http://{address}/{feed.path}", headers=headers)
            count("")
            await asyncio.sleep(POLL_SECONDS)

    if feed.greeting is None:
        polls = [asyncio.create_task(poll(place)) for place in range(feed.clients)]
    else:
        polls = []
        for _ in range(feed.clients):
            request = HTTPRequest(f"ws://{address}/{feed.path}", headers=headers)
            opened = await websocket_connect(request, on_message_callback=count)
            await opened.write_message(json.dumps(feed.greeting))
    pipe.send(None)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    for task in polls:
        task.cancel()
    pipe.send(frames)


class Server:
    """A Jupyter Server with one extension over the fake library."""

    def __init__(self, fake: Any, directory: Path, extension: str) -> None:
        self.token = secrets.token_hex(8)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        fake.control(devices(8))
        config = directory / "jupyter_server_config.json"
        config.write_text(json.dumps({"ServerApp": {"jpserver_extensions": {extension: True}}}))
        environment = fake.environment({**os.environ, "JUPYTER_CONFIG_DIR": str(directory)})
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyter_server",
                "--no-browser",
                "--allow-root",
                f"--ServerApp.port={self.port}",
                "--ServerApp.port_retries=0",
                f"--IdentityProvider.token={self.token}",
                f"--ServerApp.root_dir={directory}",
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.get("api/status")
            except (OSError, urllib.error.URLError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def get(self, path: str) -> bytes:
        address = f"http://127.0.0.1:{self.port}/{path}"
        request = urllib.request.Request(address, headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            body: bytes = answer.read()
        return body

    async def respond(self, seconds: float) -> list[float]:
        """Measure ``GET api/status`` every 20 ms."""
        from tornado.httpclient import AsyncHTTPClient

        headers = {"Authorization": f"token {self.token}"}
        http = AsyncHTTPClient()
        walls = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            await http.fetch(f"http://127.0.0.1:{self.port}/api/status", headers=headers)
            walls.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
        return walls

    @contextmanager
    def looked_at(self, feed: Feed) -> Iterator[list[int]]:
        """Have the feed's clients look from a process of their own; the list gets the number of frames at the end."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=run_clients, args=(f"127.0.0.1:{self.port}", self.token, feed, there))
        process.start()
        here.recv()
        frames: list[int] = []
        try:
            yield frames
        finally:
            here.send(None)
            frames.append(here.recv())
            process.join()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def bench_server(fake: Any, seconds: float, rounds: int, feed: Feed) -> dict[str, Any]:
    """Interleave idle and watched rounds, so that what else the machine does falls on both."""
    with tempfile.TemporaryDirectory() as directory, training(fake):
        server = Server(fake, Path(directory), feed.extension)
        try:
            idle: list[float] = []
            watched: list[float] = []
            ratios, frames = [], 0
            asyncio.run(server.respond(1.0))
            for _ in range(rounds):
                quiet = asyncio.run(server.respond(seconds))
                with server.looked_at(feed) as got:
                    busy = asyncio.run(server.respond(seconds))
                # The clients' farewell belongs to neither.
                time.sleep(0.3)
                idle += quiet
                watched += busy
                frames += got[0]
                ratios.append(quantiles(busy)["p95_ms"] / quantiles(quiet)["p95_ms"])
        finally:
            server.close()
    return {
        "extension": feed.extension,
        "words": feed.words,
        "clients": feed.clients,
        "idle": quantiles(idle),
        "watched": quantiles(watched),
        "p95_ratio": quantiles(watched)["p95_ms"] / quantiles(idle)["p95_ms"],
        "p50_ratio": quantiles(watched)["p50_ms"] / quantiles(idle)["p50_ms"],
        "p95_ratio_by_round": [round(ratio, 2) for ratio in sorted(ratios)],
        "frames_per_second_and_client": frames / (feed.clients * seconds * rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each idle and each watched round")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only the servers whose extension has it in its name"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="put the lines at the top of monitor_results.txt")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        fake = load_build().FakeNvml(Path(directory))
        fake.load()
        os.environ["FAKE_NVML"] = str(fake.file)
        results: dict[str, Any] = {
            "ticks": [bench_ticks(fake, count) for count in (1, 2, 8)],
            "hour": bench_hour(fake),
            "servers": [
                bench_server(fake, arguments.seconds, arguments.rounds, feed)
                for feed in FEEDS
                if arguments.only in feed.extension and importlib.util.find_spec(feed.extension)
            ],
            # Last: they put functions of their own into the binding.
            "peers": [row for count in (1, 8) for row in bench_peers(fake, count)],
        }
    if arguments.json:
        print(json.dumps(results))
        return
    lines = list(describe(results))
    print("\n".join(lines))
    if arguments.keep:
        named = ("jupyter_server", "jupyterlab_nvdashboard", "jupyter-resource-usage", "nvitop", "gpustat")
        about = [f"Python {platform.python_version()}", f"{os.cpu_count()} cores", *map(versioned, named)]
        head = f"{time.strftime('%Y-%m-%d')}  {', '.join(filter(None, about))}"
        former = RESULTS.read_text("utf-8") if RESULTS.exists() else ""
        RESULTS.write_text("\n".join([head, *lines, "", former]).rstrip() + "\n", "utf-8")


def versioned(package: str) -> str:
    """Name an installed package with its version; empty when it is absent."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def spread(ratios: list[float]) -> str:
    """Say the quartiles of sorted values."""
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"median {middle:.2f}, quartiles {low:.2f} and {high:.2f} of {len(ratios)}"


def describe(results: dict[str, Any]) -> Iterator[str]:
    """Say the results in lines."""
    for row in results["ticks"]:
        yield (
            f"{row['devices']} device(s): {row['fast_calls_per_tick_and_device']:.1f} calls a tick and device on the "
            f"fast tier ({row['all_calls_per_tick_and_device']:.1f} in all), wall {row['p50_ms']:.2f} ms median, "
            f"{row['p95_ms']:.2f} p95, {row['max_ms']:.2f} max, CPU {row['cpu_ms']:.2f} ms"
        )
    for row in results["peers"]:
        yield (
            f"{row['tool']}, {row['devices']} device(s): {row['all_calls_per_tick_and_device']:.1f} calls a reading "
            f"and device, wall {row['p50_ms']:.1f} ms median"
        )
    hour = results["hour"]
    yield f"{hour['ticks']} ticks of 8 devices: RSS {hour['rss_mib']} MiB, {hour['p50_ms']:.2f} ms a tick with owners"
    yield f"  an hour of history: {hour['history_bytes'] / 1e3:.0f} kB in {hour['history_ms']:.0f} ms"
    for row in results["servers"]:
        yield (
            f"{row['extension']}, {row['words']}: GET api/status idle p50 {row['idle']['p50_ms']:.1f} "
            f"p95 {row['idle']['p95_ms']:.1f} p99 {row['idle']['p99_ms']:.1f} ms, "
            f"watched p50 {row['watched']['p50_ms']:.1f} p95 {row['watched']['p95_ms']:.1f} "
            f"p99 {row['watched']['p99_ms']:.1f} ms; ratio p50 {row['p50_ratio']:.2f}, p95 {row['p95_ratio']:.2f} "
            f"(by round: {spread(row['p95_ratio_by_round'])}); "
            f"{row['frames_per_second_and_client']:.2f} frames a second and client"
        )


if __name__ == "__main__":
    main()
