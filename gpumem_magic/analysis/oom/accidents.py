"""What the notebook keeps by accident: memory that nobody meant to hold when the request failed."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic._parsing import binding

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Group
    from gpumem_magic.analysis.oom.state import OomState
    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.recording.model import Failure

__all__ = ["Accident", "find_accidents"]


class Accident(NamedTuple):
    """Bytes, what keeps them (``"Out[7]"``), what gives them back, and whether nobody can have meant to keep them."""

    bytes: int
    holder: str
    cure: str
    is_sure: bool = True


# What a name held before is worth a verdict from this share of all that was live: a loop that fills a cache binds its
# variable anew as well, and there the old value is in the cache.
_WORTH_TELLING = 0.1
# A number in Out is nobody's trouble.
_LEAST, _LEAST_SHARE = 4096, 0.01
_KINDS = {
    "OUTPUT": ("the output history", "%gpumem_free --out"),
    "CYCLE": ("reference cycles that Python has not collected yet", "%gpumem_free"),
    "DEBUGGER": ("the debugger", "%gpumem_free"),
    "COMPILE_CACHE": ("torch.compile's cache, whose model is gone", "%gpumem_free --compiled"),
}


_RETRY = "try again after the `except` block, not inside it: the error that it handles keeps its frames' variables"


def find_accidents(
    key: str,
    state: OomState | None,
    failure: Failure | None,
    holders: HolderScan | None,
    line: Group | None = None,
) -> tuple[Accident, ...]:
    """Sum what was kept by accident when the request failed, largest first.

    Parameters
    ----------
    key
        The device.
    state
        The allocator's state at the failure.
    failure
        The error; `Failure.previous_error` says whether an older error was being kept.
    holders
        A scan made after the cell.
    line
        The line that failed. A name that it binds anew keeps its old value until the new one is complete.

    Notes
    -----
    An older error's memory is found without a scan: the interpreter keeps one error, so the new one replaces it, and
    what the old one held is given back between the failure and the end of the recording. What only the *new* error
    holds was in use when it happened, and is no accident.
    """
    found = []
    if state is not None and state.given_back and failure is not None and failure.previous_error is not None:
        holder = f"the error before this one ({failure.previous_error}), whose frames IPython keeps"
        found.append(Accident(state.given_back, holder, "%gpumem_free"))
    held: dict[str, int] = defaultdict(int)
    paths: dict[str, list[str]] = defaultdict(list)
    for storage in holders.storages if holders is not None else ():
        name = storage.holders[0].kind.name
        if storage.device != key or name not in _KINDS or not _was_alive(storage.address, state):
            continue
        held[name] += storage.size
        root = storage.holders[0].root
        if root not in paths[name]:
            paths[name].append(root)
    found += _handled(key, state, holders)
    for name, size in held.items():
        what, cure = _KINDS[name]
        roots = paths[name] if name == "OUTPUT" else []
        shown = ", ".join(roots[:3]) + (f" and {len(roots) - 3} more" if len(roots) > 3 else "")
        found.append(Accident(size, f"{what} ({shown})" if shown else what, cure))
    if holders is not None:
        found += _old_variables(key, state, holders, _bound_anew(line))
    least = max(_LEAST_SHARE * max((accident.bytes for accident in found), default=0), _LEAST)
    return tuple(sorted((one for one in found if one.bytes >= least), key=lambda accident: -accident.bytes))


def _handled(key: str, state: OomState | None, holders: HolderScan | None) -> list[Accident]:
    """Sum what the frames of an error kept that was being handled when the request failed: a retry in ``except``."""
    sizes: dict[str, int] = defaultdict(int)
    for storage in holders.storages if holders is not None else ():
        holder = storage.holders[0]
        if storage.device == key and holder.kind.name == "HANDLED_THEN" and _was_alive(storage.address, state):
            sizes[holder.root.partition(": ")[2]] += storage.size
    if not sizes:
        return []
    most = max(sizes, key=lambda root: sizes[root])
    text = f"the error that was being handled when this line ran ({most})"
    return [Accident(sum(sizes.values()), text, _RETRY)]


def _bound_anew(line: Group | None) -> str | None:
    """Return the name that a line binds to something that is made without it: ``model = Model()``."""
    bound = None if line is None or line.source is None else binding(line.source)
    return None if bound is None or bound.is_from_itself else bound.name


def _old_variables(key: str, state: OomState | None, holders: HolderScan, bound: str | None) -> list[Accident]:
    """Sum what variables hold that the cell has no use for: the old value of one that it binds, and forgotten ones."""
    sizes: dict[str, int] = defaultdict(int)
    for storage in holders.storages:
        holder = storage.holders[0]
        if storage.device != key or holder.kind.name not in {"VARIABLE", "GRAPH"}:
            continue
        name = re.split(r"[.\[ ]", holder.root, maxsplit=1)[0]
        if (name == bound or name in holders.idle) and _was_alive(storage.address, state):
            sizes[name] += storage.size
    found = []
    old = sizes.pop(bound, 0) if bound is not None else 0
    if old and (state is None or old >= _WORTH_TELLING * state.allocated):
        text = f"the old value of `{bound}`, which stays until this line has made the new one"
        found.append(Accident(old, text, f"del {bound} (with all that refers to it) before this line"))
    names = sorted(sizes, key=lambda name: -sizes[name])
    if names:
        shown = ", ".join(f"`{name}` ({holders.idle[name]})" for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        text = f"old variables that this cell does not use: {shown}{more}"
        # Their next cell may need them: they can go, but they are not called an accident.
        cure = f"%gpumem_free --vars {' '.join(names[:8])}"
        found.append(Accident(sum(sizes.values()), text, cure, is_sure=False))
    return found


def _was_alive(address: int, state: OomState | None) -> bool:
    if state is None:
        return True
    # A storage may begin inside a block only where something else cut it up; torch's own begin at the block's address.
    place = int(np.searchsorted(state.addresses, np.uint64(address)))
    return place < len(state.addresses) and int(state.addresses[place]) == address
