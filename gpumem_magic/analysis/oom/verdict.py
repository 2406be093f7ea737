"""Which cause the evidence shows.

The causes are asked in order of how surely each can be told, and of how little it takes to cure it:

1. The request alone exceeds what the device has besides this process's context: nothing else matters.
2. The same under the limit of this process.
3. What torch holds free would cover what was short, but not in one piece: fragmentation; or a setting against it that
   never took effect.
4. What was kept by accident covers what was short.
5. The limit of this process refused what the driver had.
6. Other processes, or memory of this process outside torch, cover what was short.
7. Live tensors fill the device: true demand.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from gpumem_magic.analysis.oom.evidence import USUAL_OUTSIDE

if TYPE_CHECKING:
    from gpumem_magic.analysis.oom.evidence import Evidence

__all__ = ["Cause", "decide", "limit_was_in_the_way", "scattered"]

MIB, GIB = 1 << 20, 1 << 30
# Free pieces below these shares of what is reserved are how any allocator looks that is full.
_MATERIAL_FREE = 0.05
_MATERIAL_REQUEST = 0.02
# What something else took meanwhile is a finding from here on: kernels that are loaded late take some dozen MiB.
_MATERIAL_TAKEN = 128 * MIB
# A device is full when the driver has less than this left.
_FULL = 0.02


class Cause(enum.Enum):
    """Why memory ran out."""

    REQUEST = "the request alone exceeds the device"
    FRAGMENTATION = "fragmentation"
    SETTING = "a setting that never took effect"
    ACCIDENT = "memory kept by accident"
    LIMIT = "the limit of this process"
    OTHERS = "other processes"
    OUTSIDE = "memory outside torch"
    DEMAND = "true demand of live tensors"
    UNKNOWN = "unknown"


def decide(evidence: Evidence) -> Cause:
    """Name the cause that the evidence shows; `Cause.UNKNOWN` when it does not tell."""
    if evidence.kind in {"absurd", "buffer", "rejected"}:
        return Cause.LIMIT if evidence.kind == "rejected" else Cause.REQUEST
    if evidence.kind in {"killed", "shared"}:
        return Cause.LIMIT if evidence.kind == "shared" else Cause.UNKNOWN
    if evidence.kind in {"driver", "library"}:
        return _without_request(evidence)
    return _on_host(evidence) if evidence.backend == "cpu" else _on_device(evidence)


def _on_device(evidence: Evidence) -> Cause:
    request = evidence.request
    if request is None:
        return Cause.UNKNOWN
    beyond = evidence.limit is not None and request.low > evidence.limit.high
    if _exceeds_device(evidence) or (beyond and evidence.backend == "mps"):
        return Cause.REQUEST
    if beyond:
        return Cause.LIMIT
    if scattered(evidence):
        settings = evidence.settings
        return Cause.SETTING if settings is not None and settings.lost is not None else Cause.FRAGMENTATION
    short = evidence.shortfall
    kept = sum(accident.bytes for accident in evidence.accidents)
    if kept >= max(short or request.value, MIB):
        return Cause.ACCIDENT
    if limit_was_in_the_way(evidence):
        return Cause.LIMIT
    return Cause.UNKNOWN if short is None else _who_fills(evidence, short)


def _exceeds_device(evidence: Evidence) -> bool:
    total, request = evidence.total, evidence.request
    if total is None or request is None:
        return False
    outside = evidence.outside.low if evidence.outside is not None else 0
    return request.low + min(outside, USUAL_OUTSIDE) > total.high


def scattered(evidence: Evidence) -> bool:
    """Return whether torch held enough free memory for the request, in pieces or where the request may not go."""
    state, request = evidence.state, evidence.request
    if request is None or evidence.reserved is None:
        return False
    if state is not None:
        if state.largest >= request.value:
            return False
        free = max(state.usable, state.private, state.other_stream)
    elif evidence.allocated is not None and evidence.backend != "mps":
        # What a message calls unallocated may lie in other streams' segments too; which, it does not say.
        free = evidence.reserved.minus(evidence.allocated).value
    else:
        return False
    reserved = evidence.reserved.value
    short = evidence.shortfall or request.value
    if free < short or free == 0:
        return False
    return free >= _MATERIAL_FREE * reserved or free >= request.value >= _MATERIAL_REQUEST * reserved


def limit_was_in_the_way(evidence: Evidence) -> bool:
    """Return whether the driver would have given what the limit of this process refused."""
    segment, free = evidence.segment, evidence.device_free
    if segment is None or evidence.backend == "mps":
        return False
    if evidence.limit is not None and evidence.reserved is not None:
        refused = evidence.reserved.value + segment.value > evidence.limit.value
        return refused and (free is None or free.value >= segment.value)
    # Nothing else refuses what the driver has. Only the exact number of an event is worth this conclusion.
    return evidence.state is not None and free is not None and free.value >= segment.value


def _who_fills(evidence: Evidence, short: int) -> Cause:
    found = _who_holds(evidence, short)
    taken = evidence.taken
    if taken is None or taken < max(short, _MATERIAL_TAKEN) or found in {Cause.OTHERS, Cause.OUTSIDE}:
        return found
    # The readings came when it was over; the recording shows that torch had had room for it.
    others, outside = evidence.others, evidence.outside
    is_own = others is not None and outside is not None and outside.value - USUAL_OUTSIDE > others.value
    return Cause.OUTSIDE if is_own else Cause.OTHERS


def _who_holds(evidence: Evidence, short: int) -> Cause:
    others = evidence.others.value if evidence.others is not None else 0
    outside = max(evidence.outside.value - USUAL_OUTSIDE, 0) if evidence.outside is not None else 0
    if evidence.backend == "mps":
        own = evidence.allocated.value if evidence.allocated is not None else 0
        return (
            Cause.OUTSIDE
            if evidence.outside is not None and evidence.outside.value >= max(short, own)
            else (Cause.DEMAND)
        )
    total, reserved = evidence.total, evidence.reserved
    if evidence.unexplained is not None:
        # Not told apart; a context alone is no finding.
        return Cause.OTHERS if evidence.unexplained.value - USUAL_OUTSIDE >= max(short, MIB) else Cause.DEMAND
    if total is not None and reserved is not None:
        slack = 0.01 * total.value
        if max(others, outside) < max(short, slack):
            return Cause.DEMAND
    elif max(others, outside) < short or max(others, outside) == 0:
        return Cause.DEMAND if reserved is not None else Cause.UNKNOWN
    return Cause.OTHERS if others >= outside else Cause.OUTSIDE


def _without_request(evidence: Evidence) -> Cause:
    """Judge an error that names no sizes, by who fills the device."""
    total, free, reserved = evidence.total, evidence.device_free, evidence.reserved
    if total is None or free is None:
        return Cause.UNKNOWN
    others = evidence.others.value if evidence.others is not None else 0
    outside = evidence.outside.value if evidence.outside is not None else 0
    own = reserved.value if reserved is not None else 0
    if free.value > _FULL * total.value + GIB:
        return Cause.UNKNOWN
    # Libraries ask for megabytes: what was kept by accident is enough where it is a good part of what torch holds.
    kept = sum(accident.bytes for accident in evidence.accidents)
    if kept >= max(256 * MIB, 0.1 * own):
        return Cause.ACCIDENT
    if others > max(own, outside):
        return Cause.OTHERS
    if evidence.unexplained is not None and evidence.unexplained.value > own:
        return Cause.OTHERS
    if outside > own:
        return Cause.OUTSIDE
    allocated = evidence.allocated.value if evidence.allocated is not None else own
    # Torch keeps what it freed, and a library cannot get at it.
    return Cause.OUTSIDE if own - allocated >= max(256 * MIB, 0.1 * own) else Cause.DEMAND


def _on_host(evidence: Evidence) -> Cause:
    request, total, free = evidence.request, evidence.total, evidence.device_free
    if request is not None and total is not None and request.low > total.high:
        return Cause.REQUEST
    if total is None or free is None:
        return Cause.UNKNOWN
    if request is None:
        return _without_size(evidence)
    kept = sum(accident.bytes for accident in evidence.accidents)
    short = max(request.value - free.value, 0)
    # A limit that the driver does not tell leaves no number of what was short: all of the request may have been.
    if kept >= max(short or request.value, MIB):
        return Cause.ACCIDENT
    if request.value <= free.value:
        return Cause.LIMIT
    others = evidence.others.value if evidence.others is not None else 0
    own = evidence.process.value if evidence.process is not None else 0
    return Cause.OTHERS if others >= short and others > own else Cause.DEMAND


def _without_size(evidence: Evidence) -> Cause:
    """Judge a bare ``MemoryError``, which does not say how much was asked for."""
    total, free, process = evidence.total, evidence.device_free, evidence.process
    if total is not None and free is not None and free.value < _FULL * total.value:
        others = evidence.others.value if evidence.others is not None else 0
        return Cause.OTHERS if others > (process.value if process is not None else 0) else Cause.DEMAND
    # With memory to spare, it was a limit, or more than the machine has: which of the two, only a limit that is set
    # tells.
    return Cause.UNKNOWN if evidence.limit is None else Cause.LIMIT
