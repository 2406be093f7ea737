"""Find what grows on one device: by the loops that the line marks show, else by the order of the allocations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpumem_magic.analysis.categories.model import BUFFER, GRADIENT, KINDS, LABELS, OPTIMIZER, PARAMETER
from gpumem_magic.analysis.leaks.evidence import (
    LEAST_ITERATIONS,
    Shape,
    Survivors,
    blocks_to_count,
    judge,
    regrown,
    rhythm,
)
from gpumem_magic.analysis.leaks.lives import lives_of
from gpumem_magic.analysis.leaks.loops import (
    adds_to_itself,
    ends_a_run,
    find_loops,
    iteration_starts,
    lines_in_scope,
    loops_on_one_line,
)
from gpumem_magic.analysis.leaks.model import Growth, Leak, LeakLine, Once
from gpumem_magic.analysis.leaks.period import repetitions
from gpumem_magic.analysis.leaks.words import GRADIENTS, WINDOW, leak_sentence, once_of, told_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.analysis.context import Placement
    from gpumem_magic.analysis.leaks.lives import Lives
    from gpumem_magic.analysis.leaks.loops import Loop
    from gpumem_magic.analysis.leaks.model import LeakKind
    from gpumem_magic.analysis.model import DeviceAnalysis, Group
    from gpumem_magic.recording.model import Calls, Cell, Marks
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["Scene", "find_growth"]

# Loops are asked in the order of what survived in them; the rest of a big program has no news.
_MOST_LOOPS = 12
_MOST_ADDRESSES = 4096
# What stayed once is worth a line from this share of what stayed at all, or this many bytes.
_ONCE_SHARE, _ONCE_BYTES = 0.02, 1 << 20
# Growth below all of these is noted, not told: 5 % of the cell's own peak, and 1 MiB an iteration.
_TOLD_SHARE, _TOLD_BYTES = 0.05, 1 << 20
# What a line left is what most of it was seen to be.
_MOSTLY = 0.8
# In all, less than this is nobody's trouble: token numbers, a list of losses.
_TOLD_LEAST = 64 << 10


@dataclass(frozen=True, eq=False, repr=False)
class Scene:
    """What a search needs of a recording.

    Attributes
    ----------
    cell
        The code that ran, or None for a file.
    marks
        Line marks, or None.
    name
        Names a line of code: (file, line, function) → its group.
    calls
        Which of torch's calls was under way, or None where that is not known.
    """

    cell: Cell | None
    marks: Marks | None
    name: Callable[[str, int, str], Group]
    calls: Calls | None = None

    def loops(self) -> tuple[Loop, ...]:
        """Return the loops of all cells whose code may have run, this cell's first."""
        if self.cell is None or self.marks is None:
            return ()
        seen = {name for place in self.marks.places for name, _, _ in place}
        sources = dict.fromkeys(self.cell.filenames, self.cell.source)
        sources |= {name: source for name, (_, source) in self.cell.others.items() if name not in sources}
        return tuple(loop for name, source in sources.items() if name in seen for loop in find_loops(name, source))

    def is_depth(self, loop: Loop, starts: NDArray[np.int64]) -> bool:
        """Tell whether a loop runs inside a module's call: over the layers of a model, which keeps them for backward.

        That a forward's memory grows with its depth is no growth in time: a loop around the forward shows that.
        """
        if self.calls is None:
            return loop.scope == "forward"
        if loop.scope == "<module>" or not len(self.calls.time_us) or not len(starts):
            return False
        idents, counts = np.unique(self.calls.thread, return_counts=True)
        own = self.calls.thread == idents[int(np.argmax(counts))]
        is_module = np.array([*(any(one[0] == "module" for one in stack) for stack in self.calls.places), False])
        inside = np.concatenate([[False], is_module[self.calls.place[own]]])
        return bool(inside[np.searchsorted(self.calls.time_us[own], starts, "right")].mean() > 0.5)

    def hides_a_loop(self, group: Group) -> bool:
        """Tell whether a line is a loop, or calls a function of the notebook that has one whose lines are not known."""
        if self.cell is None or group.kind != "line" or self.marks is None:
            return False
        if loops_on_one_line(group.source or ""):
            return True
        if self.marks.has_functions:
            return False
        texts = [self.cell.source, *(source for _, source in self.cell.others.values())]
        looping = {loop.scope for text in texts for loop in find_loops("", text)}
        return any(name in looping for name in re.findall(r"(\w+)\s*\(", group.source or ""))


