"""The monitor behind a real JupyterHub: ``python tests/compat/hub.py [--keep]``.

The interpreter that runs this needs jupyterhub, configurable-http-proxy (the one written in Python), jupyterlab and
playwright, and the machine Chromium. Starts a hub under a base URL of its own with two users, each with a
``jupyterhub-singleuser`` over the fake NVML, logs in with a browser as people do, and checks who may read what. Prints
one line a check; ``--keep`` puts them, dated, at the top of ``results.txt``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.txt"
GIB = 1 << 30
PREFIX = "/science/hub-one"
PASSWORD = "let me in"  # noqa: S105 -- of a hub that lives for a minute on loopback
STATUS = "#gpumem-magic-panel .gpumem-status[data-kind=live]"


def load(name: str, path: Path) -> Any:
    """Import a module of the tests by its path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


BROWSER = load("browser_conftest", ROOT / "tests" / "browser" / "conftest.py")
FAKE = load("fake_nvml_build", ROOT / "tests" / "fake_nvml" / "build.py")


class Hub:
    """A running hub and what its users' servers share."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.fake = FAKE.FakeNvml(home / "nvml")
        self.show(0)
        self.port = BROWSER.free_port()
        self.url = f"http://127.0.0.1:{self.port}{PREFIX}"
        # A token of the hub's own, as an administrator's script or a Prometheus job has one.
        self.service_token = "service-" + os.urandom(8).hex()
        environment = self.fake.environment(BROWSER._environment(home, {}))
        for user in ("ada", "bob"):
            BROWSER.write_notebook(home / user / "train.ipynb", ["1 + 1"])
        config = home / "jupyterhub_config.py"
        config.write_text(self._config(environment))
        self.log = home / "hub.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(config)],
                cwd=home,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.wait()

    def show(self, *pids: int) -> None:
        """Let the driver show one device with these processes."""
        processes = [{"pid": pid, "used": 5 * GIB} for pid in pids if pid]
        self.fake.control({"devices": [{"used": 6 * GIB, "processes": processes}]})

    def _config(self, environment: dict[str, str]) -> str:
        proxy = shutil.which("configurable-http-proxy", path=str(Path(sys.executable).parent))
        settings = {
            "JupyterHub.bind_url": self.url,
            "JupyterHub.hub_port": BROWSER.free_port(),
            "JupyterHub.authenticator_class": "dummy",
            "JupyterHub.spawner_class": "simple",
            "JupyterHub.db_url": "sqlite:///:memory:",
            "JupyterHub.cookie_secret_file": str(self.home / "secret"),
            "JupyterHub.services": [{"name": "scraper", "api_token": self.service_token}],
            "JupyterHub.load_roles": [
                {"name": "scraper", "scopes": ["access:servers!user=ada"], "services": ["scraper"]},
            ],
            "DummyAuthenticator.password": PASSWORD,
            "Authenticator.allow_all": True,
            "ConfigurableHTTPProxy.command": [proxy],
            "ConfigurableHTTPProxy.api_url": f"http://127.0.0.1:{BROWSER.free_port()}",
            "SimpleLocalProcessSpawner.home_dir_template": str(self.home / "{username}"),
            "Spawner.cmd": [sys.executable, "-m", "jupyterhub.singleuser"],
            "Spawner.args": ["--allow-root", "--LabApp.expose_app_in_browser=True"],
            "Spawner.env_keep": sorted(environment),
            "Spawner.start_timeout": 90,
        }
        return "".join(f"c.{name} = {value!r}\n" for name, value in settings.items())

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/hub/health", timeout=5).close()  # noqa: S310
                return
            time.sleep(0.2)
        raise RuntimeError(f"the hub did not start:\n{self.log.read_text()[-3000:]}")

    def close(self) -> None:
        """End it with its users' servers."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Checks:
    """Runs the checks, and keeps what they said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = 0

    def run(self, words: str, check: Callable[[], object]) -> None:
        """Run one; an assertion or any other error makes it fail."""
        try:
            told = check()
        except Exception as error:  # noqa: BLE001 -- the table names whatever went wrong
            self.failed += 1
            told = f"FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            told = "ok" if told is None else f"ok: {told}"
        self.lines.append(f"{words:64} {told}")
        print(self.lines[-1], flush=True)


def log_in(hub: Hub, browser: Browser, user: str, watch: Any, sockets: list[str]) -> Page:
    """Log in through the hub's form and wait for the user's JupyterLab."""
    context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", watch.on_console)
    page.on("pageerror", watch.on_error)
    page.on("request", watch.on_request)
    page.on("websocket", lambda socket: sockets.append(socket.url))
    place = f"{PREFIX}/user/{user}/lab/tree/train.ipynb"
    page.goto(f"{hub.url}/hub/login?{urlencode({'next': f'{PREFIX}/hub/spawn/{user}?' + urlencode({'next': place})})}")
    page.fill("#username_input", user)
    page.fill("#password_input", PASSWORD)
    page.click("#login_submit")
    page.wait_for_url(re.compile(rf"^[^?]*{PREFIX}/user/{user}/lab"), timeout=90_000)
    page.wait_for_function("() => window.jupyterapp && window.jupyterapp.restored")
    page.evaluate("async () => { await window.jupyterapp.restored; }")
    BROWSER.Jupyter.wait_for_kernel(page)
    return page


def fetch(page: Page, path: str, *, xsrf: bool = True) -> int:
    """Fetch from within the page, as JupyterLab does unless `xsrf` is off; return the status."""
    code = """async ([path, xsrf]) => {
      const token = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? '';
      return (await fetch(path, {redirect: 'manual', headers: xsrf ? {'X-XSRFToken': token} : {}})).status;
    }"""
    return int(page.evaluate(code, [path, xsrf]))


def status(url: str, token: str | None = None) -> int:
    """Fetch without a browser; return the status."""
    headers = {} if token is None else {"Authorization": f"token {token}"}

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_arguments: object) -> None:
            return None

    try:
        with urllib.request.build_opener(Stay).open(urllib.request.Request(url, headers=headers), timeout=20) as got:  # noqa: S310
            return int(got.status)
    except urllib.error.HTTPError as error:
        return error.code


def open_socket(url: str, **headers: str) -> str:
    """Open a socket; return the type of its first message, or the status that refused it."""

    async def go() -> str:
        try:
            socket = await websocket_connect(HTTPRequest(url.replace("http", "ws", 1), headers=headers))
        except HTTPClientError as error:
            return str(error.code)
        message = await asyncio.wait_for(socket.read_message(), 15)
        socket.close()
        return str(json.loads(message or "{}").get("type"))

    # Beside playwright's own loop, which runs in this thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(go())).result()


def cookies(page: Page) -> str:
    """Give the page's cookies as a header."""
    return "; ".join(f"{one['name']}={one['value']}" for one in page.context.cookies())


