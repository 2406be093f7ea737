"""Frozen dataclasses that are made in a quarter of the time.

The first measured cell of a process makes fifty of them. `dataclasses.dataclass(frozen=True)` writes six functions for
each class and compiles them: 0.3 to 0.6 ms a class. Here only ``__init__`` is compiled; what is the same for all
classes is shared.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool) -> Any:
        """Return a decorator that makes a class a frozen dataclass, equal and hashed by its fields.

        Fields may have ``default``, ``default_factory``, ``repr`` and ``compare``; the other functions of `dataclasses`
        take such classes and their instances as their own. There is no other form than a frozen one.
        """
        if not frozen:
            raise TypeError("for others there is dataclasses.dataclass")
        return _frozen


def _frozen(kind: type[Any]) -> type[Any]:
    dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)(kind)
    fields = dataclasses.fields(kind)
    equal, hashed = _comparing([field.name for field in fields if field.compare])
    methods = {
        "__init__": _init_of(kind, fields),
        "__repr__": _repr,
        "__eq__": equal,
        "__hash__": hashed,
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
    }
    own = vars(kind)
    for name, method in methods.items():
        # A class with an `__eq__` of its own has None for `__hash__`.
        if own.get(name) is None:
            setattr(kind, name, method)
    return kind


def _init_of(kind: type[Any], fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """Compile ``__init__``: one that took any arguments would be slow, and would say little in a help text."""
    # Names that no field has.
    known: dict[str, Any] = {"_assign_": object.__setattr__, "_missing_": dataclasses.MISSING}
    parameters = ["self"]
    lines = []
    for field in fields:
        name = value = field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}_"] = field.default_factory
            parameters.append(f"{name}=_missing_")
            value = f"_make_{name}_() if {name} is _missing_ else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}_"] = field.default
            parameters.append(f"{name}=_default_{name}_")
        else:
            parameters.append(name)
        lines.append(f" _assign_(self, {name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append(" self.__post_init__()")
    body = "\n".join(lines) or " pass"
    exec(f"def __init__({', '.join(parameters)}):\n{body}", known)  # noqa: S102 - of names of our own fields
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    init.__module__ = kind.__module__
    init.__annotations__ = {**{field.name: field.type for field in fields}, "return": None}
    return init


def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _comparing(names: list[str]) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    """Return ``__eq__`` and ``__hash__`` by some attributes."""
    compared: Callable[[Any], object] = attrgetter(*names) if names else type

    def equal(self: Any, other: object) -> bool:
        return compared(self) == compared(other) if type(other) is type(self) else NotImplemented

    def hashed(self: Any) -> int:
        return hash(compared(self))

    return equal, hashed


def _refuse_to_set(self: Any, name: str, value: object) -> None:  # noqa: ARG001 - what Python calls
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:  # noqa: ARG001 - what Python calls
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