class _Found(NamedTuple):
    """A judged line.

    `kept` are its surviving lifetimes, `iteration` says when each was made, and `left` what each iteration left; of
    one that is `again` made larger each time, its size in each.
    """

    group: Group
    judged: Survivors
    kept: NDArray[np.int64]
    iteration: NDArray[np.integer[Any]]
    left: NDArray[np.int64]
    again: bool = False


class _Turns(NamedTuple):
    """A loop: the line of its function at each place, when each iteration began, and which was a run's last one."""

    loop: Loop
    lines: NDArray[np.int32]
    starts: NDArray[np.int64]
    last: NDArray[np.bool_]


class _Where(NamedTuple):
    """What a verdict is about."""

    device: str
    loop: Group | None
    iterations: int


def find_growth(
    trace: DeviceTrace, device: DeviceAnalysis, placement: Placement | None, scene: Scene, *, truncated: bool = False
) -> Growth:
    """Say what grew on one device, and what stayed for another reason.

    Parameters
    ----------
    trace
        Its events.
    device
        What they mean.
    placement
        Which line ran at each event, or None.
    scene
        The rest of the recording.
    truncated
        The beginning is missing: iterations before the first event are not counted.
    """
    lives = lives_of(trace, device, placement)
    stayed = lives.stayed
    if not stayed.any():
        return Growth(iterations=0)
    leaks: list[Leak] = []
    once: list[Once] = []
    most = 0
    marks = scene.marks
    if placement is not None and marks is not None:
        judged: list[tuple[_Where, list[_Found]]] = []
        for turns in _ranked(scene.loops(), placement, lives):
            loop = turns.loop
            starts = iteration_starts(marks, loop, turns.lines)
            if truncated and len(lives.began):
                starts = starts[starts >= lives.time_us[lives.began[0]]]
            if scene.is_depth(loop, starts):
                continue
            most = max(most, len(starts))
            last = ends_a_run(marks, loop, turns.lines, starts)
            found = _in_loop(turns._replace(starts=starts, last=last), lives, scene)
            judged.append((_Where(device.key, scene.name(loop.file, loop.header, loop.scope), len(starts)), found))
        for where, found in _each_once(judged, len(stayed)):
            leaks += _leaks(where, found, lives)
            once += _once(device, found, lives)
    if not most:
        known, least = _without_loops(device, lives, scene)
        most = least
        leaks += known
    told = [leak for leak in leaks if _is_told(leak, device)]
    small = [leak for leak in leaks if not _is_told(leak, device)]
    return Growth(_ordered(told), _ordered(small), tuple(once), most)


def _ordered(leaks: Sequence[Leak]) -> tuple[Leak, ...]:
    return tuple(sorted(leaks, key=lambda leak: -leak.bytes))


def _is_told(leak: Leak, device: DeviceAnalysis) -> bool:
    if leak.bytes < _TOLD_LEAST:
        return False
    if leak.kind == "regrown" and not any(adds_to_itself(line.group.source or "") for line in leak.lines):
        return False
    own = (device.headline.allocated_peak or 0) - (device.headline.allocated_before or 0)
    return leak.bytes >= _TOLD_SHARE * max(own, 1) or leak.bytes_per_iteration >= _TOLD_BYTES