@contextmanager
def a_hub() -> Iterator[Hub]:
    """Start a hub for a while."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        hub = Hub(Path(folder))
        try:
            yield hub
        except Exception:
            print(hub.log.read_text()[-6000:], file=sys.stderr)
            raise
        finally:
            hub.close()


def panel(checks: Checks, hub: Hub, page: Page, sockets: list[str]) -> None:
    """Check what a user sees and does."""
    base = f"{PREFIX}/user/ada"

    def kernel() -> dict[str, Any]:
        url = f"{hub.url}/user/ada/gpumem-magic/state"
        request = urllib.request.Request(url, headers={"Authorization": f"token {hub.service_token}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return dict(json.load(answer)["kernels"][0])

    def live() -> str:
        page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }")
        page.wait_for_selector(STATUS)
        hub.show(int(kernel()["pid"]))
        page.wait_for_selector("#gpumem-magic-panel .gpumem-device .gpumem-link >> text=train.ipynb")
        return page.locator("#gpumem-magic-panel .gpumem-device .gpumem-bytes").first.inner_text()

    def one_socket() -> str:
        mine = [url for url in sockets if "gpumem-magic" in url and "/ada/" in url]
        assert mine, sockets
        assert all(f"{base}/gpumem-magic/feed" in url for url in mine), mine
        return re.sub(r"127\.0\.0\.1:\d+", "hub", mine[0].split("?")[0])

    def restart() -> str:
        before = kernel()["pid"]
        page.get_by_role("button", name="Actions for train.ipynb").first.click()
        page.get_by_role("menuitem", name="Restart Kernel").click()
        page.locator(".jp-Dialog").get_by_role("button", name="Restart").click()
        deadline = time.monotonic() + 30
        while kernel()["pid"] in (before, None):
            assert time.monotonic() < deadline
            time.sleep(0.3)
        return "a new process"

    def setting() -> str:
        page.locator(".gpumem-range").first.click()
        with page.expect_response(
            lambda reply: "lab/api/settings" in reply.url and reply.request.method == "PUT"
        ) as got:
            page.get_by_role("menuitem", name="Last 30 min").click()
        assert got.value.status == 204, got.value.status
        page.wait_for_selector(".gpumem-range >> text=last 30 min")
        return str(got.value.status)

    checks.run("the panel is live and names the notebook", live)
    checks.run("its socket is under the user's base URL", one_socket)
    checks.run("restarting a kernel from the panel (XSRF)", restart)
    checks.run("writing a setting from the panel (XSRF)", setting)


def doors(checks: Checks, hub: Hub, ada: Page, bob: Page) -> None:
    """Check who may read."""
    ours = f"{hub.url}/user/ada/gpumem-magic"

    def equals(got: object, *expected: object) -> str:
        assert got in expected, f"{got}, not {expected}"
        return str(got)

    checks.run("her own state by cookie", lambda: equals(fetch(ada, f"{PREFIX}/user/ada/gpumem-magic/state"), 200))
    checks.run(
        "her own state by cookie, without the XSRF token",
        lambda: equals(fetch(ada, f"{PREFIX}/user/ada/gpumem-magic/state", xsrf=False), 403),
    )
    checks.run("her own feed by cookie", lambda: equals(open_socket(f"{ours}/feed", Cookie=cookies(ada)), "state"))
    for path in ("state", "history"):
        checks.run(f"nobody's {path}", lambda path=path: equals(status(f"{ours}/{path}"), 302, 403))  # type: ignore[misc]
    checks.run("nobody's feed", lambda: equals(open_socket(f"{ours}/feed"), "403"))
    checks.run("another user's state", lambda: equals(fetch(bob, f"{PREFIX}/user/ada/gpumem-magic/state"), 0, 403))
    checks.run("another user's feed", lambda: equals(open_socket(f"{ours}/feed", Cookie=cookies(bob)), "403"))
    checks.run(
        "her feed from a page of another origin",
        lambda: equals(open_socket(f"{ours}/feed", Cookie=cookies(ada), Origin="https://elsewhere.example"), "403"),
    )
    checks.run("a service with the scope, state", lambda: equals(status(f"{ours}/state", hub.service_token), 200))
    metrics = f"{hub.url}/user/ada/metrics"
    checks.run("a service with the scope, metrics", lambda: equals(status(metrics, hub.service_token), 200))
    other = f"{hub.url}/user/bob/gpumem-magic/state"
    checks.run("a service without the scope", lambda: equals(status(other, hub.service_token), 403))
    checks.run("a token that is none", lambda: equals(status(f"{ours}/state", "nonsense"), 302, 403))


def main() -> int:
    """Run everything; the exit code is 0 when all held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="put the table at the top of results.txt")
    arguments = parser.parse_args()
    checks = Checks()
    names = ("jupyterhub", "jupyterlab", "jupyter_server", "configurable-http-proxy")
    head = "JupyterHub: " + ", ".join(f"{name} {version(name)}" for name in names)
    print(head)
    with a_hub() as hub, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER.CHROMIUM, args=BROWSER.CHROMIUM_ARGS)
        watch = BROWSER.Watch()
        # JupyterLab's own, of a kernel that is being restarted.
        watch.allowed.append("WebSocket connection to .*/api/kernels/")
        sockets: list[str] = []
        pages = {user: log_in(hub, browser, user, watch, sockets) for user in ("ada", "bob")}
        panel(checks, hub, pages["ada"], sockets)
        silent = watch.verdict()
        doors(checks, hub, pages["ada"], pages["bob"])
        browser.close()
        trouble = [
            line
            for line in hub.log.read_text().splitlines()
            if re.search(r"gpumem.*(error|traceback)", line, re.IGNORECASE)
        ]

        def quiet() -> None:
            assert not silent, silent
            assert not trouble, trouble

        checks.run("nothing in the console, no error of ours in the log", quiet)
        if checks.failed:
            print(hub.log.read_text()[-4000:], file=sys.stderr)
    if arguments.keep:
        text = "\n".join([time.strftime("%Y-%m-%d"), head, *checks.lines])
        RESULTS.write_text(f"{text}\n\n{RESULTS.read_text('utf-8')}", "utf-8")
    return int(checks.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
