"""When the cell was in a forward, in ``backward``, in an optimizer's step: for every event, by time.

The evidence is torch's own calls (`gpumem_magic.recording.model.Calls`) where Python can tell them, else the text of
the lines that ran: ``loss.backward()``, ``optimizer.step()``. Each stretch has a number, so that "freed in the same
backward" and "freed in the next one" are different things.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.lines import attribute
from gpumem_magic.recording.model import Marks
from gpumem_magic.trace.constant import constant
from gpumem_magic.trace.times import first_not_before

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpumem_magic.recording.model import Calls

__all__ = [
    "BACKWARD",
    "BUILD",
    "FORWARD",
    "LOADER",
    "OUTSIDE",
    "STEP",
    "UNCLEAR",
    "ZERO_GRAD",
    "Phases",
    "from_calls",
    "from_lines",
    "nothing_seen",
    "of_last_mark",
]

# `BUILD`: a model is made, or moved to a device.
OUTSIDE, FORWARD, BACKWARD, STEP, ZERO_GRAD, LOADER, BUILD = range(7)
UNCLEAR = -1
_KINDS = {"module": FORWARD, "backward": BACKWARD, "step": STEP, "zero_grad": ZERO_GRAD, "loader": LOADER}

# What torch.compile and torch.fx make of a model runs as a module of this class, inside the model that it stands for.
_TRACED = "GraphModule"

_TEXTS = (
    (BACKWARD, re.compile(r"\.backward\(|autograd\.grad\(")),
    (ZERO_GRAD, re.compile(r"\.zero_grad\(")),
    # Schedulers, profilers and environments step as well.
    (STEP, re.compile(r"(?<![\w.])(?!\w*(?:sched|prof|env|bar|lr_))[\w.\[\]]+\.step\(")),
)


@dataclass(frozen=True, eq=False, repr=False)
class Phases:
    """The phase of each event of a device.

    Attributes
    ----------
    kind
        One of this module's constants, int8, shape ``(events,)``.
    span
        Number of the stretch, -1 outside; int32.
    module
        Index into `modules`, 0 for none; int32.
    modules
        Paths of modules; the first is empty.
    seen
        True when torch's own calls were watched, False when lines were read.
    """

    kind: NDArray[np.int8]
    span: NDArray[np.int32]
    module: NDArray[np.int32]
    modules: tuple[str, ...]
    seen: bool


def nothing_seen(count: int, kind: int, *, seen: bool) -> Phases:
    """Return the phases of `count` events that are all in one, in no stretch and no module."""
    columns = constant(kind, count, np.int8), constant(-1, count, np.int32), constant(0, count, np.int32)
    return Phases(*columns, ("",), seen=seen)


def of_last_mark(
    values: NDArray[np.int32],
    mark_us: NDArray[np.int64],
    time_us: NDArray[np.int64],
    firsts: NDArray[np.intp] | None = None,
) -> NDArray[np.int32]:
    """Return, per event, what belongs to the last mark that is not later than it.

    Parameters
    ----------
    values
        What belongs to events before the first mark, then to each mark; one more than there are marks.
    mark_us, time_us
        Times of marks and of events, both in time order.
    firsts
        What `first_not_before` returns for them, where that is known already.
    """
    if firsts is None:
        firsts = first_not_before(time_us, mark_us)
    return np.repeat(values, np.diff(firsts, prepend=0, append=len(time_us)))


def _joined(
    marks: Calls | Marks, value: NDArray[np.int32], count: int, time_us: NDArray[np.int64], *, foreign: bool
) -> NDArray[np.int32]:
    """Join a number per mark, of `count` distinct ones and -1 for none, with events.

    Returns
    -------
    numpy.ndarray
        The number, -1 where none was under way, less where that is not known; int32, shape ``(events,)``.
    """
    thread, mark_us = marks.thread, marks.time_us
    if not foreign and marks.foreign:
        own = ~np.isin(thread, np.array(marks.foreign, np.int64))
        thread, mark_us, value = thread[own], mark_us[own], value[own]
    if not len(thread):
        return np.full(len(time_us), -1, np.int32)
    if (thread == thread[0]).all():
        return of_last_mark(np.concatenate([np.array([-1], np.int32), value]), mark_us, time_us)
    places = tuple(((str(number), 0, ""),) for number in range(count))
    return attribute(Marks(mark_us, thread, value, places, foreign=marks.foreign if foreign else ()), time_us).place


def _phases(
    marks: Calls | Marks, span: NDArray[np.int32], kinds: NDArray[np.int8], time_us: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Join spans per mark with events; return each event's kind and span."""
    found = _joined(marks, span, len(kinds), time_us, foreign=False)
    kind = np.append(kinds, np.int8(OUTSIDE))[np.maximum(found, -1)]
    # -1 is "none under way"; other numbers are reasons why that is not known.
    unknown = found < -1
    if unknown.any():
        kind[unknown] = UNCLEAR
        found = np.where(unknown, -1, found)
    return kind, found


