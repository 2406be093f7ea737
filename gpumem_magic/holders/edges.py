"""How one object holds another, in words: ``.weight``, ``[3]``, ``['loss']``, ``closure variable `x```."""

from __future__ import annotations

import functools
import itertools
import re
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Describe = Callable[[Any, object], "str | None"]

__all__ = ["describe_chain", "describe_edge", "key_text", "plain_attributes"]

_SHORT = 40


def plain_attributes(value: Any) -> dict[str, object]:
    """Return an object's instance attributes without running any of its code (properties, ``__getattr__``)."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError, ReferenceError):
        attributes = None
    found: dict[str, object] = dict(attributes) if type(attributes) is dict else {}
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = owner.__dict__.get(name)
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
    if key is None or type(key) in {int, float, bool, bytes}:
        return repr(key)
    if type(key) is tuple and len(key) <= 3:
        return "(" + ", ".join(map(key_text, key)) + ")"
    return f"<{type(key).__name__}>"


def describe_edge(parent: Any, child: object) -> str:
    """Say how `parent` holds `child`; a generic ``→ Type`` when nothing better is known."""
    kind = type(parent)
    for family, describe in _DESCRIBE.items():
        # Never isinstance(): it asks the object's own __class__, which may run its code or be a dead proxy.
        if issubclass(kind, family):
            text = describe(parent, child)
            if text is not None:
                return text
            break
    for name, value in plain_attributes(parent).items():
        if value is child:
            return f".{name}"
    return f" → {type(child).__name__}"


def _describe_dict(parent: dict[object, object], child: object) -> str | None:
    for key, value in list(dict.items(parent)):
        if value is child:
            return f"[{key_text(key)}]"
        if key is child:
            return " (a key)"
    return None


def _describe_sequence(parent: list[object] | tuple[object, ...], child: object) -> str | None:
    fields = getattr(type(parent), "_fields", ())
    for index, value in enumerate(tuple(parent)):
        if value is child:
            # Named tuples have better names than numbers.
            return f".{fields[index]}" if index < len(fields) else f"[{index}]"
    return None


def _describe_cell(_parent: types.CellType, _child: object) -> str:
    return ""


def _describe_method(parent: types.MethodType, child: object) -> str:
    return ".__self__" if parent.__self__ is child else ".__func__"


def _describe_suspended(parent: Any, child: object) -> str | None:
    frame, what = _frame_of(parent)
    if frame is None:
        return None
    if frame is child:
        return ""
    for name, value in list(frame.f_locals.items()):
        if value is child:
            return f" ({what} {frame.f_code.co_name}, local `{name}`)"
    return None


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


def _frame_of(value: Any) -> tuple[types.FrameType | None, str]:
    kind = type(value)
    if kind is types.FrameType:
        return value, "frame"
    if kind is types.GeneratorType:
        return value.gi_frame, "generator"
    if kind is types.CoroutineType:
        return value.cr_frame, "coroutine"
    return value.ag_frame, "generator"


def _describe_class(parent: type, child: object) -> str | None:
    for name, value in list(vars(parent).items()):
        if value is child:
            return f".{name}"
    return None


def _describe_error(error: BaseException, child: object) -> str | None:
    for name in ("__traceback__", "__cause__", "__context__"):
        if getattr(error, name) is child:
            return f".{name}"
    return ".args" if error.args is child else None


def _describe_traceback(_parent: types.TracebackType, _child: object) -> str:
    # However deep, what counts is the frame at its end, which names itself.
    return ""


def _describe_cache(_parent: object, _child: object) -> str:
    return " (functools cache)"


_DESCRIBE: dict[type, Describe] = {
    type(functools.lru_cache(key_text)): _describe_cache,
    dict: _describe_dict,
    list: _describe_sequence,
    tuple: _describe_sequence,
    types.FunctionType: _describe_function,
    types.CellType: _describe_cell,
    types.MethodType: _describe_method,
    functools.partial: _describe_partial,
    type: _describe_class,
    BaseException: _describe_error,
    types.TracebackType: _describe_traceback,
    types.FrameType: _describe_suspended,
    types.GeneratorType: _describe_suspended,
    types.CoroutineType: _describe_suspended,
    types.AsyncGeneratorType: _describe_suspended,
}

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
    attributes_of: object = None
    for parent, child in itertools.pairwise(chain):
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
        text += describe_edge(parent, child) if edge is None else edge
    return _REGISTRY.sub(lambda match: f"[{match[1]}]" if match[1].isdigit() else f".{match[1]}", text)


def _is_instance_dict(value: object, attributes: object) -> bool:
    try:
        return object.__getattribute__(value, "__dict__") is attributes
    except (AttributeError, TypeError, ReferenceError):
        return False
