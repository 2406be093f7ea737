"""Hooks that live on modules, by name: what puts a tensor on a module as an attribute is a hook, as a rule."""

from __future__ import annotations

import functools
import types
from typing import Any

from gpumem_magic.holders.edges import type_name

__all__ = ["hook_names"]

# Registries of torch.nn.Module, and what to call the hooks in them.
_REGISTRIES = {
    "_forward_pre_hooks": "before forward",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "before backward",
    "_backward_hooks": "backward",
}


def hook_names(module: Any) -> tuple[str, ...]:
    """Return the hooks of a module as ``keep() (forward)``, without running any code of it."""
    try:
        attributes = object.__getattribute__(module, "__dict__")
    except (AttributeError, TypeError, ReferenceError):
        return ()
    found = []
    for registry, when in _REGISTRIES.items():
        hooks = attributes.get(registry)
        if issubclass(type(hooks), dict):
            found += [f"{_name(hook)} ({when})" for hook in list(dict.values(hooks))]
    return tuple(dict.fromkeys(found))


def _name(hook: Any) -> str:
    if type(hook) is types.MethodType:
        hook = hook.__func__
    if type(hook) is functools.partial:
        hook = hook.func
    return f"{hook.__qualname__}()" if type(hook) is types.FunctionType else type_name(type(hook))
