"""Columns of one value, which take no memory.

Of a million events without stacks, on one stream and in no pool, three columns say nothing. Memory that a process has
not used before costs more than the work on it: 2 ms a MiB on a virtual machine, against 0.1 ms to fill it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["constant", "is_constant", "joined", "taken"]


def constant(value: int, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return a read-only column of `count` times the same value."""
    return np.broadcast_to(np.array(value, dtype), (count,))


def is_constant(column: NDArray[Any]) -> bool:
    """Tell whether a column is one that `constant` made."""
    return column.strides == (0,)


def taken(column: NDArray[Any], index: NDArray[np.integer[Any]] | slice) -> NDArray[Any]:
    """Return ``column[index]``, which of a constant is one again."""
    if is_constant(column) and not isinstance(index, slice):
        return np.broadcast_to(column[0], (len(index),)) if len(column) else column[index]
    return column[index]


def joined(*parts: NDArray[Any]) -> NDArray[Any]:
    """Join columns of one dtype end to end; constants of the same value, with few others of it, stay one."""
    longest = max(parts, key=len)
    if is_constant(longest) and len(longest) and all(np.all(part == longest[0]) for part in parts):
        return np.broadcast_to(longest[0], (sum(map(len, parts)),))
    return np.concatenate(parts)
