"""What the notebook keeps by accident: memory that nobody meant to hold when the request failed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gpumem_magic.analysis.oom.state import OomState
    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.recording.model import Failure

__all__ = ["Accident", "find_accidents"]


class Accident(NamedTuple):
    """Bytes, what keeps them (``"Out[7]"``), and what gives them back."""

    bytes: int
    holder: str
    cure: str


_KINDS = {
    "OUTPUT": ("the output history", "%gpumem_free --out"),
    "CYCLE": ("reference cycles that Python has not collected yet", "%gpumem_free"),
    "DEBUGGER": ("the debugger", "%gpumem_free"),
}


def find_accidents(
    key: str, state: OomState | None, failure: Failure | None, holders: HolderScan | None
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
    for name, size in held.items():
        what, cure = _KINDS[name]
        roots = paths[name] if name == "OUTPUT" else []
        shown = ", ".join(roots[:3]) + (f" and {len(roots) - 3} more" if len(roots) > 3 else "")
        found.append(Accident(size, f"{what} ({shown})" if shown else what, cure))
    return tuple(sorted(found, key=lambda accident: -accident.bytes))


def _was_alive(address: int, state: OomState | None) -> bool:
    if state is None:
        return True
    # A storage may begin inside a block only where something else cut it up; torch's own begin at the block's address.
    place = int(np.searchsorted(state.addresses, np.uint64(address)))
    return place < len(state.addresses) and int(state.addresses[place]) == address