def _ranked(loops: Sequence[Loop], placement: Placement, lives: Lives) -> list[_Turns]:
    """Return the loops in which something stayed, inner ones before the loops around them, most bytes first."""
    scopes: dict[tuple[str, str], NDArray[np.int32]] = {}
    stayed = lives.stayed
    place, size = lives.place[stayed], lives.size[stayed]
    ranked = []
    for loop in loops:
        key = (loop.file, loop.scope)
        if key not in scopes:
            scopes[key] = lines_in_scope(placement.places, *key)
        kept = int(size[loop.holds(scopes[key][place])].sum())
        if kept:
            ranked.append((kept, loop, scopes[key]))
    ranked.sort(key=lambda item: -item[0])
    del ranked[_MOST_LOOPS:]
    # An outer loop's header comes first and its end last: the shortest are the innermost.
    ranked.sort(key=lambda item: item[1].last - item[1].header)
    return [_Turns(loop, lines, np.zeros(0, np.int64), np.zeros(0, bool)) for _, loop, lines in ranked]


def _each_once(judged: Sequence[tuple[_Where, list[_Found]]], count: int) -> list[tuple[_Where, list[_Found]]]:
    """Leave each survivor to one loop: of nested ones that in which most iterations left something, else the inner.

    What an epoch keeps of its last step grows with the epochs, not with one step in a hundred.
    """
    share = np.zeros(count)
    owner = np.full(count, -1, np.int64)
    items = [(where, item) for where, found in judged for item in found]
    for number, (where, item) in enumerate(items):
        own = item.judged.grown / max(where.iterations, 1) if item.judged.shape is Shape.GROWTH else 0.0
        better = (owner[item.kept] < 0) | (own > 1.5 * share[item.kept])
        owner[item.kept[better]], share[item.kept[better]] = number, own
    chosen: list[tuple[_Where, list[_Found]]] = []
    number = 0
    for where, found in judged:
        mine = []
        for item in found:
            # It stays where most of it is.
            if np.count_nonzero(owner[item.kept] == number) * 2 > len(item.kept):
                mine.append(item)
            number += 1
        chosen.append((where, mine))
    return chosen


def _in_loop(turns: _Turns, lives: Lives, scene: Scene) -> list[_Found]:
    """Judge each line of a loop."""
    loop, lines, starts, last = turns
    if len(starts) < 2:
        return []
    stayed = np.flatnonzero(lives.stayed)
    line, iteration = lines[lives.place[stayed]], lives.iteration(lives.began[stayed], starts)
    counted = loop.holds(line) & (iteration >= 0)
    found = []
    # Lines of which nothing is left are most of them, and have nothing to tell.
    for number in np.unique(line[counted]).tolist():
        own = counted & (line == number)
        kept, when = stayed[own], iteration[own]
        made = _Made(lives, lines, number, starts)
        if len(np.unique(when)) < LEAST_ITERATIONS:
            judged = judge(when, lives.ended[kept], lives.size[kept], len(starts))
        else:
            judged = judge(made.iteration, made.ended, lives.size[made.which], len(starts))
        if judged.shape in {Shape.GROWTH, Shape.WINDOW} and last[when].all():
            continue
        left = np.bincount(when, lives.size[kept], len(starts)).astype(np.int64)
        item = _Found(scene.name(loop.file, number, loop.scope), judged, kept, when, left)
        if judged.shape is Shape.GROWTH:
            settled = _settled(item, made, lives)
            if settled is None:
                continue
            item = settled
        if judged.shape in {Shape.NOTHING, Shape.ONCE}:
            larger = made.regrown()
            if larger is not None:
                item = _again(item, larger, made.iteration, lives.size[made.which])
        if item.judged.shape is Shape.GROWTH or judged.once:
            found.append(item)
    return found


class _Made:
    """All that one line of a loop made in its iterations, looked up when it is needed: mostly the survivors tell.

    Attributes
    ----------
    which
        Index of each of its lifetimes.
    """

    def __init__(self, lives: Lives, lines: NDArray[np.int32], number: int, starts: NDArray[np.int64]) -> None:
        self._lives = lives
        self._starts = starts
        first = np.searchsorted(lives.time_us, starts[0])
        self.which = np.flatnonzero((lines == number)[lives.place] & (lives.began >= first))

    @cached_property
    def _iterations(self) -> NDArray[np.int32]:
        """Of each event."""
        return self._lives.iterations(self._starts)

    @cached_property
    def iteration(self) -> NDArray[np.int32]:
        """When each was made."""
        return self._iterations[self._lives.began[self.which]]

    @cached_property
    def ended(self) -> NDArray[np.int32]:
        """When each was freed, -1 for never."""
        end = self._lives.ended[self.which]
        return np.where(end < 0, np.int32(-1), np.maximum(self._iterations[end], 0))

    def regrown(self) -> tuple[int, int, int] | None:
        """See `gpumem_magic.analysis.leaks.evidence.regrown`."""
        requested = self._lives.requested[self.which]
        if requested.min() == requested.max():
            return None  # what is of one size did not grow
        return regrown(self.iteration, self.ended, requested, len(self._starts))


