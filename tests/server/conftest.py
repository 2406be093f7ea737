"""A Jupyter Server with the extension, over the fake NVML."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

# `pytest_plugins` is for the topmost conftest only; there it would put its fixtures under every other test too.
from pytest_jupyter.jupyter_server import *  # noqa: F403


@pytest.fixture  # type: ignore[no-redef]
def jp_server_config():
    return {
        "ServerApp": {"jpserver_extensions": {"gpumem_magic": True, "jupyter_server_terminals": True}},
        "GpumemMonitor": {"interval": 0.2},
    }


@pytest.fixture
def server(fake_nvml, jp_serverapp):
    """The server; the fake library is there before it starts."""
    assert fake_nvml
    return jp_serverapp


@pytest.fixture
def monitor(server):
    return server.web_app.settings["gpumem_magic"].monitor


@pytest.fixture
def get_state(server, jp_fetch):
    assert server

    async def get():
        return json.loads((await jp_fetch("gpumem-magic", "state")).body)

    return get


class Feed:
    """One client of the feed."""

    def __init__(self, socket):
        self.socket = socket

    async def next(self, seconds=60.0):
        text = await asyncio.wait_for(self.socket.read_message(), seconds)
        assert text is not None, "the server closed the feed"
        return json.loads(text)

    async def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while True:
            message = await self.next()
            if condition(message):
                return message
            assert time.monotonic() < deadline, message

    def tell(self, **message):
        self.socket.write_message(json.dumps(message))

    def close(self):
        self.socket.close()


@pytest.fixture
def open_feed(server, jp_ws_fetch):
    assert server
    opened = []

    async def connect():
        feed = Feed(await jp_ws_fetch("gpumem-magic", "feed"))
        opened.append(feed)
        return feed

    yield connect
    for feed in opened:
        feed.close()


_MIB = 1 << 20

# Starts a child and prints its PID; the child starts a grandchild and writes its PID to a file.
SPAWN = '''
import subprocess, sys
wait = "import time; time.sleep(600)"
child = f"""import subprocess, sys
print(subprocess.Popen([sys.executable, '-c', {wait!r}]).pid, flush=True)
{wait}"""
started = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, start_new_session=True)
open(WHERE, "w").write(f"{started.pid} {started.stdout.readline()}")
'''


class Lab:
    """A server with sessions, and processes that the fake driver shows as holders of memory."""

    def __init__(self, server, fetch, get_state, fake, root):
        self.server = server
        self.fetch = fetch
        self.get_state = get_state
        self.fake = fake
        self.root = root
        self.strays: list[int] = []

    async def session(self, path, kernel_id=None):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        kernel = {"name": "python3"} if kernel_id is None else {"id": kernel_id}
        body = json.dumps({"path": path, "name": path, "type": "notebook", "kernel": kernel})
        return json.loads((await self.fetch("api", "sessions", method="POST", body=body)).body)

    async def end(self, session):
        await self.fetch("api", "sessions", session["id"], method="DELETE")

    def pid(self, session):
        return self.server.kernel_manager.get_kernel(session["kernel"]["id"]).provisioner.pid

    async def spawn(self, session):
        """Start a child and a grandchild from a kernel, and give their PIDs."""
        where = self.root / f"pids-{session['id']}"
        await self.execute(session, f"WHERE = {str(where)!r}\n{SPAWN}")
        child, grandchild = map(int, where.read_text().split())
        self.strays += [child, grandchild]
        return child, grandchild

    async def execute(self, session, code):
        client = self.server.kernel_manager.get_kernel(session["kernel"]["id"]).client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=60)
            reply = await client._async_execute_interactive(code, timeout=60, output_hook=lambda _message: None)
            assert reply["content"]["status"] == "ok", reply["content"]
        finally:
            client.stop_channels()

    def stray(self):
        """Start a process that is the server's own."""
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.strays.append(process.pid)
        return process

    async def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while True:
            state = await self.get_state()
            if condition(state):
                return state
            assert time.monotonic() < deadline, json.dumps(state, indent=1)
            await asyncio.sleep(0.1)

    async def owners(self, *pids):
        """Let the driver show these processes, and give what the panel says of each."""
        held = [{"pid": pid, "used": (place + 1) * _MIB} for place, pid in enumerate(pids)]
        self.fake.control({"devices": [{"processes": held}]})
        state = await self.until(lambda s: {p["pid"] for p in s["devices"][0]["processes"]} == set(pids))
        return {process["pid"]: process for process in state["devices"][0]["processes"]}, state


@pytest.fixture
def lab(server, jp_fetch, get_state, fake_nvml, jp_root_dir):
    lab = Lab(server, jp_fetch, get_state, fake_nvml, jp_root_dir)
    yield lab
    # Whoever their parent is by now.
    for pid in lab.strays:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
