"""Models that are alive, and classes that were defined again: re-run cells make both in numbers. Plain values only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.census import census
from gpumem_magic.holders.edges import own_attributes, type_name
from gpumem_magic.holders.kinds import KindTable
from gpumem_magic.holders.model import LiveModel
from gpumem_magic.holders.tensors import loaded_torch
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.holders.tensors import Torch

__all__ = ["FormerClasses", "count_models", "live_models"]

_MOST_MODULES = 10_000


def live_models(torch: Torch) -> tuple[LiveModel, ...]:
    """Return every module that is no part of another one and has a parameter or buffer, the largest first.

    No object's own code runs. Empty where there are too many modules to look at.
    """
    return _models(torch) or ()


def _models(torch: Torch) -> tuple[LiveModel, ...] | None:
    with paused_collector():
        modules = census.alive(torch)[0]
    if len(modules) > _MOST_MODULES:
        return None
    inner = {id(child) for module in modules for child in _registry(module, "_modules")}
    found = []
    for module in modules:
        if id(module) in inner:
            continue
        keys = {key for tensor in _tensors(module) if (key := torch.storage(tensor)) is not None}
        if keys:
            places = frozenset((key.device, key.address) for key in keys)
            found.append(LiveModel(type_name(type(module)), places, sum(k.size for k in keys)))
    return tuple(sorted(found, key=lambda model: -model.bytes))


def count_models(name: str) -> int | None:
    """Return how many models of a class are alive, by the class's name; 0 without torch, None where not looked."""
    torch = loaded_torch()
    if torch is None:
        return 0
    with torch.undisturbed():
        models = _models(torch)
        return None if models is None else sum(model.name == name for model in models)


def _tensors(module: Any) -> list[object]:
    found: list[object] = []
    seen: set[int] = set()
    pending = [module]
    while pending:
        one = pending.pop()
        if id(one) not in seen:
            seen.add(id(one))
            found += [*_registry(one, "_parameters"), *_registry(one, "_buffers")]
            pending += _registry(one, "_modules")
    return found


def _registry(module: Any, name: str) -> list[object]:
    """Return what a module registered, of one sort; nothing of a module that is only half made or of another kind."""
    try:
        registry = object.__getattribute__(module, "__dict__").get(name)
    except (AttributeError, TypeError, ReferenceError):
        return []
    return [value for value in dict.values(registry) if value is not None] if isinstance(registry, dict) else []


class FormerClasses:
    """Tells classes that are not what their name means any more, because the cell or file with them ran again.

    Parameters
    ----------
    namespace
        The notebook's names, where its classes are looked up.
    """

    def __init__(self, namespace: Mapping[str, object]) -> None:
        self._namespace = namespace
        self._names = KindTable[str]()

    def name(self, kind: type) -> str:
        """Return the name of a class that has been defined again, ``""`` for every other class."""
        known = self._names.get(kind)
        if known is None:
            known = self._names.put(kind, self._name(kind))
        return known

    def _name(self, kind: type) -> str:
        name = type_name(kind)
        module = own_attributes(kind).get("__module__")
        # A class inside a function is another one each time; what is not at the top of its module cannot be looked up.
        if not isinstance(module, str) or type.__dict__["__qualname__"].__get__(kind) != name:
            return ""
        space = self._namespace if module == "__main__" else getattr(sys.modules.get(module), "__dict__", None)
        now = space.get(name) if isinstance(space, dict) else None
        if now is None or now is kind or not issubclass(type(now), type):
            return ""
        return name if own_attributes(now).get("__module__") == module else ""
