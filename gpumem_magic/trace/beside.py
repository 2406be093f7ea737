"""What a recorder knew besides torch's events, kept in the snapshots that we write: torch's own have no place for it.

It stands under a key of its own, by device, which torch's viewer and tools pass over::

    {"gpumem_magic": {"cuda:0": {"empty_cache_before": [120, 871], "limit": 42949672960, "total": 85899345920}}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = ["KEY", "Beside", "read_beside", "written"]

KEY = "gpumem_magic"
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Beside:
    """Beside the events of one device.

    Attributes
    ----------
    calls
        Events before which the program called ``empty_cache``, one for each call, ascending; a call that finds nothing
        to give back leaves no event. None when that is not known.
    limit
        Most bytes that torch might reserve: the device's, or the share that the process had set. None when not known.
    total
        Bytes of the device; None when not known.
    """

    calls: tuple[int, ...] | None = None
    limit: int | None = None
    total: int | None = None

    @property
    def fraction(self) -> int | None:
        """The limit, where it is less than the device has: a memory fraction was set."""
        is_less = self.limit is not None and self.total is not None and self.limit < self.total
        return self.limit if is_less else None


def written(beside: Beside) -> dict[str, Any]:
    """Return it as plain data, without what is not known."""
    fields = {
        "empty_cache_before": None if beside.calls is None else list(beside.calls),
        "limit": beside.limit,
        "total": beside.total,
    }
    return {name: value for name, value in fields.items() if value is not None}


def read_beside(found: object, events: int) -> Beside | None:
    """Read it back; what makes no sense is left out.

    Parameters
    ----------
    found
        What stands under the device's name, from anybody.
    events
        How many the device has.
    """
    if not isinstance(found, Mapping):
        return None
    calls = found.get("empty_cache_before")
    beside = Beside(_calls(calls, events), _bytes(found.get("limit")), _bytes(found.get("total")))
    return None if beside == Beside() else beside


def _calls(found: object, events: int) -> tuple[int, ...] | None:
    if not isinstance(found, Sequence) or not all(type(one) is int and 0 <= one <= events for one in found):
        return None
    return tuple(found) if all(first <= second for first, second in pairwise(found)) else None


def _bytes(found: object) -> int | None:
    return found if type(found) is int and 0 < found < _MOST_BYTES else None
