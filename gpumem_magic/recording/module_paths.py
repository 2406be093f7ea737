"""How a user would write the way to a part of a model, without running any of the model's code."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

__all__ = ["Parts", "attribute", "children", "joined"]

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


class Parts:
    """How a module names each one below it, ``.layers[3].mlp``; the nearest name counts. Keeps none of them.

    It is read level by level, no deeper than what is asked for.

    Parameters
    ----------
    parent
        The module.

    Attributes
    ----------
    is_read
        Everything was read; what joined the model since then is not known.
    """

    __slots__ = ("_found", "_level", "_seen", "is_read")

    def __init__(self, parent: Any) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._seen = {id(parent)}
        self._level: list[tuple[weakref.ref[Any], str]] = [(weakref.ref(parent), "")]
        self.is_read = False

    def path(self, module: Any, *, levels: int = 1_000) -> str | None:
        """Return the path of a module; None when it is in none of the nearest `levels`."""
        ref, path = self._found.get(id(module), (None, None))
        while ref is None or ref() is not module:
            if self.is_read or levels == 0:
                return None
            self._read_level()
            levels -= 1
            ref, path = self._found.get(id(module), (None, None))
        return path

    def _read_level(self) -> None:
        deeper = []
        for ref, path in self._level:
            own = attribute(ref(), "_modules")
            for name, below in list(own.items()) if isinstance(own, dict) else ():
                if below is None or id(below) in self._seen:
                    continue
                self._seen.add(id(below))
                with suppress(TypeError):  # no module, whatever it does there
                    entry = (weakref.ref(below), joined(path, name))
                    self._found[id(below)] = entry
                    deeper.append(entry)
        self._level = deeper
        self.is_read = not deeper
