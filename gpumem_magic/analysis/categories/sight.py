"""Which role each lifetime was seen in: looks joined with allocations by address and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.recording.model import Roles

__all__ = ["Sighted", "sighted"]


class Sighted(NamedTuple):
    """Per lifetime: index into `Roles.roles` and into `Roles.names`, -1 for "not seen"; int16 and int32."""

    role: NDArray[np.int16]
    name: NDArray[np.int32]


def sighted(roles: Roles, key: str, address: NDArray[np.uint64], timeline: Timeline) -> Sighted:
    """Find the role of each lifetime.

    Parameters
    ----------
    roles
        What was seen.
    key
        The device, in torch's notation.
    address
        See `gpumem_magic.analysis.timeline.addresses`.
    timeline
        The lifetimes.

    Returns
    -------
    Sighted
        Of several roles, the first in the order of `Roles.roles`.
    """
    count = timeline.lifetimes
    role, name = np.full(count, -1, np.int16), np.full(count, -1, np.int32)
    own = np.zeros(0, bool)
    if key in roles.devices:
        own = roles.device == roles.devices.index(key)
    if not own.any() or not count:
        return Sighted(role, name)
    where, seen, label = roles.address[own], roles.role[own].astype(np.int16), roles.name[own]
    # Times as changes: what is alive at a look began at or before it and ended after it.
    moment = np.searchsorted(timeline.time_us, roles.time_us[own], "right") - 1
    places = np.unique(where)
    rank = np.minimum(np.searchsorted(places, address), len(places) - 1)
    candidates = np.flatnonzero(places[rank] == address)
    if not len(candidates):
        return Sighted(role, name)
    rank = rank[candidates]
    # Few places: numbers of 16 bits are sorted without comparing, and lifetimes come in order of their beginning.
    order = np.argsort(rank.astype(np.uint16) if len(places) < 1 << 16 else rank, kind="stable")
    width = timeline.changes + 2
    begins = rank[order].astype(np.int64) * width + timeline.start[candidates[order]] + 1
    found = np.searchsorted(begins, np.searchsorted(places, where).astype(np.int64) * width + moment + 1, "right") - 1
    look = np.flatnonzero(found >= 0)
    life = candidates[order[found[look]]]
    good = (address[life] == where[look]) & ((timeline.end[life] == -1) | (timeline.end[life] > moment[look]))
    look, life = look[good], life[good]
    # The best role is written last. Among equals, one with a name.
    best = np.lexsort((label[look] >= 0, -seen[look]))
    role[life[best]], name[life[best]] = seen[look[best]], label[look[best]]
    return Sighted(role, name)
