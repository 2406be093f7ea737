"""One device's categories: what was seen, what follows, and the rows that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.analysis.categories.infer import SEEN_AS, facts, infer
from gpumem_magic.analysis.categories.model import (
    GRADIENT,
    KINDS,
    NEEDS_312,
    OPTIMIZER,
    WORKSPACE,
    BackwardRow,
    Categories,
    CategoryRow,
    ModuleRow,
)
from gpumem_magic.analysis.categories.phases import (
    BACKWARD,
    FORWARD,
    OUTSIDE,
    UNCLEAR,
    from_calls,
    from_lines,
    nothing_seen,
    of_last_mark,
)
from gpumem_magic.analysis.categories.sight import sighted
from gpumem_magic.analysis.categories.stacks import from_stacks
from gpumem_magic.analysis.timeline import addresses
from gpumem_magic.recording.model import Roles
from gpumem_magic.trace.constant import constant, is_constant
from gpumem_magic.trace.times import rising

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.categories.infer import Facts
    from gpumem_magic.analysis.categories.phases import Phases
    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.recording.model import Calls, Marks
    from gpumem_magic.trace.model import DeviceTrace, StackTable

__all__ = ["categorise", "category_rows", "line_runs"]

_ONLY_STACKS = "module paths are recorded by %%gpumem in Python 3.12 and later; stacks alone do not tell them"
_MOST_MODULES = 65_535


def categorise(
    device: DeviceTrace,
    history: History,
    timeline: Timeline,
    *,
    roles: Roles | None,
    calls: Calls | None,
    marks: Marks | None,
    text_of: Callable[[tuple[str, int, str]], str | None],
    stacks: StackTable,
    firsts: NDArray[np.intp] | None = None,
) -> Categories | None:
    """Say what every lifetime of a device was for.

    Parameters
    ----------
    device, history
        Events and their replay.
    timeline
        The lifetimes, with their groups.
    roles, calls, marks
        What the recording says of purposes, of torch's own calls and of lines; each may be missing.
    text_of
        The source of a line, given as an entry of `Marks.places`.
    stacks
        Recorded stacks: all that a file has.
    firsts
        Per line mark, the first event that is not before it, where that is known already.

    Returns
    -------
    Categories or None
        None when nobody looked and no stacks tell, or nothing is there.
    """
    if not timeline.lifetimes:
        return None
    times = rising(device.events.time_us)
    phases = None if calls is not None else from_stacks(device.events, stacks)
    if phases is None:
        if roles is None:
            return None
        phases = _phases(calls, marks, times, text_of)
    roles = roles if roles is not None else _NOT_LOOKED
    seen = sighted(roles, device.key, addresses(history.lifetimes, timeline), timeline)
    as_category = np.array([*(SEEN_AS[name] for name in roles.roles), -1], np.int16)
    role = as_category[seen.role]
    what = facts(timeline, phases, line_runs(marks, times, firsts))
    found = infer(
        timeline,
        role,
        what,
        complete=roles.complete,
        seen=phases.seen,
        is_device=device.kind == "cuda",
        has_gradients=bool(np.isin(as_category[roles.role], (GRADIENT, OPTIMIZER)).any()),
    )
    # A library's workspace serves whoever comes next: the module and line during which it was made own nothing of it.
    is_shared = found.category == WORKSPACE
    lives_on = _freed_next(timeline, what)
    if not is_constant(lives_on):
        lives_on[is_shared] = -1
    module, names = _modules(roles, seen.name, phases, what, lives_on)
    module[is_shared] = 0
    forward = _groups_of(lives_on, timeline)
    at_peak, at_end = timeline.alive(timeline.peak_change), timeline.end == -1
    columns = _Columns(module, found.category, timeline.size, timeline.blocks, found.inferred)
    return Categories(
        category=found.category,
        inferred=found.inferred,
        module=module,
        module_names=names,
        forward=forward,
        peak=_rows(at_peak, columns),
        end=_rows(at_end, columns),
        modules=_module_rows(at_peak, columns),
        backward=_backward_rows(at_peak & (forward >= 0), forward, timeline),
        reason=None if calls is not None else _ONLY_STACKS if phases.seen else NEEDS_312,
    )


def _phases(
    calls: Calls | None,
    marks: Marks | None,
    times: NDArray[np.int64],
    text_of: Callable[[tuple[str, int, str]], str | None],
) -> Phases:
    if calls is not None:
        return from_calls(calls, times)
    if marks is not None:
        return from_lines(marks, times, text_of)
    return nothing_seen(len(times), UNCLEAR, seen=False)


def line_runs(
    marks: Marks | None, times: NDArray[np.int64], firsts: NDArray[np.intp] | None = None
) -> NDArray[np.int32] | None:
    """Count executions of the outermost lines, and return the number of the one that each event fell into.

    Lines of functions that a line calls belong to it: what a function lets go of when it returns is a temporary of the
    call.

    Parameters
    ----------
    marks
        Line marks, or None.
    times
        Of the events, never falling.
    firsts
        As for `categorise`.
    """
    if marks is None or not len(marks.time_us):
        return None
    time_us, place = marks.time_us, marks.place
    if not (marks.thread == marks.thread[0]).all():
        # The thread that runs the cell is the one that has marks of its own; others' frees are not told apart.
        idents, counts = np.unique(marks.thread, return_counts=True)
        own = marks.thread == idents[counts.argmax()]
        time_us, place, firsts = time_us[own], place[own], None
    numbers: dict[object, int] = {}
    outer = np.array([*(numbers.setdefault(stack[-1:], len(numbers)) for stack in marks.places), -1], np.int32)
    is_flat = np.array([*(len(stack) == 1 for stack in marks.places), False], bool)
    # The same line again, not from a deeper one back to it, is another execution of it. Number 0: before any.
    if is_flat[:-1].all() and not np.any((place[1:] < 0) & (place[:-1] < 0)):
        # No line runs inside of another one: each mark is news.
        return of_last_mark(np.arange(len(place) + 1, dtype=np.int32), time_us, times, firsts)
    key, flat = outer[place], is_flat[place]
    news = np.ones(len(key) + 1, np.int32)
    news[0] = 0
    news[2:] = (key[1:] != key[:-1]) | (flat[1:] & flat[:-1])
    return of_last_mark(np.cumsum(news, dtype=np.int32), time_us, times, firsts)


def _freed_next(timeline: Timeline, what: Facts) -> NDArray[np.int64]:
    """Return, per lifetime made in a ``backward``, the forward's lifetime that this backward freed next; else -1.

    Autograd frees what a node saved once the node has run, so what it allocates before that is that node's.
    """
    nothing: NDArray[np.int64] = constant(-1, timeline.lifetimes, np.int64)
    mine = np.flatnonzero((what.born == BACKWARD) & (timeline.start >= 0))
    saved = np.flatnonzero(((what.born == FORWARD) | (what.born == OUTSIDE)) & (what.died == BACKWARD))
    saved = saved[timeline.start[saved] >= 0]
    if not len(mine) or not len(saved):
        return nothing
    saved = saved[np.argsort(timeline.end[saved], kind="stable")]
    following = np.searchsorted(timeline.end[saved], timeline.start[mine], "right")
    there = following < len(saved)
    mine, following = mine[there], saved[following[there]]
    same = what.born_span[mine] == what.died_span[following]
    result: NDArray[np.int64] = nothing.copy()
    result[mine[same]] = following[same]
    return result


def _groups_of(lives_on: NDArray[np.int64], timeline: Timeline) -> NDArray[np.int32]:
    """Return the group of each of these lifetimes, -1 where there is none."""
    if is_constant(lives_on):
        return constant(-1, len(lives_on), np.int32)
    return np.where(lives_on >= 0, timeline.group[lives_on], np.int32(-1))


def _modules(
    roles: Roles,
    name: NDArray[np.int32],
    phases: Phases,
    what: Facts,
    lives_on: NDArray[np.int64],
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Find the module of each lifetime: the parameter's that it is or belongs to, else the one that was called."""
    names = {path: index for index, path in enumerate(phases.modules)}
    # `model.fc.weight` is of `model.fc`.
    owners = [names.setdefault(path.rpartition(".")[0], len(names)) for path in roles.names]
    own = np.array([*owners, 0], np.int32)[name]
    called = what.module
    if not is_constant(lives_on):
        called = np.where(lives_on >= 0, what.module[lives_on], what.module)
    # Where a module runs inside of backward (a checkpoint computes again), it is told directly.
    called = np.where(what.module > 0, what.module, called)
    module = np.where(own > 0, own, called).astype(np.int32)
    module[module > _MOST_MODULES] = 0
    return module, tuple(names)


