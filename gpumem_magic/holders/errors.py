"""What errors and debuggers keep: frames with their locals, in each of their several holders."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.edges import GROUP, plain_attributes, type_name
from gpumem_magic.holders.model import HolderKind
from gpumem_magic.holders.roots import OWN_PACKAGE, Root, is_library
from gpumem_magic.holders.suspended import locals_of, running_frames
from gpumem_magic.recording.failure import is_out_of_memory

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

__all__ = ["debuggers", "error_roots", "formatters", "frame_roots", "links", "traced_frames"]

_FORMATTERS = ("InteractiveTB", "SyntaxTB")


def _shown_locals() -> object:
    return sys._getframe().f_locals  # noqa: SLF001 - its type is asked for


# A function's locals are a dictionary up to Python 3.12; from 3.13 on a view of the frame, which keeps it alive.
_LOCALS = set(map(id, (dict, type(_shown_locals()))))


def formatters(shell: Any) -> list[Any]:
    """Return what IPython formats tracebacks with; each keeps the last one, for %tb and %debug."""
    return [found for name in _FORMATTERS if (found := getattr(shell, name, None)) is not None]


def links(*errors: object) -> Iterator[BaseException]:
    """Yield errors, those that they were raised from or while handling, and those that they group."""
    seen: set[int] = set()
    pending = list(errors)
    while pending:
        error = pending.pop()
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        pending += [BaseException.__dict__[name].__get__(error) for name in ("__context__", "__cause__")]
        if GROUP is not None and issubclass(type(error), GROUP):
            pending += GROUP.exceptions.__get__(error)


def error_roots(shell: Any) -> Iterator[Root]:
    """Yield what the last error left behind, what is being handled, and what debuggers keep."""
    seen: set[int] = set()
    # sys.exc_info() first: an error that is being handled may be the last one too.
    errors: list[tuple[HolderKind, object]] = [(HolderKind.HANDLED_ERROR, sys.exc_info()[1])]
    errors += [(HolderKind.LAST_ERROR, getattr(sys, name, None)) for name in ("last_exc", "last_value")]
    ended = getattr(shell, "last_execution_result", None)
    errors += [(HolderKind.LAST_ERROR, getattr(ended, name, None)) for name in ("error_in_exec", "error_before_exec")]
    for kind, error in errors:
        handled = _handled_then(error)
        for link in links(error):
            of = HolderKind.HANDLED_THEN if id(link) in handled else kind
            yield from _traceback(of, type_name(type(link)), link.__traceback__, seen)
    name = type(getattr(sys, "last_value", None)).__name__
    yield from _traceback(HolderKind.LAST_ERROR, name, getattr(sys, "last_traceback", None), seen)
    for formatter in formatters(shell):
        shown = getattr(formatter, "tb", None)
        # It keeps no error, but the frame of IPython's that it begins with does.
        for link in links(*_ended_with([] if shown is None else [shown.tb_frame])):
            yield from _traceback(HolderKind.LAST_ERROR, type_name(type(link)), link.__traceback__, seen)
        yield from _traceback(HolderKind.LAST_ERROR, "error", shown, seen)
    for debugger in debuggers(shell):
        yield from _of_debugger(shell, debugger, seen)


def _handled_then(error: object) -> frozenset[int]:
    """Return the ids of errors that were being handled when memory ran out: their frames were alive, and needlessly."""
    failed = next((link for link in links(error) if is_out_of_memory(link)), None)
    if failed is None:
        return frozenset()
    return frozenset(id(link) for link in links(failed) if link is not failed)


def debuggers(shell: Any) -> list[Any]:
    """Return the debuggers that something keeps: IPython's own, the last one of Python 3.14, and those that run now."""
    found = [getattr(formatter, "pdb", None) for formatter in formatters(shell)]
    pdb = sys.modules.get("pdb")
    found.append(getattr(getattr(pdb, "Pdb", None), "_last_pdb_instance", None))
    bdb: Any = getattr(sys.modules.get("bdb"), "Bdb", None)
    if bdb is not None:
        for _, frame in running_frames():
            if frame.f_code.co_name == "interaction":
                found += [value for _, value in locals_of(frame) if issubclass(type(value), bdb)]
        found += [debugger for _, debugger in traced_frames()]
    return list({id(one): one for one in found if one is not None}.values())


