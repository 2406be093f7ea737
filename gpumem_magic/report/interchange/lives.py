"""One device of a view document as numbers again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["Lives", "owner_name", "read_lives", "stack_frames"]


@dataclass(frozen=True)
class Lives:
    """Allocations of a device, and the sums of those that the document does not keep singly.

    Attributes
    ----------
    time_us, begin_us
        Of each change, and of the recording's beginning; Unix microseconds.
    start, end
        Changes at which each begins and ends; -1: there before, alive at the end. Shape ``(n,)``.
    start_us, end_us
        The same in Unix microseconds, -1 as the recording's own beginning and end.
    bytes, group, stack
        Allocated bytes; index into the device's groups and the header's stacks.
    sum_time_us, sum_group, sum_value
        Ends of the bins, shape ``(bins,)``; owner of each row, shape ``(k,)``; bytes at each end, shape ``(k, bins)``.
    peak_us
        The peak's time; where it is not known, that of the beginning.
    """

    time_us: NDArray[np.int64]
    begin_us: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    start_us: NDArray[np.int64]
    end_us: NDArray[np.int64]
    bytes: NDArray[np.int64]
    group: NDArray[np.int64]
    stack: NDArray[np.int64]
    sum_time_us: NDArray[np.int64]
    sum_group: NDArray[np.int64]
    sum_value: NDArray[np.int64]
    peak_us: int

    def at_peak(self) -> NDArray[np.bool_]:
        """Return which are alive at the peak: of the changes in its microsecond, after the one that reached it."""
        states = self.states(np.ones(len(self.bytes), bool))
        last = int(np.searchsorted(self.time_us, self.peak_us, "right"))
        first = min(int(np.searchsorted(self.time_us, self.peak_us, "left")) + 1, last)
        peak = first + int(np.argmax(states[first : last + 1]))
        return (self.start < peak) & ((self.end < 0) | (self.end >= peak))

    def sums_at(self, time_us: int) -> NDArray[np.int64]:
        """Return the sums at the end of the last bin up to a time, shape ``(k,)``."""
        at = int(np.searchsorted(self.sum_time_us, time_us, "right")) - 1
        return self.sum_value[:, at] if at >= 0 else np.zeros(len(self.sum_group), np.int64)

    def states(self, own: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the bytes of some allocations before the first change and after each, shape ``(changes + 1,)``."""
        delta = np.zeros(len(self.time_us) + 1, np.int64)
        ended = own & (self.end >= 0)
        np.add.at(delta, self.start[own] + 1, self.bytes[own])
        np.subtract.at(delta, self.end[ended] + 1, self.bytes[ended])
        return np.cumsum(delta)

    def curve(self, group: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the times at which allocated bytes change, and the bytes from each on: of one owner, or of all."""
        own = np.ones(len(self.bytes), bool) if group is None else self.group == group
        rows = np.ones(len(self.sum_group), bool) if group is None else self.sum_group == group
        states = self.states(own)
        sums = np.diff(self.sum_value[rows].sum(axis=0), prepend=0)
        time = np.concatenate([[self.begin_us], self.time_us, self.sum_time_us])
        delta = np.concatenate([states[:1], np.diff(states), sums])
        order = np.argsort(time, kind="stable")
        time, delta = time[order], delta[order]
        moved = delta != 0
        moved[:1] = True
        return time[moved], np.cumsum(delta)[moved]

    def peaks(self, groups: int) -> NDArray[np.int64]:
        """Return the most bytes that each owner held, in one pass over all of them; shape ``(groups,)``."""
        moments = np.concatenate([[self.begin_us], self.time_us, self.sum_time_us])
        # Each moment's place in time; changes of one microsecond keep their order, as in `curve`.
        place = np.empty(len(moments), np.int64)
        place[np.argsort(moments, kind="stable")] = np.arange(len(moments))
        ended = self.end >= 0
        sums = np.diff(self.sum_value, axis=1, prepend=0)
        row, at = np.nonzero(sums)
        owner = np.concatenate([self.group, self.group[ended], self.sum_group[row]])
        when = np.concatenate([place[self.start + 1], place[self.end[ended] + 1], place[len(self.time_us) + 1 + at]])
        delta = np.concatenate([self.bytes, -self.bytes[ended], sums[row, at]])
        order = np.lexsort((when, owner))
        owner, when, total = owner[order], when[order], np.cumsum(delta[order])
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        held = total - np.repeat(total[first] - delta[order][first], np.diff(first, append=len(owner)))
        # Between two changes of one moment nothing was held.
        settled = (np.diff(owner, append=-1) != 0) | (np.diff(when, append=-1) != 0)
        found = np.zeros(groups, np.int64)
        np.maximum.at(found, owner[settled], held[settled])
        return found


def read_lives(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], index: int) -> Lives:
    """Read device `index` of a decoded view document."""
    device, prefix = header["devices"][index], f"d{index}."
    timeline, begin, finish = device["timeline"], int(device["startUs"]), int(device["endUs"])

    def column(name: str) -> NDArray[np.int64]:
        return arrays[prefix + name].astype(np.int64)

    time = begin + np.cumsum(column("t"))
    old = int(timeline["preexisting"])
    start = np.concatenate([np.full(old, -1), np.cumsum(column("start"))])
    span = column("span")
    end = np.where(span > 0, start + span, -1)
    # Indexing with -1 takes the last one, which the two masks below replace.
    moments = time if len(time) else np.array([begin])
    start_us = np.where(start >= 0, moments[start], begin)
    end_us = np.where(end >= 0, moments[end], finish)
    sizes = arrays[prefix + "sizes"]
    rest = timeline["rest"]
    bins = int(rest["bins"]) if rest else 0
    groups = column("rest.group") if rest else np.zeros(0, np.int64)
    peak_us = begin if device["headline"]["peakUs"] is None else int(device["headline"]["peakUs"])
    return Lives(
        time,
        begin,
        start,
        end,
        start_us,
        end_us,
        sizes[column("bytes")].astype(np.int64),
        column("group"),
        column("stack"),
        begin + column("rest.t")[1:] if rest else np.zeros(0, np.int64),
        groups,
        column("rest.value").reshape(len(groups), bins) if rest else np.zeros((0, 0), np.int64),
        peak_us,
    )


def owner_name(group: Mapping[str, Any]) -> str:
    """Name an owner: its cell, its label, its line of source."""
    name = group["label"] if group["cell"] is None else f"{group['cell']} {group['label']}"
    return name if not group["source"] else f"{name}: {' '.join(group['source'].split())}"


def stack_frames(header: Mapping[str, Any], stack: int) -> list[tuple[str, str, int]]:
    """Return a stack as (function, file, line), outermost first."""
    strings, frames = header["strings"], header["frames"]
    return [(strings[frames[f][2]], strings[frames[f][0]], frames[f][1]) for f in reversed(header["stacks"][stack])]