def _settled(item: _Found, made: _Made, lives: Lives) -> _Found | None:
    """Leave out what is alive of the last iteration only because it is the last; None where too little then grew.

    Its variables would have been bound anew by the next one.
    """
    last = len(item.left) - 1
    which = np.flatnonzero(item.left)
    earlier = which[which < last]
    if which[-1] != last:
        return item
    if _is_due(earlier, last, int(item.left[last]), made, lives):
        return _trimmed(item, lives)
    if len(earlier) < LEAST_ITERATIONS:
        return None
    old = item.iteration < last
    left = item.left.copy()
    left[last] = 0
    judged = item.judged._replace(grown=len(earlier))
    return item._replace(judged=judged, kept=item.kept[old], iteration=item.iteration[old], left=left)


def _is_due(earlier: NDArray[np.intp], last: int, left: int, made: _Made, lives: Lives) -> bool:
    """Tell whether the last iteration belongs to those that keep something, by the rhythm of the earlier ones.

    Where they have none, by what an iteration usually leaves to the next one: as much would be alive of any last one.
    """
    every = rhythm(earlier)
    if every is not None:
        return last - int(earlier[-1]) == every
    passes = made.ended > made.iteration
    usual = np.bincount(made.iteration[passes], lives.size[made.which[passes]], last + 1)[:last]
    return float(np.median(usual)) < left


def _trimmed(item: _Found, lives: Lives) -> _Found:
    """Leave out blocks by which the last iteration has more than any earlier one after the first."""
    chosen = blocks_to_count(lives.size[item.kept], item.iteration, item.left)
    if chosen.all():
        return item
    kept, iteration = item.kept[chosen], item.iteration[chosen]
    left = np.bincount(iteration, lives.size[kept], len(item.left)).astype(np.int64)
    return item._replace(kept=kept, iteration=iteration, left=left)


def _again(item: _Found, larger: tuple[int, int, int], iteration: NDArray[np.int32], size: NDArray[np.int64]) -> _Found:
    """Call a line one that makes the same tensor larger each time: iterations, bytes more each time, last size."""
    sizes = np.zeros(len(item.left), np.int64)
    np.maximum.at(sizes, iteration, size)
    newest = [int(np.argmax(item.iteration))]
    return item._replace(
        judged=Survivors(Shape.GROWTH, larger[0], larger[1]),
        kept=item.kept[newest],
        iteration=item.iteration[newest],
        left=sizes,
        again=True,
    )


