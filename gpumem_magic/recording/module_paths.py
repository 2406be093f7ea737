"""How a user would write the way to a part of a model, without running any of the model's code."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

__all__ = ["attribute", "children", "joined", "parts_below"]

# How torch.compile's wrapper holds the model: no part of a path that a user would type.
_COMPILED = "_orig_mod"


def attribute(value: Any, name: str) -> Any:
    """Return an instance attribute without running any of the object's code; None when there is none."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except (AttributeError, TypeError, ReferenceError):
        return None


def children(module: Any) -> dict[str, Any]:
    """Return a module's own modules by name."""
    found = attribute(module, "_modules")
    return {name: child for name, child in found.items() if child is not None} if isinstance(found, dict) else {}


def joined(path: str, name: str) -> str:
    """Extend a path by a name: ``model.layers`` and ``3`` make ``model.layers[3]``."""
    if name == _COMPILED:
        return path
    return f"{path}[{name}]" if name.isdigit() else f"{path}.{name}"


def parts_below(parent: Any) -> dict[int, tuple[weakref.ref[Any], str]]:
    """Return how `parent` names each module below it, ``.layers[3].mlp``; by identity, and the nearest name counts."""
    found: dict[int, tuple[weakref.ref[Any], str]] = {}
    level, seen = [(parent, "")], {id(parent)}
    while level:
        deeper = []
        for module, path in level:
            for name, below in children(module).items():
                if id(below) in seen:
                    continue
                seen.add(id(below))
                text = joined(path, name)
                with suppress(TypeError):  # no module, whatever it does there
                    found[id(below)] = (weakref.ref(below), text)
                deeper.append((below, text))
        level = deeper
    return found
