"""A real Jupyter server and the system's Chromium, for every browser test.

A test fails by itself on an error in the page's console, an uncaught exception, or a request that leaves loopback.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

pytest.importorskip("playwright.sync_api", reason="browser tests need the playwright package")

ROOT = Path(__file__).parents[2]
LABEXTENSION = ROOT / "gpumem_magic" / "labextension"
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
# Each switch keeps Chromium from going to the network by itself, or is needed to run as root without a display.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_TIMEOUT_S = 60
# What the hosts themselves log in a page that works: not ours to fix, and not to be counted.
# Notebook 7 looks up the settings of a plugin that it does not ship.
HOST_NOISE = re.compile(r"ResizeObserver loop|favicon\.ico|undefined \(reading 'schema'\)")


@dataclass
class Jupyter:
    """A running server.

    ``url`` has no trailing slash; ``root`` is the folder that it serves; ``log`` is what it printed.
    """

    app: Literal["lab", "notebook"]
    url: str
    token: str
    root: Path
    log: Path
    process: subprocess.Popen[bytes]
    env: dict[str, str] = field(default_factory=dict)

    def open_url(self, path: str = "") -> str:
        """Address of a notebook (path relative to the root), or of the start page."""
        if self.app == "lab":
            return f"{self.url}/lab{f'/tree/{path}' if path else ''}?reset&token={self.token}"
        return f"{self.url}/{f'notebooks/{path}' if path else 'tree'}?token={self.token}"

    def request(self, path: str, *, method: str = "GET", body: object = None) -> object:
        """Call the server's REST interface and return the JSON that it answers."""
        request = urllib.request.Request(  # noqa: S310 - always our own loopback server
            f"{self.url}/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
            text = reply.read()
        return json.loads(text) if text else None

    def open(self, page: Page, path: str = "") -> None:
        """Open a notebook or the start page, and wait until the application has restored its layout."""
        page.goto(self.open_url(path))
        page.wait_for_function("() => window.jupyterapp && window.jupyterapp.restored", timeout=START_TIMEOUT_S * 1000)
        page.evaluate("async () => { await window.jupyterapp.restored; }")

    @staticmethod
    def wait_for_kernel(page: Page) -> str:
        """Wait until the notebook in front has an idle kernel; return the kernel's id."""
        kernel = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function(f"() => {kernel}?.status === 'idle'", timeout=START_TIMEOUT_S * 1000)
        return str(page.evaluate(f"() => {kernel}.id"))

    @staticmethod
    def run_all(page: Page) -> None:
        """Run every cell of the notebook in front; return when the last has finished."""
        page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_notebook(path: Path, cells: list[str]) -> None:
    """Write a notebook of code cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body: list[dict[str, object]] = [
        {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": text}
        for i, text in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": body, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), encoding="utf-8")


def _environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Build an environment in which nothing of the developer's own Jupyter is seen or touched."""
    share = home / "share"
    (share / "labextensions").mkdir(parents=True)
    if LABEXTENSION.is_dir():
        (share / "labextensions" / "gpumem-magic").symlink_to(LABEXTENSION)
    config = home / "config"
    (config / "labconfig").mkdir(parents=True)
    # The news pop-up goes to the network and sits in every screenshot.
    disabled = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "labconfig" / "page_config.json").write_text(json.dumps(disabled))
    server = {"ServerApp": {"jpserver_extensions": {"gpumem_magic": True}}}
    (config / "jupyter_server_config.d").mkdir()
    (config / "jupyter_server_config.d" / "gpumem_magic.json").write_text(json.dumps(server))
    return {
        **os.environ,
        "HOME": str(home),
        "JUPYTER_PATH": str(share),
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        **extra,
    }


def _wait_until_up(server: Jupyter) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            server.request("api")
            return
        time.sleep(0.1)
    pytest.fail(f"jupyter {server.app} did not start:\n{server.log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def start_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Jupyter]]:
    """Give a function that starts a server; all that it started end with the module.

    ``start_jupyter("lab", notebooks={"a.ipynb": ["1 + 1"]}, settings={"@jupyterlab/…:…": {…}}, env={…}, args=[…])``
    """
    running: list[Jupyter] = []

    def start(
        app: Literal["lab", "notebook"] = "lab",
        *,
        notebooks: Mapping[str, list[str]] | None = None,
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        args: list[str] | None = None,
    ) -> Jupyter:
        home = tmp_path_factory.mktemp("jupyter")
        root = home / "work"
        root.mkdir()
        for name, cells in (notebooks or {}).items():
            write_notebook(root / name, cells)
        environment = _environment(home, env or {})
        for plugin, values in (settings or {}).items():
            package, _, name = plugin.partition(":")
            folder = home / "settings" / package
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
        port, token = free_port(), secrets.token_hex(8)
        expose = "LabApp" if app == "lab" else "JupyterNotebookApp"
        command = [
            *(sys.executable, "-m", "jupyter", app, "--no-browser", "--allow-root", "--ip=127.0.0.1"),
            *(f"--port={port}", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"),
            f"--{expose}.expose_app_in_browser=True",
            *(args or []),
        ]
        log = home / "server.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=home, env=environment, stdout=out, stderr=subprocess.STDOUT)
        server = Jupyter(app, f"http://127.0.0.1:{port}", token, root, log, process, environment)
        running.append(server)
        _wait_until_up(server)
        return server

    yield start
    for server in running:
        server.process.terminate()
    for server in running:
        try:
            server.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium, once a module.

    Not once a session: playwright's event loop would still run when asynchronous tests elsewhere start theirs.
    """
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@dataclass
class Watch:
    """What a page did that it must not: collected while it is open, asserted at the end of the test."""

    problems: list[str] = field(default_factory=list)
    # Patterns that this test expects, e.g. the browser's own line about a request that the test makes fail.
    allowed: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        """Keep errors."""
        if message.type == "error" and not HOST_NOISE.search(message.text):
            self.problems.append(f"console: {message.text} ({message.location.get('url')})")

    def on_error(self, error: Exception) -> None:
        """Keep uncaught exceptions."""
        if not HOST_NOISE.search(str(error)):
            self.problems.append(f"uncaught: {error}")

    def on_request(self, request: Request) -> None:
        """Keep what leaves this machine."""
        parts = urlsplit(request.url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in {"127.0.0.1", "localhost"}:
            self.problems.append(f"request: {request.url}")

    def verdict(self) -> list[str]:
        """Return what remains when the expected is taken away."""
        return [one for one in self.problems if not any(re.search(pattern, one) for pattern in self.allowed)]


@pytest.fixture
def watch() -> Watch:
    """Name patterns in ``watch.allowed`` that the test expects in the console."""
    return Watch()


@pytest.fixture
def new_page(chromium: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """Give a function that opens a watched page; what it does not name goes to playwright's ``new_context``."""
    contexts: list[BrowserContext] = []

    def make(*, width: int = 1280, height: int = 800, dark: bool = False, **options: object) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            **options,  # type: ignore[arg-type]  # playwright's own options, passed on
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", watch.on_console)
        page.on("pageerror", watch.on_error)
        page.on("request", watch.on_request)
        return page

    yield make
    for context in contexts:
        context.close()
    assert watch.verdict() == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """Open one watched page of the usual size."""
    return new_page()
