"""Which line of the notebook an event belongs to: events joined with line marks by time.

The rules, in this order:

1. An event belongs to the last mark of a thread that is not later than the event, both in whole microseconds.
2. Threads without marks (autograd's, libraries') work for the line that runs meanwhile: an allocation in
   ``loss.backward()`` belongs to that line, whichever thread made it.
3. A thread that Python did not start (autograd's) runs notebook code only while the thread that called it waits, so
   its line counts: the recomputation of a checkpoint.
4. When several threads run notebook code and the events do not tell their thread, the line is unknown; not when all of
   them are at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.recording.model import Note
from gpumem_magic.trace.times import first_not_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.recording.model import Marks

__all__ = ["CLOCK_TOLERANCE_US", "REASONS", "Lines", "attribute", "clock_offset"]

# Marks and events within this are taken as one clock.
CLOCK_TOLERANCE_US = 50

OUTSIDE = "line unknown: no notebook code was running"
TWO_THREADS = "line unknown: two threads"
DROPPED = "line unknown: its line marks were dropped, the newest ones are kept"
TOO_OFTEN = "line unknown: lines ran too often to be told apart"
REASONS = (OUTSIDE, TWO_THREADS, DROPPED, TOO_OFTEN)

_OUTSIDE, _TWO_THREADS, _DROPPED, _TOO_OFTEN = (-1 - index for index in range(4))


@dataclass(frozen=True, eq=False, repr=False)
class Lines:
    """The line of each event.

    Attributes
    ----------
    place
        Per event: index into `Marks.places`, or ``-1 - k`` for ``reasons[k]``; int32, shape ``(n,)``.
    reasons
        Why a line is unknown.
    notes
        What the reader must know about the join.
    firsts
        Per mark: index of the first event that is not before it. None where marks are of several threads, or events
        not in time order.
    """

    place: NDArray[np.int32]
    reasons: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    firsts: NDArray[np.intp] | None = None


def attribute(
    marks: Marks,
    time_us: NDArray[np.int64],
    *,
    thread: NDArray[np.int64] | None = None,
    offset_us: int = 0,
) -> Lines:
    """Find the line that was running at each event.

    Parameters
    ----------
    marks
        Line marks in time order.
    time_us
        Unix microseconds of the events, shape ``(n,)``, in any order.
    thread
        Python thread of each event where the recording tells, 0 where it does not; shape ``(n,)``.
    offset_us
        How far the events' clock is ahead of the marks' (see `clock_offset`).

    Returns
    -------
    Lines
        A place or a reason for every event.
    """
    if offset_us:
        time_us = time_us - offset_us
    unnamed = np.array([index for index, stack in enumerate(marks.places) if not stack], np.int64)
    # Events in time order make slices of those that a thread can have made; nearly always they are.
    order: NDArray[np.intp] | slice = slice(None)
    if np.any(time_us[1:] < time_us[:-1]):
        order = np.argsort(time_us, kind="stable")
    sorted_us = time_us[order]
    joined = np.full(len(time_us), _OUTSIDE, np.int32)
    taken = np.zeros(len(time_us), np.bool_)
    foreign = set(marks.foreign)
    idents = _distinct(marks.thread)
    firsts: NDArray[np.intp] | None = None
    # Those that call before those that are called.
    for ident in sorted(idents, key=lambda ident: (ident in foreign, ident)):
        own = slice(None) if len(idents) == 1 else marks.thread == ident
        mark_us, mark_place = marks.time_us[own], marks.place[own]
        begin = int(np.searchsorted(sorted_us, mark_us[0]))
        end = len(sorted_us)
        if mark_place[-1] < 0:
            end = int(np.searchsorted(sorted_us, mark_us[-1]))
        if begin >= end:
            continue
        # Each mark holds from the first event that is not before it to the first that is not before the next.
        firsts = first_not_before(sorted_us, mark_us)
        bounds: NDArray[np.intp] = np.clip(firsts, begin, end)
        found = np.repeat(mark_place, np.diff(bounds, append=end))
        if len(idents) == 1 and thread is None:
            joined[begin:end] = np.maximum(found, _OUTSIDE)
            continue
        now = joined[begin:end]
        active = found >= 0
        if thread is not None:
            known = thread[order][begin:end]
            # The thread's own word counts over everything that others were doing.
            now = np.where((known == ident) & (now == _TWO_THREADS), _OUTSIDE, now)
            now = np.where((known == ident) & active, _OUTSIDE, now)
            active &= (known == ident) | ~np.isin(known, marks.thread)
        if ident in foreign:
            # What others were doing is waiting; only another such thread can contradict.
            now = np.where(active & ~taken[begin:end], _OUTSIDE, now)
            taken[begin:end] |= active
        clash = active & (now != _OUTSIDE) & (now != found)
        joined[begin:end] = np.where(clash, _TWO_THREADS, np.where(active & (now == _OUTSIDE), found, now))
    if marks.dropped and len(marks.time_us):
        joined[: int(np.searchsorted(sorted_us, marks.time_us[0]))] = _DROPPED
    if len(unnamed):
        joined[np.isin(joined, unnamed)] = _TOO_OFTEN
    place = joined
    if not isinstance(order, slice):
        place = np.empty_like(joined)
        place[order] = joined
    is_told = len(idents) == 1 and isinstance(order, slice) and not offset_us
    return Lines(place, REASONS, _notes(marks, idents, place, offset_us), firsts if is_told else None)


def _distinct(thread: NDArray[np.int64]) -> list[int]:
    """Return the threads that ran notebook code: nearly always one, which needs no sorting."""
    if len(thread) and thread.min() == thread.max():
        return [int(thread[0])]
    distinct: list[int] = np.unique(thread).tolist()
    return distinct


def _notes(marks: Marks, idents: Sequence[int], place: NDArray[np.int32], offset_us: int) -> tuple[Note, ...]:
    notes = []
    if not marks.has_functions:
        text = "lines inside functions need Python 3.12; memory is shown at the line that called them"
        notes.append(Note("info", text))
    if marks.dropped and np.any(place == _DROPPED):
        notes.append(Note("warning", f"{marks.dropped:,} line marks were dropped; the earliest lines are unknown"))
    if len(idents) > 1 and np.any(place == _TWO_THREADS):
        text = "two threads ran notebook code at once; --stacks python tells their lines apart"
        notes.append(Note("warning", text))
    if abs(offset_us) > CLOCK_TOLERANCE_US:
        notes.append(Note("info", f"torch's clock was {offset_us:+,} µs off the lines' clock, which was corrected"))
    return tuple(notes)


def clock_offset(entries_us: NDArray[np.int64], calls_us: Sequence[tuple[int, int]]) -> int | None:
    """Compare the events' clock with the marks' by entries that the recorder itself caused.

    Parameters
    ----------
    entries_us
        Times of the trace's ``snapshot`` entries.
    calls_us
        Marks' clock just before and just after each call that caused one.

    Returns
    -------
    int or None
        Microseconds by which the events' clock is ahead (negative: behind), 0 when every call's entry lies between its
        two times, None when no entry can be matched to a call (none within a second).
    """
    entries = np.sort(np.asarray(entries_us, np.int64))
    offsets = []
    for before, after in calls_us:
        if not len(entries):
            break
        near = entries[np.abs(entries - (before + after) // 2).argmin()]
        offset = int(min(0, near - before) if near < before else max(0, near - after))
        if abs(offset) < 1_000_000:
            offsets.append(offset)
    return int(np.median(offsets)) if offsets else None
