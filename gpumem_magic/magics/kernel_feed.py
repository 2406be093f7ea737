"""What the sidebar shows of "this notebook": torch's numbers and the ledger, pushed to the front end.

Nothing is executed for it. The kernel has one comm of a fixed id, which no front end has to open or accept: those that
know the id read its messages, and the others ignore them. A front end that comes later (a page that was loaded again)
finds the comm in the kernel's list and asks on it.

Messages go out when the extension is loaded, at the end of each cell, and once a second while a cell runs, where CUDA
is in use or the ledger has something. No comm exists where no Jupyter server started the kernel.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.notes import one_line
from gpumem_magic.recording.readings import now_us
from gpumem_magic.recording.ticker import call_every
from gpumem_magic.recording.torch_numbers import read_now, read_on_main_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.book import AliveDevice, AliveRow, Entry
    from gpumem_magic.magics.auto import Keeper
    from gpumem_magic.recording.ticker import Tick
    from gpumem_magic.recording.torch_numbers import TorchNumbers

__all__ = ["COMM_ID", "KernelFeed", "feed_for"]

COMM_ID = "gpumem_magic"
_log = logging.getLogger(__name__)
_PROTOCOL = 1
_PERIOD_SECONDS = 1.0
# The panel shows no more (kernelNumbers.ts).
_MOST_CELLS = 50
_MOST_ROWS = 20
# Each cell pays for the names, also where nobody looks at the panel.
_GLANCE_SECONDS = 0.02


def feed_for(shell: Any, keeper: Keeper) -> KernelFeed | None:
    """Return a feed where a front end may read it: in the kernel of a Jupyter server's session."""
    if "JPY_SESSION_NAME" not in os.environ or not hasattr(shell, "kernel"):
        return None
    if "ipykernel.kernelapp" not in sys.modules:
        return None
    manager = getattr(shell.kernel, "comm_manager", None)
    create = None if manager is None else _comms_of(manager)
    return None if create is None else KernelFeed(shell, keeper, manager, create)


def _comms_of(manager: Any) -> Callable[..., Any] | None:
    """Return what makes the kernel's kind of comm: the package ``comm``'s, or ipykernel's own before 6.18."""
    with suppress(ImportError):
        import comm

        if comm.get_comm_manager() is manager:
            return comm.create_comm
    with suppress(ImportError):
        from ipykernel.comm import Comm, CommManager

        if type(manager) is CommManager:
            return Comm
    return None


