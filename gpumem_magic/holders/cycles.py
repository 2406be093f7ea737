"""Reference cycles among objects that nothing named reaches: late, not lost."""

from __future__ import annotations

import gc
import types
from typing import TYPE_CHECKING

from gpumem_magic.holders.edges import describe_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["find_cycles"]


def find_cycles(targets: Iterable[object], reached: Mapping[int, object], own: Iterable[object]) -> dict[int, str]:
    """Find cycles that keep `targets` alive.

    Parameters
    ----------
    targets
        Objects that no root reaches.
    reached
        Objects that a root reaches, by id.
    own
        Objects of the scan itself, which are no holders.

    Returns
    -------
    dict
        ``id(target)`` → the cycle as a path, ``Net.fn → function (closure variable `self`) → Net``. Targets without
        one are left out.
    """
    skip = {*map(id, own), *reached}
    holders: dict[int, list[object]] = {}
    for value in gc.get_objects():
        if id(value) in skip or issubclass(type(value), (types.ModuleType, types.FrameType, type)):
            continue
        for child in gc.get_referents(value):
            holders.setdefault(id(child), []).append(value)
    return {id(target): path for target in targets if (path := _cycle_above(target, holders)) is not None}


def _cycle_above(target: object, holders: Mapping[int, list[object]]) -> str | None:
    """Walk upwards from `target` until an object comes twice."""
    below: dict[int, tuple[object, object | None]] = {id(target): (target, None)}
    pending = [target]
    while pending:
        value = pending.pop(0)
        for holder in holders.get(id(value), ()):
            if id(holder) in below:
                cycle = _path_down(holder, value, below)
                if cycle is not None:
                    return cycle
                continue
            below[id(holder)] = (holder, value)
            pending.append(holder)
    return None


def _path_down(holder: object, value: object, below: Mapping[int, tuple[object, object | None]]) -> str | None:
    """Write the cycle that closes because `holder`, already below `value`, holds it."""
    chain = [value]
    while chain[-1] is not holder:
        following = below[id(chain[-1])][1]
        if following is None:
            return None
        chain.append(following)
    # Begin where a reader recognises something: at an instance rather than at its dict, method or cell.
    plain = (dict, list, tuple, types.MethodType, types.FunctionType, types.CellType)
    start = next((index for index, link in enumerate(chain) if type(link) not in plain), 0)
    turned = [*chain[start:], *chain[: start + 1]]
    return f"{describe_chain(type(turned[0]).__name__, turned)} → {type(turned[0]).__name__}"
