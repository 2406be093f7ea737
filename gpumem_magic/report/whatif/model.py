"""Settings side by side, as plain data. Sizes are bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["STACKLESS", "Answer", "Cap", "Facts", "Row", "bare"]

# A setting that gives back less than this share of what was reserved is no reason to change anything.
_WORTH = 0.02
_WORTH_BYTES = 20 << 20

#: Stands before the last known line where a request has none of its own, as in autograd's thread.
STACKLESS = "without a Python stack, after "
# Folders in front of a file's name.
_BARE = re.compile(r"^.*[/\\\\]")


@dataclass(frozen=True)
class Cap:
    """The most that may be reserved.

    Attributes
    ----------
    bytes
        The limit.
    why
        Where it comes from, for the reader.
    collects
        Whether torch knows of it, so that its garbage collector acts: a memory fraction is set. The device's size
        alone does not make it collect.
    """

    bytes: int
    why: str
    collects: bool = True


@dataclass(frozen=True)
class Row:
    """One setting's outcome, sizes in bytes.

    Attributes
    ----------
    conf
        The setting; empty for torch's defaults.
    low, expected, high
        Peak reserved bytes, until the end or until the program dies.
    verdict
        ``"fits"``, ``"oom"``, ``"oom_unless_fallback"``, ``"fits_unless_delayed"`` or ``"fits_unless_emptied"``, as in
        `gpumem_magic.allocator.whatif.Prediction`.
    unanimous
        False when the verdict depends on where the driver puts segments, or on the GPU's timing.
    retries
        Times the cache would be freed for a request.
    is_recorded
        The setting that was in force.
    inert
        Why it was not replayed, or None.
    dies_event, dies_lifetime, dies_bytes, dies_at
        The first request that fails: its event, lifetime (-1: it failed in the recording too), size, and its line. Of
        one that fits unless emptied: what then fails.
    emptied_lifetime, emptied_at
        Of one that fits unless emptied: the first allocation after the first call that would be fatal, and its line.
    doubts, agreement
        As in `gpumem_magic.allocator.whatif.Prediction`: why there is a range, and how firm the point is.
    """

    conf: str
    low: int
    expected: int
    high: int
    verdict: Literal["fits", "oom", "oom_unless_fallback", "fits_unless_delayed", "fits_unless_emptied"]
    unanimous: bool
    retries: int
    is_recorded: bool = False
    inert: str | None = None
    dies_event: int = -1
    dies_lifetime: int = -1
    dies_bytes: int | None = None
    dies_at: str | None = None
    emptied_lifetime: int = -1
    emptied_at: str | None = None
    doubts: tuple[str, ...] = ()
    agreement: float | None = 1.0

    @property
    def ends_well(self) -> bool:
        """True when it is expected to run to its end."""
        return self.verdict in {"fits", "fits_unless_delayed", "fits_unless_emptied"}


@dataclass(frozen=True)
class Facts:
    """What does not depend on a setting.

    Attributes
    ----------
    device, conf, reserved_peak, events
        Of the recording.
    deviation
        The first event at which the model differs from the recording, what it expected and what was recorded; None
        when it repeats every address.
    live_peak, packed_peak
        Bytes that no setting can go below, and of an arrangement that exists.
    warnings
        What lowers the confidence, one line each.
    has_stacks
        False when no stack tells which requests were cuDNN's, which it can do without.
    knows_calls
        True when every call of ``empty_cache`` is known, also those that left no event.
    """

    device: str
    conf: str
    reserved_peak: int
    events: int
    deviation: tuple[int, str, str] | None
    live_peak: int
    packed_peak: int
    warnings: tuple[str, ...]
    has_stacks: bool = True
    knows_calls: bool = False


@dataclass(frozen=True)
class Answer:
    """All settings side by side."""

    facts: Facts
    cap: Cap | None
    rows: tuple[Row, ...]

    @property
    def recorded(self) -> Row | None:
        """The setting that was in force."""
        return next((row for row in self.rows if row.is_recorded), None)

    @property
    def best(self) -> Row | None:
        """The setting worth changing to, or None when nothing would help.

        It must fit wherever the driver puts segments, and give back 2 % and 20 MiB at least in the whole range; where
        the recorded setting dies, fitting is enough, and without any other also fitting with a doubt.
        """
        recorded = self.recorded
        dies = recorded is not None and not recorded.ends_well
        peak = self.facts.reserved_peak
        worth = max(int(peak * _WORTH), _WORTH_BYTES)
        candidates = [
            row
            for row in self.rows
            if not row.is_recorded
            and row.inert is None
            and row.ends_well
            and row.unanimous
            and (dies or (row.verdict == "fits" and row.high <= peak - worth))
        ]
        return min(
            candidates,
            key=lambda row: (row.verdict != "fits", row.expected, row.conf.count(":"), row.high),
            default=None,
        )


def bare(answer: Answer) -> Answer:
    """Strip source lines and folders, for a report to share."""
    rows = (replace(row, dies_at=_bare(row.dies_at), emptied_at=_bare(row.emptied_at)) for row in answer.rows)
    return replace(answer, rows=tuple(rows))


def _bare(place: str | None) -> str | None:
    if place is None:
        return None
    after = STACKLESS if place.startswith(STACKLESS) else ""
    return after + _BARE.sub("", place.removeprefix(after).split(" `", 1)[0])