_NOT_LOOKED = Roles(
    time_us=np.zeros(0, np.int64),
    device=np.zeros(0, np.int16),
    address=np.zeros(0, np.uint64),
    role=np.zeros(0, np.uint8),
    name=np.zeros(0, np.int32),
    devices=(),
    roles=tuple(SEEN_AS),
    names=(),
)


class _Columns(NamedTuple):
    """What rows are summed from, per lifetime."""

    module: NDArray[np.int32]
    category: NDArray[np.uint8]
    size: NDArray[np.int64]
    blocks: NDArray[np.int32]
    inferred: NDArray[np.bool_]


def _sums(number: NDArray[np.integer], weight: NDArray[np.integer], count: int) -> list[int]:
    return [int(value) for value in np.rint(np.bincount(number, weight, count)).tolist()]


def _rows(chosen: NDArray[np.bool_], columns: _Columns) -> tuple[CategoryRow, ...]:
    where = np.flatnonzero(chosen)
    _, category, size, blocks, inferred = columns
    kind, count = category[where], len(KINDS)
    totals = zip(
        _sums(kind, size[where], count),
        _sums(kind, blocks[where], count),
        _sums(kind, size[where] * inferred[where], count),
        strict=True,
    )
    rows = [CategoryRow(number, *sums) for number, sums in enumerate(totals) if sums[0]]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def category_rows(categories: Categories, timeline: Timeline, chosen: NDArray[np.bool_]) -> tuple[CategoryRow, ...]:
    """Sum some lifetimes by category, largest first."""
    columns = _Columns(categories.module, categories.category, timeline.size, timeline.blocks, categories.inferred)
    return _rows(chosen, columns)


