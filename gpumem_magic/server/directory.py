"""Ask the server's managers who lives here. Runs on the event loop, which owns the managers."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async

from gpumem_magic.server.attribution import Directory, KernelEntry, TerminalEntry

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

__all__ = ["read_directory"]

_GATEWAY = "the kernel runs behind a gateway, on another machine"
_REMOTE = "the kernel's provisioner does not tell a PID of this machine"
_STARTING = "the kernel is starting"


async def read_directory(app: ServerApp) -> Directory:
    """List kernels with their notebooks, and terminals.

    Parameters
    ----------
    app
        The running server.
    """
    manager = app.kernel_manager
    notebooks: dict[str, list[dict[str, str]]] = {}
    for session in await ensure_async(app.session_manager.list_sessions()):
        place = {"path": session["path"], "name": session["name"] or "", "type": session["type"]}
        notebooks.setdefault(session["kernel"]["id"], []).append(place)
    kernels = []
    for kernel_id in manager.list_kernel_ids():
        try:
            kernel = manager.get_kernel(kernel_id)
        except KeyError:
            # Shut down since it was listed.
            continue
        pid, why = _pid(kernel)
        kernels.append(
            KernelEntry(
                id=kernel_id,
                name=kernel.kernel_name,
                pid=pid,
                execution_state=getattr(kernel, "execution_state", None),
                notebooks=tuple(notebooks.get(kernel_id, ())),
                missing={} if why is None else {"pid": why},
                last_activity_us=_activity(kernel),
            ),
        )
    return Directory(tuple(kernels), tuple(_terminals(app)))


def _pid(kernel: Any) -> tuple[int | None, str | None]:
    provisioner = getattr(kernel, "provisioner", None)
    if provisioner is None:
        return None, _GATEWAY if type(kernel).__name__.startswith("Gateway") else _STARTING
    # Only the local provisioner has a `pid`; others run the kernel elsewhere.
    pid = getattr(provisioner, "pid", None)
    if pid is not None:
        return int(pid), None
    return None, _STARTING if hasattr(provisioner, "pid") else _REMOTE


def _activity(kernel: Any) -> int | None:
    # An aware datetime that the server sets at every message; a kernel that never said anything has none.
    moment = getattr(kernel, "last_activity", None)
    return int(moment.timestamp() * 1e6) if isinstance(moment, dt.datetime) else None


def _terminals(app: ServerApp) -> list[TerminalEntry]:
    # Absent when the terminals extension is off.
    manager = app.web_app.settings.get("terminal_manager")
    if manager is None:
        return []
    found = []
    for name, terminal in list(getattr(manager, "terminals", {}).items()):
        pid = getattr(getattr(terminal, "ptyproc", None), "pid", None)
        if pid is not None:
            found.append(TerminalEntry(str(name), int(pid)))
    return found