def _leaks(where: _Where, found: Sequence[_Found], lives: Lives) -> list[Leak]:
    """Put the growing lines of a loop together: those that left something in (nearly) as many iterations are one."""
    growing = [item for item in found if item.judged.shape is Shape.GROWTH]
    leaks = [_leak("regrown", where, [item], lives) for item in growing if item.again]
    rest = sorted((item for item in growing if not item.again), key=lambda item: -int(lives.size[item.kept].sum()))
    while rest:
        grown = rest[0].judged.grown
        alike = [abs(item.judged.grown - grown) <= max(1, grown // 10) for item in rest]
        leaks.append(_leak("kept", where, [item for item, same in zip(rest, alike, strict=True) if same], lives))
        rest = [item for item, same in zip(rest, alike, strict=True) if not same]
    return leaks


def _leak(kind: LeakKind, where: _Where, found: Sequence[_Found], lives: Lives) -> Leak:
    """Write the verdict on lines that grow together, the largest first."""
    # What the first iteration left beyond the others' share (a library's workspace, as a rule) is no growth.
    rows = tuple(
        LeakLine(item.group, item.judged.typical, int(lives.size[item.kept].sum()) - item.judged.once, len(item.kept))
        for item in found
    )
    kept = np.concatenate([item.kept for item in found])
    when = np.concatenate([item.iteration for item in found])
    kept = kept[np.argsort(-lives.size[kept], kind="stable")[:_MOST_ADDRESSES]]
    leak = Leak(
        kind=kind,
        device=where.device,
        loop=where.loop,
        iterations=where.iterations,
        grown=found[0].judged.grown,
        bytes_per_iteration=sum(row.bytes_per_iteration for row in rows),
        bytes=sum(row.bytes for row in rows),
        lines=rows,
        addresses=lives.address[lives.began[kept]],
        every=1 if kind == "regrown" else rhythm(when),
        left=tuple(np.sum([item.left for item in found], axis=0).tolist()),
    )
    return leak_sentence(leak)


def _once(device: DeviceAnalysis, found: Sequence[_Found], lives: Lives) -> list[Once]:
    total = int(lives.size[lives.stayed].sum())
    least = min(_ONCE_BYTES, _ONCE_SHARE * total)
    told = []
    for item in found:
        if item.judged.once > 0:
            size, span = _once_size(item, lives)
            told.append(Once(_purpose(device, item, lives, span), device.key, item.group, size, "", span))
    gradients = sum(once.bytes for once in told if once.what == GRADIENTS)
    return [once_of(once, gradients) for once in told if once.bytes >= least]


def _once_size(item: _Found, lives: Lives) -> tuple[int, int]:
    """Return bytes that a line left once, and of how many first iterations.

    Where most of it came with the first iteration, the last few of something else are not what counts: one line may
    make an optimizer's state and keep the last losses.
    """
    once, span = item.judged.once, item.judged.span
    if item.judged.shape is not Shape.WINDOW:
        return once, span
    by_iteration = np.bincount(item.iteration, lives.size[item.kept])
    most = int(np.argmax(by_iteration))
    if most > 1 or 2 * by_iteration[most] <= by_iteration.sum():
        return once, span
    return int(by_iteration[most]), most + 1


def _purpose(device: DeviceAnalysis, item: _Found, lives: Lives, span: int) -> str:
    """Say what it is that a line left once: by storage where that was seen, else by what the line does."""
    if item.judged.shape is Shape.WINDOW and span == item.judged.span:
        return WINDOW
    first = item.kept[item.iteration < span]
    if device.categories is not None and len(first):
        number = lives.number[first]
        seen = ~device.categories.inferred[number]
        sizes = np.bincount(device.categories.category[number][seen], lives.size[first][seen], len(KINDS))
        most = int(np.argmax(sizes))
        if sizes[most] > _MOSTLY * lives.size[first].sum() and most in {PARAMETER, BUFFER, GRADIENT, OPTIMIZER}:
            return LABELS[most]
    return told_by(item.group.source or "")


def _without_loops(device: DeviceAnalysis, lives: Lives, scene: Scene) -> tuple[list[Leak], int]:
    """Look for repetition in the order of the allocations alone, owner by owner."""
    leaks: list[Leak] = []
    most = 0
    for number in np.unique(lives.group[lives.stayed]).tolist():
        which = np.flatnonzero(lives.group == number)
        group = device.groups[number]
        found = repetitions(lives.requested[which], lives.stayed[which], is_loop=scene.hides_a_loop(group))
        if found is None:
            continue
        most = max(most, found.periods)
        tail = which[found.first :]
        alive = lives.stayed[tail]
        kept, when = tail[alive], np.flatnonzero(alive) // found.length
        left = np.bincount(when, lives.size[kept], found.periods).astype(np.int64)
        item = _trimmed(_Found(group, Survivors(Shape.GROWTH, found.periods), kept, when, left), lives)
        each = int(item.left.sum()) // found.periods
        item = item._replace(judged=item.judged._replace(typical=each))
        leaks.append(_leak("kept", _Where(device.key, None, found.periods), [item], lives))
    return leaks, most
