"""What runs or waits: frames of every thread, asyncio's tasks and timers, context variables, finalizers."""

from __future__ import annotations

import contextvars
import sys
import threading
import types
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.edges import module_name, plain_attributes
from gpumem_magic.holders.errors import frame_roots
from gpumem_magic.holders.model import HolderKind
from gpumem_magic.holders.roots import OWN_PACKAGE, Root
from gpumem_magic.holders.suspended import locals_of, running_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["machinery_roots", "running_roots", "shared_machinery", "waiting_roots"]

# A debugger's own variables are named as what it shows (`errors.debuggers`).
_DEBUGGERS = frozenset({"pdb", "bdb", "cmd"})
# The shell's parent is the kernel, whose parent is the application.
_MOST_PARENTS = 6
# What runs below every cell and reaches all sorts of things: any other path tells more.
_MACHINERY = frozenset(
    {"ipykernel", "IPython", "traitlets", "tornado", "zmq", "jupyter_client", "asyncio", OWN_PACKAGE}
)


def running_roots() -> Iterator[Root]:
    """Yield the locals of functions that run now, on every thread, then tasks that wait and context variables."""
    yield from _frames(are_machinery=False)
    yield from _tasks(are_machinery=False)
    for variable, value in contextvars.copy_context().items():
        yield Root(HolderKind.RUNNING, f"context variable `{variable.name}`", value)


def _frames(*, are_machinery: bool) -> Iterator[Root]:
    """Yield the locals of functions that run, those of the notebook's machinery or all others."""
    seen: set[int] = set()
    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    machinery = _frames_of_machinery()
    for number, frame in running_frames():
        module = _module(frame)
        if module in _DEBUGGERS or module.endswith(".debugger"):
            continue
        if (id(frame) in machinery or _is_machinery(module)) is are_machinery:
            thread = "" if number == here else f" on thread {names.get(number, number)}"
            yield from frame_roots(HolderKind.RUNNING, "running", frame, seen, thread)


def _frames_of_machinery() -> set[int]:
    """Return the ids of the frames below the cell that runs, and of threads that the notebook itself started.

    As ids: a list of frames would hold this very one.
    """
    below: dict[int, list[int]] = defaultdict(list)
    whole: set[int] = set()
    for number, frame in running_frames():  # the innermost first
        module = _module(frame)
        if frame.f_code.co_name == "run_code" and _is_machinery(module):
            below[number].clear()  # what it runs is the user's
            whole.add(number)
        below[number].append(id(frame))
        if module == "threading" and _is_machinery(_starter(frame)):
            whole.add(number)
    return {one for number in whole for one in below[number]}


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _starter(frame: types.FrameType) -> str:
    """Return the module whose thread this is, told by the class or by the function that the thread runs."""
    thread = next((value for name, value in locals_of(frame) if name == "self"), None)
    target = plain_attributes(thread).get("_target")
    if type(target) is types.MethodType:
        target = target.__func__
    if type(target) is types.FunctionType:
        return target.__module__ or ""
    return module_name(type(thread))


def machinery_roots() -> Iterator[Root]:
    """Yield what runs the notebook itself."""
    yield from _frames(are_machinery=True)
    yield from _tasks(are_machinery=True)


def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY


def waiting_roots() -> Iterator[Root]:
    """Yield what will run later: the running loop's timers and callbacks, and finalizers."""
    loop = _loop()
    if loop is not None:
        yield Root(HolderKind.RUNNING, "asyncio loop", loop)
    registry: Any = weakref.finalize.__dict__.get("_registry")
    for info in list(dict.values(registry)) if isinstance(registry, dict) else ():
        yield Root(HolderKind.RUNNING, "weakref.finalize callback", info)


def shared_machinery(shell: Any) -> list[object]:
    """Return what every task, timer, thread or frame of IPython's refers to: the loop, the kernel and its application.

    Parameters
    ----------
    shell
        IPython's, or anything that stands for it.
    """
    found = [_loop(), getattr(sys.excepthook, "__self__", None)]
    parent = shell
    while parent is not None and len(found) < _MOST_PARENTS:
        parent = getattr(parent, "parent", None)
        found.append(parent)
    return [value for value in found if value is not None]


def _loop() -> Any:
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - the one that does not raise


def _tasks(*, are_machinery: bool) -> Iterator[Root]:
    """Yield the tasks of the loop that runs on this thread, which keeps them by what they wait for.

    Other loops' come by their variables; a loop that nobody runs any more is garbage with its tasks.
    """
    asyncio, loop = sys.modules.get("asyncio"), _loop()
    for task in () if asyncio is None or loop is None else list(asyncio.all_tasks(loop)):
        frame = getattr(task.get_coro(), "cr_frame", None)
        module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        if _is_machinery(module) is are_machinery:
            yield Root(HolderKind.RUNNING, f"asyncio task {task.get_name()}", task)
