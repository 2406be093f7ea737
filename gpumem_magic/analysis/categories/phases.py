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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.recording.model import Calls

__all__ = [
    "BACKWARD",
    "FORWARD",
    "LOADER",
    "OUTSIDE",
    "STEP",
    "UNCLEAR",
    "ZERO_GRAD",
    "Phases",
    "from_calls",
    "from_lines",
]

OUTSIDE, FORWARD, BACKWARD, STEP, ZERO_GRAD, LOADER = range(6)
UNCLEAR = -1
_KINDS = {"module": FORWARD, "backward": BACKWARD, "step": STEP, "zero_grad": ZERO_GRAD, "loader": LOADER}

_TEXTS = (
    (BACKWARD, re.compile(r"\.backward\(|autograd\.grad\(")),
    (ZERO_GRAD, re.compile(r"\.zero_grad\(")),
    # Schedulers, profilers and environments step as well.
    (STEP, re.compile(r"(?<![\w.])(?!\w*(?:sched|prof|env|bar|lr_))[\w.\[\]]+\.step\(")),
)


@dataclass(frozen=True)
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


def _joined(
    columns: tuple[NDArray[np.int64], NDArray[np.int64]],
    span: NDArray[np.int32],
    kinds: Sequence[int],
    foreign: tuple[int, ...],
    time_us: NDArray[np.int64],
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Join spans per mark with events; return each event's kind and span."""
    mark_us, thread = columns
    own = ~np.isin(thread, np.array(foreign, np.int64))
    if not own.any():
        return np.full(len(time_us), OUTSIDE, np.int8), np.full(len(time_us), -1, np.int32)
    places = tuple(((str(number), 0, ""),) for number in range(len(kinds)))
    found = attribute(Marks(mark_us[own], thread[own], span[own], places), time_us).place
    by_span = np.array([*kinds, OUTSIDE], np.int8)
    kind = np.where(found >= 0, by_span[np.maximum(found, -1)], OUTSIDE).astype(np.int8)
    # -1 is "none under way"; other numbers are reasons why that is not known.
    kind[found < -1] = UNCLEAR
    return kind, np.where(found >= 0, found, -1).astype(np.int32)


def _spans(key: NDArray[np.int64], thread: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Give each thread's stretches of equal, non-negative `key` numbers; return them, and the key of each number."""
    span = np.full(len(key), -1, np.int32)
    keys: list[NDArray[np.int64]] = []
    count = 0
    for ident in np.unique(thread).tolist():
        own = np.flatnonzero(thread == ident)
        mine = key[own]
        begins = (mine >= 0) & (mine != np.concatenate([[-1], mine[:-1]]))
        number = np.cumsum(begins) - 1 + count
        span[own] = np.where(mine >= 0, number, -1)
        keys.append(mine[begins])
        count += int(begins.sum())
    return span, np.concatenate(keys) if keys else np.zeros(0, np.int64)


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
        module_of.append(names.setdefault(stack[0][1], len(names)) if stack[0][0] == "module" else 0)
    keys = np.array([*key_of, -1], np.int64)
    span, used = _spans(keys[calls.place], calls.thread)
    kind, number = _joined(
        (calls.time_us, calls.thread), span, [kinds[key] for key in used.tolist()], calls.foreign, time_us
    )
    marks = Marks(
        calls.time_us,
        calls.thread,
        calls.place,
        tuple((("", number, ""),) for number in range(len(calls.places))),
        foreign=calls.foreign,
    )
    place = attribute(marks, time_us).place
    module = np.where(place >= 0, np.array([*module_of, 0], np.int32)[np.maximum(place, -1)], 0)
    return Phases(kind, number, module.astype(np.int32), tuple(names), seen=True)


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
    kinds = np.array([*kind_of, OUTSIDE], np.int64)
    # Lines of one phase in a row are one stretch: a backward that is spread over lines of a function it calls.
    key = np.where((marks.place >= 0) & (kinds[marks.place] != OUTSIDE), marks.place.astype(np.int64), -1)
    span, used = _spans(key, marks.thread)
    phase, number = _joined(
        (marks.time_us, marks.thread), span, [int(kinds[place]) for place in used.tolist()], marks.foreign, time_us
    )
    return Phases(phase, number, np.zeros(len(time_us), np.int32), ("",), seen=False)