def traced_frames() -> Iterator[tuple[types.FrameType, Any]]:
    """Yield running frames with the debugger that once traced them: ``set_trace()`` leaves itself on every caller."""
    bdb: Any = getattr(sys.modules.get("bdb"), "Bdb", None)
    for _, frame in running_frames() if bdb is not None else ():
        debugger = getattr(frame.f_trace, "__self__", None)
        if issubclass(type(debugger), bdb):
            yield frame, debugger


def _of_debugger(shell: Any, debugger: Any, seen: set[int]) -> Iterator[Root]:
    """Yield the frames of a debugger; one that was left keeps the locals of the frame that it showed, without it."""
    stack = getattr(debugger, "stack", None)
    frames = [getattr(debugger, "curframe", None), getattr(debugger, "botframe", None)]
    frames += [entry[0] for entry in stack if type(entry) is tuple] if type(stack) is list else []
    for frame in frames:
        if frame is not None:
            yield from frame_roots(HolderKind.DEBUGGER, "debugger", frame, seen)
    yield from _shown_in(shell, debugger)
    chain = getattr(debugger, "_chained_exceptions", None)
    errors = [*(chain if type(chain) is tuple else ()), *_ended_with(frames)]
    for error in links(*errors):
        yield from _traceback(HolderKind.DEBUGGER, f"debugger: {type_name(type(error))}", error.__traceback__, seen)


def _shown_in(shell: Any, debugger: Any) -> Iterator[Root]:
    """Yield the locals that a debugger shows, or showed when it was left."""
    try:
        shown = debugger.curframe_locals
    except AttributeError:  # never started; from 3.14 on it is asked of the frame
        return
    if id(type(shown)) in _LOCALS and shown is not shell.user_ns:
        for name, value in list(shown.items()):
            yield Root(HolderKind.DEBUGGER, f"debugger, local `{name}`", value)


def _ended_with(frames: Iterable[types.FrameType | None]) -> Iterator[object]:
    """Yield the errors of the cells that frames belong to: each frame keeps its callers, and IPython's the result."""
    running = {id(frame) for _, frame in running_frames()}
    seen: set[int] = set()
    for start in frames:
        frame = start
        while frame is not None and id(frame) not in running and id(frame) not in seen:
            seen.add(id(frame))
            if frame.f_code.co_name == "run_code":
                for _, value in locals_of(frame):
                    yield plain_attributes(value).get("error_in_exec")
            frame = frame.f_back


def _traceback(kind: HolderKind, error: str, traceback: types.TracebackType | None, seen: set[int]) -> Iterator[Root]:
    what = error if kind is HolderKind.DEBUGGER else f"{kind.value}: {error}"
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    # The user's own functions first: `self` in forward() tells more than in a library's wrapper around it.
    for frame in sorted(frames, key=lambda frame: is_library(frame.f_code.co_filename)):
        yield from frame_roots(kind, what, frame, seen)


def frame_roots(kind: HolderKind, what: str, frame: types.FrameType, seen: set[int], after: str = "") -> Iterator[Root]:
    """Yield a frame's local variables; module-level frames hold the namespace itself and are passed over.

    `after` follows the name of the function.
    """
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if id(frame) in seen or frame.f_code.co_name == "<module>" or not (is_function or _has_own_names(frame)):
        return
    seen.add(id(frame))
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == OWN_PACKAGE:
        return
    for name, value in locals_of(frame):
        yield Root(kind, f"{what} in {frame.f_code.co_name}(){after}, local `{name}`", value)


def _has_own_names(frame: types.FrameType) -> bool:
    """Tell a class body from code that runs in the module's namespace."""
    return frame.f_locals is not frame.f_globals
