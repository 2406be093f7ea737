"""How one object holds another, in words: ``.weight``, ``[3]``, ``['loss']``, ``closure variable `x```."""

from __future__ import annotations

import _thread
import builtins
import contextvars
import functools
import gc
import itertools
import re
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.suspended import FRAMED, describe_future, describe_suspended, is_future

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Describe = Callable[[Any, object], "str | None"]

__all__ = [
    "GROUP",
    "ancestors",
    "describe_chain",
    "describe_edge",
    "key_text",
    "module_name",
    "own_attributes",
    "plain_attributes",
    "type_name",
]

# Python 3.11 has it.
GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)
_SHORT = 40
# By their ids: a class that is looked for among them would be asked for its hash, which may be code of the user's.
_PLAIN_KEYS = frozenset(map(id, (int, float, bool, bytes)))


def own_attributes(kind: type) -> Mapping[str, object]:
    """Return a class's own attributes, without running its metaclass's code."""
    found: Mapping[str, object] = type.__dict__["__dict__"].__get__(kind)
    return found


def type_name(kind: type) -> str:
    """Return a class's name, without running its metaclass's code."""
    name: str = type.__dict__["__name__"].__get__(kind)
    return name


def module_name(kind: type) -> str:
    """Return the name of a class's module, likewise; the interpreter's own classes keep none."""
    name = own_attributes(kind).get("__module__", "builtins")
    return name if isinstance(name, str) else ""


def ancestors(kind: type) -> tuple[type, ...]:
    """Return a class and all that it inherits from, in the order of look-ups, likewise."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def plain_attributes(value: Any) -> dict[str, object]:
    """Return an object's instance attributes without running any of its code (properties, ``__getattr__``)."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError, ReferenceError):
        attributes = None
    found: dict[str, object] = dict(attributes) if type(attributes) is dict else {}
    for owner in ancestors(type(value)):
        own = own_attributes(owner)
        slots: Any = own.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = own.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found.setdefault(name, member.__get__(value, type(value)))
                except AttributeError:
                    continue
    return found


def key_text(key: object) -> str:
    """Write a key; only plain keys are shown, since a tensor's repr is long and may run code."""
    if type(key) is str:
        return repr(key) if len(key) <= _SHORT else repr(key[:_SHORT] + "…")
    if key is None or id(type(key)) in _PLAIN_KEYS:
        return repr(key)
    if type(key) is tuple and len(key) <= 3:
        return "(" + ", ".join(map(key_text, key)) + ")"
    if issubclass(type(key), type):
        return type_name(key)  # type: ignore[arg-type]
    if issubclass(type(key), weakref.ref):
        # The key of a WeakKeyDictionary.
        referent: Any = weakref.ref.__call__(key)  # type: ignore[arg-type]
        return f"<{type_name(type(referent))}>"
    return f"<{type_name(type(key))}>"


def describe_edge(parent: Any, child: object, *, is_last: bool = False) -> str:
    """Say how `parent` holds `child`; the type of one of them when nothing better is known.

    `is_last`: what `child` is needs no words, since the path ends with it.
    """
    kind = type(parent)
    if is_future(kind):
        return describe_future(parent, child) or ""
    for family, describe in _DESCRIBE.items():
        # Never isinstance(): it asks the object's own __class__, which may run its code or be a dead proxy.
        if issubclass(kind, family):
            text = describe(parent, child)
            if text is not None:
                return text
            break
    if child is kind:
        return ".__class__"
    for name, value in plain_attributes(parent).items():
        if value is child:
            return f".{name}"
    if is_last or id(type(child)) in _PLAIN or issubclass(type(child), _ITERATORS):
        return f" ({type_name(kind)})"
    return f" → {type_name(type(child))}"


def _describe_dict(parent: dict[object, object], child: object) -> str | None:
    for key, value in list(dict.items(parent)):
        if value is child:
            return f"[{key_text(key)}]"
        if key is child:
            return " (a key)"
    return None


def _describe_sequence(parent: list[object] | tuple[object, ...], child: object) -> str | None:
    fields = getattr(type(parent), "_fields", ())
    plain: Any = next(kind for kind in (list, tuple, deque) if issubclass(type(parent), kind))
    # Not `iter(parent)`: a class of the user's may have code of its own there.
    for index, value in enumerate(plain.__iter__(parent)):
        if value is child:
            # Named tuples have better names than numbers.
            return f".{fields[index]}" if index < len(fields) else f"[{index}]"
    return None


def _describe_method(parent: types.MethodType, child: object) -> str:
    return ".__self__" if parent.__self__ is child else ".__func__"


def _describe_function(function: types.FunctionType, child: object) -> str:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell is child:
            return f" (closure variable `{name}`)"
    if function.__defaults__ is child or function.__kwdefaults__ is child:
        return " (default argument)"
    return ""


def _describe_partial(partial: functools.partial[object], child: object) -> str:
    if partial.args is child:
        return ".args"
    return ".keywords" if partial.keywords is child else ".func"


def _describe_class(parent: type, child: object) -> str | None:
    for name, value in list(own_attributes(parent).items()):
        if value is child:
            return f".{name}"
    return None


def _describe_error(error: BaseException, child: object) -> str | None:
    for name, text in _OF_AN_ERROR.items():
        if BaseException.__dict__[name].__get__(error) is child:
            return text
    is_group = GROUP is not None and issubclass(type(error), GROUP)
    return ".exceptions" if is_group and type(child) is tuple else None