class KernelFeed:
    """Pushes one kernel's numbers.

    Parameters
    ----------
    shell
        The running IPython shell.
    keeper
        Has the ledger.
    manager
        The kernel's own list of comms.
    create
        Makes a comm of the kind that the manager takes.
    """

    def __init__(self, shell: Any, keeper: Keeper, manager: Any, create: Callable[..., Any]) -> None:
        self._shell = shell
        self._keeper = keeper
        self._manager = manager
        # Not "primary": front ends without our panel would refuse to open it, each with an error in its console.
        self._comm = create(target_name=COMM_ID, comm_id=COMM_ID, primary=False)
        self._known: list[TorchNumbers] = []
        self._tick: Tick | None = None
        self._alive: list[dict[str, Any]] = []
        self._told = False  # that there is nothing any more
        self._process = os.getpid()
        self._failed = False
        # Messages come from the cell's thread, the ticker's and a subshell's.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Offer the comm, and say what is known already."""
        self._comm.on_msg(self._answer)
        self._manager.register_comm(self._comm)
        self._shell.events.register("pre_run_cell", self._before_cell)
        self._shell.events.register("post_run_cell", self._after_cell)
        self._known = read_on_main_thread()
        self._send(self._known)

    def stop(self) -> None:
        """Take everything back; the panel is told that there is nothing any more."""
        self._end_tick()
        self._shell.events.unregister("pre_run_cell", self._before_cell)
        self._shell.events.unregister("post_run_cell", self._after_cell)
        self._alive, self._told = [], True
        self._send([])
        self._comm.on_msg(None)
        # Without the goodbye: front ends never opened the comm, and JupyterLab logs an error about an unknown one.
        self._comm._closed = True  # noqa: SLF001 - else its end sends the goodbye after all
        self._manager.unregister_comm(self._comm)

    # -- when to send ----------------------------------------------------------------------------------------------

    def _before_cell(self, _info: Any) -> None:
        if self._tick is None:
            # A message finds the cell that it belongs to through context variables.
            tick = partial(contextvars.copy_context().run, self._beside_cell)
            self._tick = call_every(_PERIOD_SECONDS, tick)

    def _after_cell(self, _result: Any) -> None:
        self._end_tick()
        self._known = read_on_main_thread()
        self._look()
        self._send(self._known)

    def _beside_cell(self) -> bool:
        if os.getpid() != self._process:
            return False
        numbers = read_now(self._known)
        # A page that was loaded again meanwhile has asked, and its question waits behind the cell.
        if numbers or self._keeper.entries:
            self._send(numbers)
        return True

    def _answer(self, _message: Any) -> None:
        """Somebody asks; may be beside the cell."""
        self._send(read_now(self._known))

    def _end_tick(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    # -- what to send ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See what is alive by the cell that made it. Between cells only: beside one, others change it meanwhile."""
        if not self._keeper.entries:
            self._alive = []
            return
        try:
            devices, _ = self._keeper.alive(budget=_GLANCE_SECONDS, quick=True)
        except Exception as error:  # noqa: BLE001 - the panel shows what it had; the user's cell is not told
            _log.warning("gpumem: the sidebar cannot be told what is alive: %s", one_line(error))
            return
        self._alive = [_device(device) for device in devices]

    def _cells(self) -> list[dict[str, Any]]:
        entries = self._keeper.entries
        runs = Counter(entry.cell_key for entry in entries)
        return [_cell(entry, runs[entry.cell_key]) for entry in reversed(entries[-_MOST_CELLS:])]

    def _send(self, devices: list[TorchNumbers]) -> None:
        if os.getpid() != self._process:
            return  # a forked child shares the sockets
        message = {
            "protocol": _PROTOCOL,
            "timeUs": now_us(),
            "devices": [numbers._asdict() for numbers in devices],
            "cells": [] if self._told else self._cells(),
            "alive": self._alive,
        }
        try:
            with self._lock:
                self._comm.send(message)
        except Exception as error:  # noqa: BLE001 - whatever the messaging raises, the user's cell is not told
            if not self._failed:
                self._failed = True
                _log.warning("gpumem: the sidebar gets no numbers of this kernel: %s", one_line(error))


def _cell(entry: Entry, runs: int) -> dict[str, Any]:
    return {
        "cellId": entry.cell_id,
        "title": entry.title,
        "peak": entry.peak,
        "stayed": entry.stayed,
        "freed": entry.freed,
        "seconds": entry.seconds,
        "outcome": entry.outcome.value,
        "line": entry.first_line,
        "executionCount": entry.execution_count,
        "run": entry.run,
        "runs": max(runs, entry.run),
        "leak": entry.leak,
    }


def _device(device: AliveDevice) -> dict[str, Any]:
    return {
        "key": device.key,
        "total": device.total,
        "unsure": device.unsure,
        "rows": [_row(row) for row in device.rows[:_MOST_ROWS]],
    }


def _row(row: AliveRow) -> dict[str, Any]:
    entry = row.entry
    return {
        "cellId": None if entry is None else entry.cell_id,
        "title": None if entry is None else entry.title,
        "line": None if entry is None else entry.first_line,
        "executionCount": None if entry is None else entry.execution_count,
        "bytes": row.bytes,
        "blocks": row.blocks,
        "names": list(row.names),
        "lastUsed": row.last_used,
    }