def _module_rows(chosen: NDArray[np.bool_], columns: _Columns) -> tuple[ModuleRow, ...]:
    module, category, size, blocks, inferred = columns
    where = np.flatnonzero(chosen & (module > 0))
    width = len(KINDS)
    cells, number = np.unique(module[where].astype(np.int64) * width + category[where], return_inverse=True)
    number = number.reshape(-1)
    sums = zip(
        cells.tolist(),
        _sums(number, size[where], len(cells)),
        _sums(number, blocks[where], len(cells)),
        _sums(number, size[where] * inferred[where], len(cells)),
        strict=True,
    )
    parts: dict[int, list[tuple[int, int, int, int]]] = {}
    for cell, *rest in sums:
        parts.setdefault(cell // width, []).append((cell % width, *rest))
    rows = [
        ModuleRow(
            owner,
            sum(part[1] for part in mine),
            sum(part[2] for part in mine),
            sum(part[3] for part in mine),
            tuple(sorted(((part[0], part[1]) for part in mine), key=lambda pair: -pair[1])),
        )
        for owner, mine in parts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.module)))


def _backward_rows(
    chosen: NDArray[np.bool_], forward: NDArray[np.int32], timeline: Timeline
) -> tuple[BackwardRow, ...]:
    where = np.flatnonzero(chosen)
    groups, number = np.unique(forward[where], return_inverse=True)
    number = number.reshape(-1)
    sums = zip(
        groups.tolist(),
        _sums(number, timeline.size[where], len(groups)),
        _sums(number, timeline.blocks[where], len(groups)),
        strict=True,
    )
    return tuple(sorted((BackwardRow(*row) for row in sums), key=lambda row: -row.bytes))
