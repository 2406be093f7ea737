"""A Jupyter Server with the extension, over the fake NVML."""

from __future__ import annotations

import asyncio
import json
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

    async def next(self, seconds=10.0):
        text = await asyncio.wait_for(self.socket.read_message(), seconds)
        assert text is not None, "the server closed the feed"
        return json.loads(text)

    async def until(self, condition, seconds=15.0):
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
