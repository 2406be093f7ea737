"""The three doors: state and history over REST, and the feed. On the event loop, and never in its way."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web, websocket

from gpumem_magic.server.history import MOST_POINTS

if TYPE_CHECKING:
    from gpumem_magic.server.monitor import Monitor

__all__ = ["AUTH_RESOURCE", "FeedHandler", "HistoryHandler", "StateHandler"]

# What an authorizer is asked about.
AUTH_RESOURCE = "gpumem"

DEFAULT_HISTORY_SECONDS = 3600.0
# Above what the rings hold in all.
MOST_POINTS_ASKED = 20_000


class _MonitorHandler(APIHandler):
    auth_resource = AUTH_RESOURCE

    def initialize(self, monitor: Monitor) -> None:
        self.monitor = monitor


class StateHandler(_MonitorHandler):
    """``GET gpumem-magic/state``: one reading, with its owners."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer the protocol's ``State``."""
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(await self.monitor.fresh_state(), allow_nan=False))


class HistoryHandler(_MonitorHandler):
    """``GET gpumem-magic/history?seconds=N&points=M``: what the server has kept, in at most so many points."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer the protocol's ``History``."""
        seconds = self._above_zero("seconds", DEFAULT_HISTORY_SECONDS)
        points = min(self._above_zero("points", MOST_POINTS), MOST_POINTS_ASKED)
        # A day of 16 devices takes some milliseconds to write down: not on the event loop.
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(None, _history_json, self.monitor, seconds, max(1, round(points)))
        self.set_header("Cache-Control", "no-store")
        self.finish(answer)

    def _above_zero(self, name: str, otherwise: float) -> float:
        try:
            value = float(self.get_query_argument(name, str(otherwise)))
        except ValueError:
            raise web.HTTPError(400, f"{name} must be a number") from None
        if not value > 0:
            raise web.HTTPError(400, f"{name} must be above zero")
        return value


def _history_json(monitor: Monitor, seconds: float, points: int) -> str:
    window = monitor.history.window(seconds, time.time_ns() // 1000, points)
    return json.dumps(window, allow_nan=False, separators=(",", ":"))


class FeedHandler(WebSocketMixin, websocket.WebSocketHandler, JupyterHandler):
    """``gpumem-magic/feed``: a full state first, then deltas; see the protocol."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, monitor: Monitor) -> None:
        """Take the server's one monitor."""
        self.monitor = monitor
        self._last_write: asyncio.Future[None] | None = None

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open the feed for a user who may use it."""
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", self.auth_resource),
        )
        if not allowed:
            raise web.HTTPError(403)
        opened = super().get(*args, **kwargs)
        if opened is not None:
            await opened

    def open(self, *_args: Any, **_kwargs: Any) -> None:
        """Start to feed this client."""
        super().open()
        self.monitor.attach(self)

    def on_message(self, message: str | bytes) -> None:
        """Take the client's wishes; what cannot be read is not worth an error page in somebody's log."""
        try:
            wish = json.loads(message)
            kind = wish["type"]
            if kind == "visible":
                self.monitor.set_visible(self, visible=bool(wish["visible"]))
            elif kind == "configure":
                interval, record = float(wish["intervalMs"]) / 1000, bool(wish["recordInBackground"])
                self.monitor.configure(self, interval=interval, record=record)
        except (ValueError, KeyError, TypeError) as error:
            self.log.debug("gpumem: a message on the feed could not be read: %s", error)

    def on_close(self) -> None:
        """Stop to feed this client."""
        self.monitor.detach(self)
        super().on_close()

    def send(self, message: str) -> bool:
        """Send one message; False when the last one has not left yet, and this one was dropped.

        A tab that sleeps with its socket open must not make the server's memory grow.
        """
        if self._last_write is not None and not self._last_write.done():
            return False
        try:
            self._last_write = asyncio.ensure_future(self.write_message(message))
        except websocket.WebSocketClosedError:
            self.monitor.detach(self)
            return False
        # A connection that breaks while we write is told by on_close; the future's own error is not news.
        self._last_write.add_done_callback(_forget)
        return True

    def get_compression_options(self) -> None:
        """Leave messages as they are: a delta is 200 bytes a device, and compressing it would be the larger cost."""


def _forget(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
