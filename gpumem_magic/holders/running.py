"""What runs or waits: frames of every thread, asyncio's tasks and timers, context variables, finalizers."""

from __future__ import annotations

import contextvars
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.errors import frame_roots
from gpumem_magic.holders.model import HolderKind
from gpumem_magic.holders.roots import Root
from gpumem_magic.holders.suspended import running_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["running_roots", "waiting_roots"]

# A debugger's own variables are named as what it shows (`errors.debuggers`).
_DEBUGGERS = frozenset({"pdb", "bdb", "cmd"})


def running_roots() -> Iterator[Root]:
    """Yield the locals of functions that run now, on every thread, then tasks that wait and context variables."""
    seen: set[int] = set()
    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in running_frames():
        module = str(frame.f_globals.get("__name__", ""))
        if module in _DEBUGGERS or module.endswith(".debugger"):
            continue
        thread = "" if number == here else f" on thread {names.get(number, number)}"
        yield from frame_roots(HolderKind.RUNNING, "running", frame, seen, thread)
    for task in _tasks():
        yield Root(HolderKind.RUNNING, f"asyncio task {task.get_name()}", task)
    for variable, value in contextvars.copy_context().items():
        yield Root(HolderKind.RUNNING, f"context variable `{variable.name}`", value)


def waiting_roots() -> Iterator[Root]:
    """Yield what will run later: the running loop's timers and callbacks, and finalizers."""
    loop = _loop()
    if loop is not None:
        yield Root(HolderKind.RUNNING, "asyncio loop", loop)
    registry: Any = weakref.finalize.__dict__.get("_registry")
    for info in list(dict.values(registry)) if isinstance(registry, dict) else ():
        yield Root(HolderKind.RUNNING, "weakref.finalize callback", info)


def _loop() -> Any:
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - the one that does not raise


def _tasks() -> list[Any]:
    """Return the tasks of the loop that runs on this thread, which keeps them by what they wait for.

    Other loops' come by their variables; a loop that nobody runs any more is garbage with its tasks.
    """
    asyncio, loop = sys.modules.get("asyncio"), _loop()
    return [] if asyncio is None or loop is None else list(asyncio.all_tasks(loop))
