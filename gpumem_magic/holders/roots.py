"""Where references begin in a notebook: variables, output history, the last error, running code, modules."""

from __future__ import annotations

import re
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.holders.model import HolderKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Root", "error_roots", "module_roots", "namespace_roots", "running_roots"]

# IPython's own names in the user's namespace: inputs are text, the others its machinery.
_NOT_THE_USERS = re.compile(r"_i{1,3}|_i\d+|_ih|_dh|_oh|In|Out|get_ipython|exit|quit|open|__\w+__")
_OUTPUT = re.compile(r"_{1,3}|_\d+")
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "\\Lib\\")
_OWN_PACKAGE = __name__.partition(".")[0]


class Root(NamedTuple):
    """A named beginning of references."""

    kind: HolderKind
    label: str
    value: object


def namespace_roots(shell: Any) -> Iterator[Root]:
    """Yield the notebook's variables, then its output history.

    Parameters
    ----------
    shell
        An IPython shell, or anything with ``user_ns`` (a dict) and, optionally, ``user_ns_hidden`` and
        ``displayhook``.
    """
    names: dict[str, object] = dict(shell.user_ns)
    hidden: dict[str, object] = dict(getattr(shell, "user_ns_hidden", None) or {})
    yield from _variable_roots(names, hidden)
    outputs = names.get("_oh")
    if isinstance(outputs, dict):
        for number, value in list(outputs.items()):
            yield Root(HolderKind.OUTPUT, f"Out[{number}]", value)
    for name in sorted(filter(_OUTPUT.fullmatch, {*names, *hidden}), key=lambda name: (name.count("_") > 1, name)):
        # user_ns_hidden keeps the last three results even after `%reset out` (IPython 9).
        for space in (names, hidden):
            if name in space:
                yield Root(HolderKind.OUTPUT, name, space[name])
    hook = getattr(shell, "displayhook", None)
    for name in ("_", "__", "___"):
        value = getattr(hook, name, None)
        if value is not None:
            yield Root(HolderKind.OUTPUT, name, value)


def _variable_roots(names: Mapping[str, object], hidden: Mapping[str, object]) -> Iterator[Root]:
    """Yield the notebook's variables, and what the user's own modules among them hold."""
    for name, value in names.items():
        if _OUTPUT.fullmatch(name) or _NOT_THE_USERS.fullmatch(name):
            continue
        if name in hidden and hidden[name] is value:
            continue
        yield Root(HolderKind.VARIABLE, name, value)
        if type(value) is types.ModuleType and _is_the_users(value):
            for attribute, held in list(vars(value).items()):
                if not attribute.startswith("__"):
                    yield Root(HolderKind.VARIABLE, f"{name}.{attribute}", held)


def _is_the_users(module: types.ModuleType) -> bool:
    """Tell a file of the user's own from a library."""
    file = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] == _OWN_PACKAGE:
        return False
    if not isinstance(file, str):
        # Built-in modules have no file either, but a specification.
        return getattr(module, "__spec__", None) is None and module.__name__ != "__main__"
    return not any(part in file for part in _LIBRARIES)


def error_roots(shell: Any) -> Iterator[Root]:
    """Yield what the last error left behind: frames with their locals, in each of its several holders."""
    seen: set[int] = set()
    # sys.exc_info() first: an error that is being handled may be the last one too.
    handled = sys.exc_info()[1]
    errors: list[tuple[HolderKind, BaseException | None]] = [(HolderKind.HANDLED_ERROR, handled)]
    errors += [(HolderKind.LAST_ERROR, getattr(sys, name, None)) for name in ("last_exc", "last_value")]
    for kind, error in errors:
        for link in _chain(error):
            yield from _frames(kind, type(link).__name__, link.__traceback__, seen)
    name = type(getattr(sys, "last_value", None)).__name__
    yield from _frames(HolderKind.LAST_ERROR, name, getattr(sys, "last_traceback", None), seen)
    # IPython keeps the traceback a second time, to format it and for %tb.
    for attribute in ("InteractiveTB", "SyntaxTB"):
        formatter = getattr(shell, attribute, None)
        yield from _frames(HolderKind.LAST_ERROR, "error", getattr(formatter, "tb", None), seen)
        debugger = getattr(formatter, "pdb", None)
        for frame in filter(None, (getattr(debugger, "curframe", None), getattr(debugger, "botframe", None))):
            yield from _locals(HolderKind.DEBUGGER, "debugger", frame, seen)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    pending = [error]
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        pending += [link.__context__, link.__cause__]


def _frames(kind: HolderKind, error: str, traceback: types.TracebackType | None, seen: set[int]) -> Iterator[Root]:
    while traceback is not None:
        yield from _locals(kind, f"{kind.value}: {error}", traceback.tb_frame, seen)
        traceback = traceback.tb_next


def _locals(kind: HolderKind, what: str, frame: types.FrameType, seen: set[int]) -> Iterator[Root]:
    """Yield a frame's local variables; module-level frames hold the namespace itself and are passed over."""
    if id(frame) in seen or frame.f_locals is frame.f_globals or frame.f_code.co_name == "<module>":
        return
    seen.add(id(frame))
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OWN_PACKAGE:
        return
    for name, value in list(frame.f_locals.items()):
        yield Root(kind, f"{what} in {frame.f_code.co_name}(), local `{name}`", value)


def running_roots() -> Iterator[Root]:
    """Yield the locals of functions that run now, on every thread."""
    seen: set[int] = set()
    for frame in list(sys._current_frames().values()):  # noqa: SLF001 - the documented way to see other threads
        current: types.FrameType | None = frame
        while current is not None:
            yield from _locals(HolderKind.RUNNING, "running", current, seen)
            current = current.f_back


def module_roots() -> Iterator[Root]:
    """Yield the globals of imported modules, the user's own files first."""
    modules = [
        (name, module)
        for name, module in list(sys.modules.items())
        # The namespace of a notebook is __main__'s.
        if isinstance(module, types.ModuleType) and name != "__main__" and name.partition(".")[0] != _OWN_PACKAGE
    ]
    modules.sort(key=lambda item: "site-packages" in str(getattr(item[1], "__file__", None) or "/lib/python"))
    for name, module in modules:
        for attribute, value in list(vars(module).items()):
            yield Root(HolderKind.MODULE, f"module {name}: {attribute}", value)
