"""A thread that reads while somebody looks, and sleeps when nobody does."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.nvml.model import Reading
    from gpumem_magic.nvml.reader import Reader

__all__ = ["FaultLog", "Poller"]

# The share of time that may be spent in the driver, whose lock CUDA calls wait for too: when a reading takes longer
# than this part of the interval, the interval grows.
BUSY_SHARE = 0.2
LONGEST_PAUSE = 60.0


class Poller:
    """Reads on a daemon thread and hands each reading to one callback.

    Parameters
    ----------
    reader
        Owned by the thread from now on.
    publish
        Called on the thread with each reading.
    wanted
        Whether anybody looks. Asked after each reading, and again after every `wake`; must be quick.
    interval
        Seconds between the beginnings of readings, asked each time.
    log
        Where the thread tells what went wrong in it.
    """

    def __init__(
        self,
        reader: Reader,
        publish: Callable[[Reading], None],
        *,
        wanted: Callable[[], bool],
        interval: Callable[[], float],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._reader = reader
        self._publish = publish
        self._wanted = wanted
        self._interval = interval
        self._log = log
        self._changed = threading.Condition()
        self._stopping = False
        self._once = False
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        self._failures: set[str] = set()
        self.ticks = 0
        self.last_seconds = 0.0
        # Whether nobody looked before the reading under way: it is then late for that, not for a slow driver.
        self.rested = False

    def wake(self, *, once: bool = False) -> None:
        """Look again whether anybody looks; starts the thread at the first call.

        Parameters
        ----------
        once
            Take one reading even if nobody looks.
        """
        with self._changed:
            if self._stopping:
                return
            self._once = self._once or once
            if self._thread is None:
                # A daemon: a driver that never answers must not keep the server from ending.
                self._thread = threading.Thread(target=self._run, name="gpumem-poller", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread; one that hangs in the driver is left behind after `timeout` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def busy_seconds(self) -> float:
        """How long the reading under way has taken; 0 when there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def pause(self) -> float:
        """Seconds between readings as they are now, longer than asked for when the driver is slow."""
        asked = self._interval()
        return max(asked, min(LONGEST_PAUSE, self.last_seconds / BUSY_SHARE))

    def _run(self) -> None:
        while self._await_look():
            began = self._busy_since = time.monotonic()
            try:
                self._publish(self._reader.read(self.ticks))
            except Exception as error:  # noqa: BLE001
                # A fault of ours must not end the monitor for the server's life; it is told once, not each tick.
                self._tell(error)
            finally:
                self._busy_since = None
            self.ticks += 1
            self.last_seconds = time.monotonic() - began
            self._sleep(began)

    def _await_look(self) -> bool:
        with self._changed:
            self.rested = False
            while not self._stopping and not self._once and not self._wanted():
                self.rested = True
                self._changed.wait()
            self._once = False
            return not self._stopping

    def _sleep(self, began: float) -> None:
        with self._changed:
            while not self._stopping and not self._once:
                left = began + self.pause - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _tell(self, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if words not in self._failures and len(self._failures) < 100:
            self._failures.add(words)
            self._log.exception("gpumem: a reading failed; the monitor goes on")


class FaultLog:
    """Logs a fault when it begins and when it ends, however often it is read in between.

    Parameters
    ----------
    log
        Driver and device faults become warnings, missing values debug lines.
    """

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self._log = log
        self._present: dict[tuple[str, str], str] = {}

    def note(self, reading: Reading) -> None:
        """Compare a reading's faults with those of the one before."""
        present = _faults(reading)
        for key, words in present.items():
            if self._present.get(key) != words:
                level = logging.DEBUG if key[1] else logging.WARNING
                self._log.log(level, "gpumem: %s", words)
        for key in self._present.keys() - present.keys():
            if not key[1]:
                self._log.info("gpumem: %s: over", self._present[key])
        self._present = present


def _faults(reading: Reading) -> dict[tuple[str, str], str]:
    faults = {}
    if reading.problem is not None:
        faults["driver", ""] = reading.problem
    for device in reading.devices:
        # By place: a device that was lost before it told its UUID has none.
        place = f"GPU {device.index}"
        if device.lost is not None:
            faults[place, ""] = f"{place} ({device.uuid or 'UUID unknown'}): {device.lost}"
            continue
        for name, why in device.missing.items():
            faults[place, name] = f"{place}: {name}: {why}"
    return faults
