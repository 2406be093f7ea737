"""The server's monitor: one poller for all who look, their owners, the history, and who is told what."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gpumem_magic.nvml.host import read_host
from gpumem_magic.nvml.model import Reading
from gpumem_magic.nvml.poller import FaultLog, Poller
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.sampling import default_session
from gpumem_magic.server.attribution import Attributor, Directory
from gpumem_magic.server.history import History
from gpumem_magic.server.processes import tree_memory
from gpumem_magic.server.state import build_delta, build_state, strip_volatile

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Mapping

    from gpumem_magic.nvml.host import HostMemory
    from gpumem_magic.server.attribution import Owner

__all__ = ["Client", "Monitor", "Sample"]

# Whoever reads over REST or /metrics is a looker for a while after each request.
REST_LEASE_SECONDS = 5.0
SCRAPE_LEASE_SECONDS = 60.0
# Kernels start, stop and are renamed at human pace; asking costs a few database rows on the event loop.
DIRECTORY_SECONDS = 2.0
# Walking all processes takes 20 µs each, in the poller's thread.
TREE_SECONDS = 5.0
# A driver that takes longer is said to hang.
HANG_SECONDS = 10.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.2, 60.0


class Client(Protocol):
    """Somebody on the feed."""

    def send(self, message: str) -> bool:
        """Send one message; False when the last one has not left yet, and this one was dropped."""


@dataclass
class _Look:
    """What a client asked for, and whether it needs a full state next."""

    visible: bool = True
    interval: float | None = None
    is_behind: bool = True


@dataclass(frozen=True)
class Sample:
    """What the last reading gave, ready to be shown: never changed, so that any thread may read it."""

    reading: Reading
    owners: Mapping[int, Owner]
    host: HostMemory | None
    state: Mapping[str, Any]
    monotonic: float


class Monitor:
    """Runs the poller while somebody looks, and tells them what it read.

    Methods are called on the event loop, except where they say otherwise.

    Parameters
    ----------
    read_directory
        Lists the server's kernels and terminals.
    interval
        Seconds between readings when no client asks for another.
    record
        Keep reading when nobody looks.
    device_files, root_dir
        See :class:`~gpumem_magic.server.attribution.Attributor`.
    package
        This package's version.
    describe_kernel
        Further protocol fields of a kernel by its PID; may be slow, is called on the poller's thread.
    log
        The server's log.
    """

    def __init__(
        self,
        read_directory: Callable[[], Awaitable[Directory]],
        *,
        interval: float,
        record: bool,
        device_files: tuple[str, ...],
        root_dir: str | None,
        package: str,
        describe_kernel: Callable[[int], Mapping[str, Any]],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._read_directory = read_directory
        self._default_interval = interval
        self._interval = interval
        self._record = record
        self._package = package
        self._describe_kernel = describe_kernel
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[Client, _Look] = {}
        self._lease = 0.0
        self._directory = Directory()
        self._directory_at = 0.0
        self._directory_failed = False
        self._housekeeping: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._structure: dict[str, Any] | None = None
        self._stopped = False
        # The poller's thread only:
        self._attributor = Attributor(device_files, root_dir=root_dir)
        self._faults = FaultLog(log)
        self._kernel_memory: dict[str, int | None] = {}
        self._tree_at = 0.0
        # Written by the poller's thread, read by any:
        self.history = History()
        self.sample: Sample | None = None
        self._poller = Poller(
            Reader(default_session(), xids=True),
            self._take,
            wanted=self._is_wanted,
            interval=lambda: self._interval,
            log=log,
        )

    def start(self) -> None:
        """Begin, once the event loop runs; reads nothing unless it is to record in the background."""
        self._loop = asyncio.get_running_loop()
        if self._record:
            self._look()

    # -- who looks ---------------------------------------------------------------------------------------------------

    def attach(self, client: Client) -> None:
        """Take a client onto the feed; it is sent a full state as soon as there is a fresh one."""
        self._clients[client] = _Look()
        self._look()
        self._serve(client)

    def detach(self, client: Client) -> None:
        """Take a client off the feed."""
        self._clients.pop(client, None)
        self._settle_interval()

    def set_visible(self, client: Client, *, visible: bool) -> None:
        """Note whether a client can be seen; one that comes back is sent a full state."""
        look = self._clients.get(client)
        if look is None or look.visible == visible:
            return
        look.visible = visible
        self._settle_interval()
        if visible:
            look.is_behind = True
            self._look()
            self._serve(client)

    def configure(self, client: Client, *, interval: float, record: bool) -> None:
        """Take a client's wishes: the shortest interval of all clients counts, and the last word on recording."""
        look = self._clients.get(client)
        if look is not None:
            # In this order NaN, which JSON may hold, becomes the shortest: a pause of NaN would never pause.
            look.interval = min(max(SHORTEST_INTERVAL, interval), LONGEST_INTERVAL)
        self._record = record
        self._settle_interval()
        self._look()

    def note_scrape(self) -> None:
        """Note that somebody read ``/metrics``. May be called on any thread."""
        self._lease = max(self._lease, time.monotonic() + SCRAPE_LEASE_SECONDS)
        self._look()

    async def fresh_state(self, timeout: float = 5.0) -> Mapping[str, Any]:
        """Give a state no older than one interval, waiting for a reading if need be.

        Parameters
        ----------
        timeout
            Seconds to wait; then the last state comes with a `problem` that says what is in the way.
        """
        self._lease = max(self._lease, time.monotonic() + REST_LEASE_SECONDS)
        await self._refresh_directory()
        self._look()
        deadline = time.monotonic() + timeout
        while (sample := self._current()) is None:
            self._poller.wake(once=True)
            left = deadline - time.monotonic()
            if left <= 0 or self._stopped:
                return self._hung_state()
            news = self._news
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), left)
        return sample.state

    def stop(self) -> None:
        """End the thread and the housekeeping."""
        self._stopped = True
        self._clients.clear()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        self._poller.stop()

    def _is_wanted(self) -> bool:
        """Whether anybody looks. Called on the poller's thread."""
        looks = list(self._clients.values())
        return self._record or time.monotonic() < self._lease or any(look.visible for look in looks)

    def _look(self) -> None:
        """Wake whoever works for the lookers."""
        if self._loop is None:
            # A scrape on another thread, before the server's loop runs, is served without the kernels' names.
            with contextlib.suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_housekeeping)
        self._poller.wake()

    def _settle_interval(self) -> None:
        asked = [look.interval for look in self._clients.values() if look.visible and look.interval is not None]
        self._interval = min(asked) if asked else self._default_interval

    # -- the poller's thread -----------------------------------------------------------------------------------------

    def _take(self, reading: Reading) -> None:
        """Turn a reading into a sample. Called on the poller's thread."""
        self._faults.note(reading)
        directory = self._directory
        self._attributor.update(directory)
        owners = {pid: self._attributor.owner(pid) for pid in reading.pids}
        host = read_host()
        now = time.monotonic()
        roots = {kernel.id: kernel.pid for kernel in directory.kernels}
        if now - self._tree_at >= TREE_SECONDS or roots.keys() - self._kernel_memory.keys():
            self._tree_at = now
            self._kernel_memory = tree_memory(roots)
        foreign = any(owner.owner == "foreign" for owner in owners.values())
        facts = {kernel.id: self._facts(kernel.pid, foreign=foreign) for kernel in directory.kernels}
        state = build_state(
            reading,
            owners,
            directory,
            host,
            package=self._package,
            interval=self._poller.pause,
            kernel_memory=self._kernel_memory,
            kernel_facts=facts,
        )
        # A slow reading lengthens the pause after it; time in which nobody looked is a gap all the same.
        self.history.append(reading, host.used, self._interval if self._poller.rested else self._poller.pause)
        self.sample = Sample(reading, owners, host, state, now)
        if self._loop is not None:
            # The loop may be closed already while the server ends.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell)

    def _facts(self, pid: int | None, *, foreign: bool) -> Mapping[str, Any]:
        if pid is None:
            return {}
        facts = dict(self._describe_kernel(pid))
        if foreign:
            # PIDs cannot be matched here, but who has the device open can be seen.
            facts["opensDevice"] = self._attributor.has_device_open(pid)
        return facts

    # -- the event loop ----------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Tell everybody who can be seen."""
        sample = self.sample
        if sample is None or self._stopped:
            return
        self._news.set()
        self._news = asyncio.Event()
        structure = strip_volatile(sample.state)
        is_same = structure == self._structure
        self._structure = structure
        self._broadcast(sample.state, is_same=is_same)

    def _broadcast(self, state: Mapping[str, Any], *, is_same: bool) -> None:
        """Serialise once for all; a client that missed something gets the whole state."""
        full: str | None = None
        delta: str | None = None
        for client, look in list(self._clients.items()):
            if not look.visible:
                look.is_behind = True
                continue
            if look.is_behind or not is_same:
                full = full or _dump({"type": "state", "state": state})
                look.is_behind = not client.send(full)
            else:
                delta = delta or _dump(build_delta(state))
                look.is_behind = not client.send(delta)

    def _serve(self, client: Client) -> None:
        """Send a client the whole state at once if there is a fresh one; else the next reading does."""
        sample = self._current()
        if sample is not None:
            # Looked up before: a client that is found to be gone is taken off while it is sent to.
            look = self._clients[client]
            look.is_behind = not client.send(_dump({"type": "state", "state": sample.state}))

    def _current(self) -> Sample | None:
        sample = self.sample
        fresh = sample is not None and time.monotonic() - sample.monotonic <= 1.5 * self._poller.pause
        return sample if fresh else None

    def _start_housekeeping(self) -> None:
        if self._stopped or (self._housekeeping is not None and not self._housekeeping.done()):
            return
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())

    async def _keep_house(self) -> None:
        """While somebody looks: keep the directory fresh and notice a driver that hangs."""
        announced = False
        while self._is_wanted():
            await self._refresh_directory()
            hangs = self._poller.busy_seconds > HANG_SECONDS
            if hangs and not announced:
                state = self._hung_state()
                self._log.warning("gpumem: %s", state["problem"])
                self._structure = None
                self._broadcast(state, is_same=False)
            announced = hangs
            await asyncio.sleep(DIRECTORY_SECONDS)

    async def _refresh_directory(self) -> None:
        now = time.monotonic()
        if self._directory_at and now - self._directory_at < DIRECTORY_SECONDS / 2:
            return
        self._directory_at = now
        try:
            self._directory = await self._read_directory()
        except Exception:  # noqa: BLE001
            # Another extension's kernel manager may fail in its own way; devices are shown all the same.
            if not self._directory_failed:
                self._log.exception("gpumem: the kernels of this server cannot be listed")
            self._directory_failed = True

    def _hung_state(self) -> Mapping[str, Any]:
        seconds = round(self._poller.busy_seconds)
        problem = (
            f"The driver has not answered for {seconds} s; see `nvidia-smi` and the kernel log (dmesg)."
            if seconds
            # Nothing is under way: readings end with a fault of ours, which the poller logs, or do not begin.
            else "No reading of the GPUs came in time; the server's log says whether one failed."
        )
        if self.sample is not None:
            return {**self.sample.state, "problem": problem}
        reading = Reading(time.time_ns() // 1000, None, problem)
        return build_state(
            reading,
            {},
            self._directory,
            read_host(),
            package=self._package,
            interval=self._interval,
            kernel_memory={},
            kernel_facts={},
        )


def _dump(message: Mapping[str, Any]) -> str:
    return json.dumps(message, allow_nan=False, separators=(",", ":"))