def _spans(key: NDArray[np.int32], thread: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Give each thread's stretches of equal, non-negative `key` numbers; return them, and the key of each number."""
    order = slice(None) if (thread == thread[0]).all() else np.argsort(thread, kind="stable")
    mine = key[order]
    begins = np.ones(len(mine), bool)
    begins[1:] = (mine[1:] != mine[:-1]) | (thread[order][1:] != thread[order][:-1])
    begins &= mine >= 0
    number = np.where(mine >= 0, np.cumsum(begins, dtype=np.int32) - 1, -1).astype(np.int32)
    span = np.empty_like(number)
    span[order] = number
    return span, mine[begins]


def from_calls(calls: Calls, time_us: NDArray[np.int64]) -> Phases:
    """Find the phase of events from torch's own calls.

    Parameters
    ----------
    calls
        What was under way.
    time_us
        The events' times, never falling.
    """
    # The call that makes the phase: the innermost one that is no module, else the outermost module.
    prefixes: dict[tuple[tuple[str, str, str], ...], int] = {}
    kinds: list[int] = []
    key_of, module_of = [], []
    names: dict[str, int] = {"": 0}
    for stack in calls.places:
        depth = next((index for index, entry in enumerate(stack) if entry[0] != "module"), len(stack) - 1)
        prefix = stack[depth:]
        if prefix not in prefixes:
            prefixes[prefix] = len(prefixes)
            kinds.append(_KINDS[prefix[0][0]])
        key_of.append(prefixes[prefix])
        path = next((name for _, name, type_name in stack[:depth] if type_name != _TRACED), None)
        if path is None and stack[depth][0] == "module":
            path = stack[depth][1]
        module_of.append(0 if path is None else names.setdefault(path, len(names)))
    if not len(calls.time_us):
        return nothing_seen(len(time_us), OUTSIDE, seen=True)
    keys = np.array([*key_of, -1], np.int32)
    span, used = _spans(keys[calls.place], calls.thread)
    kind, number = _phases(calls, span, np.array(kinds, np.int8)[used], time_us)
    of_mark = np.array([*module_of, 0], np.int32)[calls.place]
    module = _joined(calls, of_mark, len(names), time_us, foreign=True)
    return Phases(kind, number, np.maximum(module, 0), tuple(names), seen=True)


def from_lines(
    marks: Marks, time_us: NDArray[np.int64], text_of: Callable[[tuple[str, int, str]], str | None]
) -> Phases:
    """Find the phase of events from the text of the lines that ran.

    Parameters
    ----------
    marks
        Line marks.
    time_us
        The events' times, never falling.
    text_of
        The source of a line, given as an entry of `Marks.places`.
    """
    kind_of = []
    for place in marks.places:
        kind = OUTSIDE
        for entry in place:
            text = text_of(entry) or ""
            found = [phase for phase, pattern in _TEXTS if pattern.search(text)]
            if found:
                kind = found[0] if len(found) == 1 else UNCLEAR
                break
        kind_of.append(kind)
    if not any(kind_of):
        return nothing_seen(len(time_us), OUTSIDE, seen=False)
    kinds = np.array([*kind_of, OUTSIDE], np.int8)
    # Lines of one phase in a row are one stretch: a backward that is spread over lines of a function it calls.
    key = np.where(kinds[marks.place] != OUTSIDE, marks.place, -1).astype(np.int32)
    span, used = _spans(key, marks.thread)
    phase, number = _phases(marks, span, kinds[used], time_us)
    return Phases(phase, number, np.zeros(len(time_us), np.int32), ("",), seen=False)
