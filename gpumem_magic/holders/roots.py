"""Where references begin in a notebook: its variables, its output history, imported modules."""

from __future__ import annotations

import inspect
import re
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.holders.edges import own_attributes
from gpumem_magic.holders.model import HolderKind
from gpumem_magic.holders.suspended import locals_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "COMPILERS",
    "OWN_PACKAGE",
    "Root",
    "function_roots",
    "is_library",
    "library_of",
    "module_roots",
    "namespace_roots",
]

# IPython's own names in the user's namespace: inputs are text, the others its machinery.
_NOT_THE_USERS = re.compile(r"_i{1,3}|_i\d+|_ih|_dh|_oh|In|Out|get_ipython|exit|quit|open|__\w+__")
_OUTPUT = re.compile(r"_{1,3}|_\d+")
# What torch.compile puts into the globals of the code that it compiled.
_COMPILED = re.compile(r"__compiled_fn_\d|__resume_at_\d|__transformed_code_\d")
#: Modules of torch.compile, which keep graphs and constants of what was compiled.
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._guards", "torch.fx")
_SHORT = 24
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "\\Lib\\")
OWN_PACKAGE = __name__.partition(".")[0]


class Root(NamedTuple):
    """A named beginning of references; `where` follows a path that begins with it (`` in function train``)."""

    kind: HolderKind
    label: str
    value: object
    where: str = ""


# Keys that say themselves what they are; others' `repr` may do anything.
_PLAIN_KEYS = {int, float, bool, bytes, type(None)}


def namespace_roots(shell: Any) -> Iterator[Root]:
    """Yield the notebook's variables, then its output history.

    Parameters
    ----------
    shell
        An IPython shell, or anything with ``user_ns`` (a dict) and, optionally, ``user_ns_hidden`` and
        ``displayhook``.
    """
    whole: dict[object, object] = dict(shell.user_ns)
    names = {name: value for name, value in whole.items() if isinstance(name, str)}
    hidden: dict[str, object] = dict(getattr(shell, "user_ns_hidden", None) or {})
    yield from _variable_roots(names, hidden)
    for key, value in whole.items():
        if not isinstance(key, str):  # globals()[5] = …
            shown = repr(key) if type(key) in _PLAIN_KEYS else "…"
            yield Root(HolderKind.VARIABLE, f"globals()[{shown}]", value)
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


def function_roots(frame: types.FrameType) -> Iterator[Root]:
    """Yield the local variables of a function that runs; none where its variables are the module's."""
    code = frame.f_code
    if code.co_flags & inspect.CO_OPTIMIZED:
        for name, value in locals_of(frame):
            yield Root(HolderKind.VARIABLE, name, value, f" in function {code.co_name}")


def _variable_roots(names: Mapping[str, object], hidden: Mapping[str, object]) -> Iterator[Root]:
    """Yield the notebook's variables, and what the user's own modules among them hold."""
    for name, value in names.items():
        if _OUTPUT.fullmatch(name) or _NOT_THE_USERS.fullmatch(name):
            continue
        if name in hidden and hidden[name] is value:
            continue
        if _COMPILED.match(name):
            yield _compiled("the notebook", name, value)
            continue
        yield Root(HolderKind.VARIABLE, name, value)
        if type(value) is types.ModuleType and _is_the_users(value):
            for attribute, held in list(vars(value).items()):
                if not (isinstance(attribute, str) and attribute.startswith("__")):
                    yield Root(HolderKind.VARIABLE, f"{name}.{attribute if isinstance(attribute, str) else '…'}", held)


def _is_the_users(module: types.ModuleType) -> bool:
    """Tell a file of the user's own from a library."""
    file = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] == OWN_PACKAGE:
        return False
    if not isinstance(file, str):
        # Built-in modules have no file either, but a specification.
        return getattr(module, "__spec__", None) is None and module.__name__ != "__main__"
    return not is_library(file)


def library_of(kind: type) -> str:
    """Return the installed library that a class comes from, ``""`` for the user's own classes and the interpreter's."""
    name = own_attributes(kind).get("__module__")
    file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    return str(name).partition(".")[0] if isinstance(file, str) and is_library(file) else ""


def is_library(file: str) -> bool:
    """Tell a file of an installed library, or of the interpreter's own, by its path."""
    return any(part in file for part in _LIBRARIES)


def module_roots() -> Iterator[Root]:
    """Yield the globals of imported modules, the user's own files first."""
    main = sys.modules.get("__main__")
    modules = [
        (name, module)
        for name, module in list(sys.modules.items())
        # The namespace of a notebook is __main__'s, which multiprocessing knows by another name as well.
        if isinstance(module, types.ModuleType) and module is not main and name.partition(".")[0] != OWN_PACKAGE
    ]
    modules.sort(key=lambda item: "site-packages" in str(getattr(item[1], "__file__", None) or "/lib/python"))
    for name, module in modules:
        is_compiler = name.startswith(COMPILERS)
        for attribute, value in list(vars(module).items()):
            if is_compiler or _COMPILED.match(attribute):
                yield _compiled(name, attribute, value)
            else:
                yield Root(HolderKind.MODULE, f"module {name}: {attribute}", value)


def _compiled(module: str, name: str, value: object) -> Root:
    """Return a root for what torch.compile keeps, whose names are long and say nothing."""
    where = f"torch._inductor: {name}" if ".compile_tasks." in module else f"{module}: {name[:_SHORT]}"
    return Root(HolderKind.COMPILE_CACHE, f"torch.compile's cache ({where})", value)
