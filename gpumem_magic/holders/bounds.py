"""Containers that take only so much: a ``deque`` with a ``maxlen``, a ``functools`` cache with a ``maxsize``.

What fills one grows with each iteration and leaks nothing. No object's own code runs.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.model import Bound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.holders.model import HolderScan

__all__ = ["with_bounds"]

# The largest come first; a microsecond each.
_MOST_LOOKED_AT = 5000
_STEP = re.compile(r"\.(\w+)|\[('[^']*'|\d+)\]")
_CACHE: Any = type(functools.lru_cache(lambda: None))
_MAXLEN: Any = deque.__dict__["maxlen"]


def with_bounds(scan: HolderScan, space: Mapping[str, object]) -> HolderScan:
    """Return a scan that knows which of its containers are bounded.

    Parameters
    ----------
    scan
        Who holds what.
    space
        The notebook's names, as they are now.
    """
    found: dict[str, Bound] = {}
    for storage in scan.storages[:_MOST_LOOKED_AT]:
        root, rest = _split(storage.holders[0].path)
        if root in space and root not in found:
            _follow(space[root], root, rest, found)
    return replace(scan, bounds=found) if found else scan


def _split(path: str) -> tuple[str, str]:
    match = re.match(r"\w+", path)
    root = match[0] if match else ""
    return root, path[len(root) :]


def _follow(value: object, path: str, rest: str, found: dict[str, Bound]) -> None:
    """Walk a path's attributes and keys, and note bounded containers on it."""
    at = 0
    while True:
        bound = _bound(value)
        if bound is not None:
            found[path] = bound
            return
        step = _STEP.match(rest, at)
        if step is None:
            return
        try:
            value = _step(value, step)
        except (AttributeError, LookupError, TypeError):
            return
        at = step.end()
        path += step[0]


def _step(value: object, step: re.Match[str]) -> object:
    if step[1] is not None:
        # The object's own `__getattr__` is not asked.
        return object.__getattribute__(value, "__dict__")[step[1]]
    key: object = step[2][1:-1] if step[2].startswith("'") else int(step[2])
    if type(value) is dict:
        return value[key]
    if (type(value) is list or type(value) is tuple) and isinstance(key, int):
        return value[key]
    raise TypeError


def _bound(value: Any) -> Bound | None:
    # Never isinstance(), which asks the object's own __class__.
    if issubclass(type(value), deque):
        most = _MAXLEN.__get__(value)
        return None if most is None else Bound(deque.__len__(value), most)
    if type(value) is _CACHE:
        _, _, most, count = value.cache_info()
        return None if most is None else Bound(count, most)
    return None