_OF_AN_ERROR = {name: f".{name}" for name in ("__traceback__", "__cause__", "__context__", "args")}


def _describe_set(_parent: object, _child: object) -> str:
    return " (in the set)"


def _describe_nothing(_parent: object, _child: object) -> str:
    """Add nothing: what these hold stands for them, as a dict for its view or a function for a static method."""
    return ""


def _describe_traceback(_parent: types.TracebackType, _child: object) -> str:
    # However deep, what counts is the frame at its end, which names itself.
    return ""


def _describe_cache(_parent: object, _child: object) -> str:
    return " (functools cache)"


def _kinds_of_a_context() -> list[type]:
    """Return the types that hold the values of context variables: a context, its tree, and the tree's nodes."""
    context = contextvars.Context()
    marks: list[contextvars.ContextVar[None]] = [contextvars.ContextVar(f"mark {number}") for number in range(64)]
    for mark in marks:
        context.run(mark.set, None)
    found: dict[str, type] = {}
    pending: list[object] = [context]
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is not contextvars.ContextVar and value is not None and kind.__name__ not in found:
            found[kind.__name__] = kind
            pending += gc.get_referents(value)
    return list(found.values())


def _in_context(parent: object, child: object) -> str:
    """Name the variable of a context, whose tree of values has nodes of C alone."""
    inside = gc.get_referents(parent)
    # A node holds a name and its value in turn, and shows them from the last to the first.
    for value, variable in itertools.pairwise(inside):
        if value is child and type(variable) is contextvars.ContextVar:
            return f" (context variable `{variable.name}`)"
    return ""


_DESCRIBE: dict[type, Describe] = {
    type(functools.lru_cache(key_text)): _describe_cache,
    dict: _describe_dict,
    list: _describe_sequence,
    tuple: _describe_sequence,
    deque: _describe_sequence,
    set: _describe_set,
    frozenset: _describe_set,
    types.FunctionType: _describe_function,
    **dict.fromkeys((types.CellType, types.MappingProxyType, staticmethod, classmethod, property), _describe_nothing),
    types.MethodType: _describe_method,
    functools.partial: _describe_partial,
    type: _describe_class,
    BaseException: _describe_error,
    types.TracebackType: _describe_traceback,
    **dict.fromkeys(FRAMED, describe_suspended),
    **dict.fromkeys(_kinds_of_a_context(), _in_context),
}

_PLAIN = frozenset(map(id, (dict, list, tuple, set, frozenset, deque)))
_ITERATORS: tuple[Any, ...] = tuple(
    {type(iter(()))} | {type(iter([])), type(iter({}.values())), type(iter({}.items())), zip, map, filter, enumerate}
)

# A module's registries read as the attributes that a user types.
_REGISTRY = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")


def describe_chain(label: str, chain: Sequence[object], special: Describe | None = None) -> str:
    """Write a chain of holders as the path that a user would type.

    Parameters
    ----------
    label
        Name of the first object.
    chain
        Objects, each holding the next.
    special
        Asked first about every edge; returns None for edges that it does not know.
    """
    text = label
    # A function's cells are named as its variables, not as parts of the tuple that keeps them.
    chain = [link for number, link in enumerate(chain) if number == 0 or not _is_closure(chain[number - 1], link)]
    attributes_of: object = None
    is_local = False
    last = len(chain) - 2
    for index, (parent, child) in enumerate(itertools.pairwise(chain)):
        if type(parent) is _LOCAL and type(child) is dict:
            is_local = True
            continue
        if is_local and type(parent) is dict and type(child) is dict:
            # One thread's attributes, which it keeps by a weak reference to the thread.
            is_local, attributes_of = False, parent
            continue
        if attributes_of is not None and type(parent) is dict:
            # The instance's own __dict__ came before: its keys are attributes.
            names = [name for name, value in dict.items(parent) if value is child]
            text += f".{names[0]}" if names else ""
            attributes_of = None
            continue
        attributes_of = None
        edge = special(parent, child) if special is not None else None
        if edge is None and type(child) is dict and _is_instance_dict(parent, child):
            attributes_of = parent
            continue
        edge = describe_edge(parent, child, is_last=index == last) if edge is None else edge
        # " → deque (deque)" says it twice.
        text += "" if edge[2:-1] == type_name(type(parent)) and text.endswith(f" → {edge[2:-1]}") else edge
        if edge.startswith(".") and type_name(type(parent)) == "ScriptModule":
            # A scripted module's C++ side is no name that a user would type.
            text = text.removesuffix(edge).removesuffix("._c").removesuffix("._actual_script_module") + edge
    return _REGISTRY.sub(lambda match: f"[{match[1]}]" if match[1].isdigit() else f".{match[1]}", text)


def _is_closure(parent: object, child: object) -> bool:
    return type(parent) is types.FunctionType and child is parent.__closure__ and child is not None


_LOCAL = _thread._local  # noqa: SLF001 - what threading.local is


def _is_instance_dict(value: Any, attributes: object) -> bool:
    if issubclass(type(value), type):
        # Behind the view that a class shows of it.
        return any(behind is attributes for behind in gc.get_referents(own_attributes(value)))
    try:
        return object.__getattribute__(value, "__dict__") is attributes
    except (AttributeError, TypeError, ReferenceError):
        return False
