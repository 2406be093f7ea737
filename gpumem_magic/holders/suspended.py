"""Frames and what wraps them: generators, coroutines, asyncio's tasks and futures; whose variables they keep."""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FRAMED", "describe_future", "describe_suspended", "frame_of", "is_future", "locals_of", "running_frames"]

#: Types that hold a frame.
FRAMED = (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)

# Until 3.12, reading a function's locals leaves a dict of them on its frame, which then keeps them alive; from 3.13 on
# it is a view (PEP 667).
_LEAVES_A_COPY = sys.version_info < (3, 13)
# The frame's reference, the variable's here, and the argument's of getrefcount().
_REFERENCES = 3


def locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the local variables of a frame, and leave nothing behind that keeps them alive."""
    found = frame.f_locals
    items = list(found.items())
    if not _LEAVES_A_COPY or type(found) is not dict or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return items
    # A trace function writes the copy back; somebody's own `locals()` is the same dict: neither may be touched.
    if frame.f_trace is None and sys.gettrace() is None and sys.getrefcount(found) <= _REFERENCES:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return items


def frame_of(value: Any) -> tuple[types.FrameType | None, str]:
    """Return the frame of one of `FRAMED`, and what to call it."""
    kind = type(value)
    if kind is types.FrameType:
        return value, "frame"
    if kind is types.GeneratorType:
        return value.gi_frame, "generator"
    if kind is types.CoroutineType:
        return value.cr_frame, "coroutine"
    return value.ag_frame, "generator"


def describe_suspended(parent: Any, child: object) -> str | None:
    """Say which variable of a frame holds `child`; nothing where it is the frame itself or what it waits for."""
    frame, what = frame_of(parent)
    if frame is None:
        return None
    if frame is child:
        return ""
    for name, value in locals_of(frame):
        if value is child:
            return f" ({what} {frame.f_code.co_name}, local `{name}`)"
        if type(child) is types.CellType and _content(child) is value:
            return f" ({what} {frame.f_code.co_name}, closure variable `{name}`)"
    # What it waits for names itself.
    return "" if any(type(child) is kind for kind in FRAMED) else None


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def is_future(kind: type) -> bool:
    """Tell whether objects of type `kind` are futures or tasks of asyncio's, without importing it."""
    module = sys.modules.get("_asyncio")
    return module is not None and issubclass(kind, module.Future)


_FUTURE = (("_result", ".result()"), ("_exception", ".exception()"), ("_fut_waiter", " (waits for)"), ("_coro", ""))


def describe_future(parent: Any, child: object) -> str | None:
    """Say how a future or task holds `child`."""
    module = sys.modules["_asyncio"]
    kind = module.Task if issubclass(type(parent), module.Task) else module.Future
    for name, text in _FUTURE:
        member: Any = getattr(kind, name, None)
        if member is not None and member.__get__(parent) is child:
            return text
    if type(child) is types.TracebackType:
        return ".exception()"
    return ""


def running_frames() -> Iterator[tuple[int, types.FrameType]]:
    """Yield the frames of functions that run now, with the number of their thread, the innermost first."""
    pending = list(sys._current_frames().items())  # noqa: SLF001 - the documented way to see other threads
    current: types.FrameType | None = None
    while pending:
        # The first is this very frame: a variable that kept it would be a cycle, with all that its callers hold.
        thread, current = pending.pop()
        while current is not None:
            yield thread, current
            current = current.f_back
