"""Calls of ``torch.cuda.empty_cache()`` that a recording may hide.

torch records what such a call gives back, and nothing when there is nothing to give back. Under another setting there
may be something at the same moment, and what comes after it then lies elsewhere. Of 468 predictions under a limit for
programs that were known to call it unseen, three said "fits" where a GPU said out of memory, all by this alone; and of
570 peaks 69 were off, by up to 12 %.

So the program is also replayed with calls at moments where the recording would look the same. Three choices (every such
moment, the first and the last of each stretch of them) bracketed 568 of the 570 peaks; two at random help a little
(663 instead of 659 of 667 random programs). Whether a limit can be passed is searched for: sets of moments at random,
then changes to those that came nearest to it.

How likely that is, draws tell: as many calls as the seen ones let expect, at moments by chance. Of 1,638 predictions
for 40 programs run on H200s, 1,033 came out alike in 95 % of the draws: 1,025 of these peaks were exact; of the others
446 of 605. And of 24 verdicts for which fatal calls were found, the four that died had done so in 17 to 31 % of the
draws, and ten of the twenty that lived in 2 % or less.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.cache import MASK, SHIFT
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.program import Op
from gpumem_magic.allocator.sizes import segment_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gpumem_magic.allocator.addresses import AddressModel
    from gpumem_magic.allocator.program import Program
    from gpumem_magic.allocator.settings_model import AllocatorSettings

    Steps = NDArray[np.int64]

__all__ = ["EFFORT", "Fatal", "Moments", "search"]

#: Operations that a search may replay in all: two seconds. The usual choices are always tried.
EFFORT = 1_200_000
_MOST_REPLAYS = 150
# Shares of all moments that are tried besides.
_SHARES = (0.5, 0.1)
_LARGE = 100_000
# Where the cache is empty for a smaller share of the operations, hardly any call is unseen. In all of 44 programs that
# died of unseen calls it was 0.18 or more; in recorded training runs it is 0.01 to 0.1. Of 1,500 random programs near
# their limit 73 had a smaller share: all 73 verdicts were right, and searching found no fatal calls in the 23 that
# lived. Searching all the same called one right verdict of 31 on recorded programs into question.
_LEAST_SHARE = 0.1
# So many of them, or half, try moments at random, in sets of these sizes.
_AT_RANDOM = 75
_SIZES = (1, 2, 4, 8, 16, 32)
# Sets of moments that are developed further.
_KEPT = 4
# Replays that may be spent to find out which moments of a fatal set matter.
_TRIALS = 12


@dataclass(frozen=True)
class Fatal:
    """A set of unseen calls with which the program runs out of memory.

    Attributes
    ----------
    moments
        The operations before which they come, by their events.
    step, lifetime, size
        The request that fails: its operation in the program as recorded, lifetime and bytes.
    """

    moments: tuple[int, ...]
    step: int
    lifetime: int
    size: int


class Moments:
    """Where calls may be hidden.

    Parameters
    ----------
    program
        As recorded.
    quiet
        Before which of its operations a call would have left no event.
    calls
        How many were made there, when that is known.

    Attributes
    ----------
    all, every
        All such moments, and those at which there can be something to give back after a call at the one before.
    usual
        Sets of moments that are always tried.
    most
        More calls than this are not plausible; 0: none is. A program that was seen to call it `n` times, and could
        have done so unseen for a share `s` of its operations, made about ``n * s / (1 - s)`` unseen calls.
    """

    def __init__(self, program: Program, quiet: NDArray[np.bool_], calls: int | None = None) -> None:
        begins = quiet & ~np.concatenate([[False], quiet[:-1]])
        ends = quiet & ~np.concatenate([quiet[1:], [False]])
        # After an allocation there is nothing more to give back than before it.
        grows = np.concatenate([[True], program.codes[:-1] != Op.ALLOC])
        self.every: Steps = np.flatnonzero(quiet & (begins | grows))
        self.all: Steps = np.flatnonzero(quiet)
        self.usual: tuple[Steps, ...] = (self.every, np.flatnonzero(begins), np.flatnonzero(ends))
        if len(quiet) <= _LARGE:
            draw = np.random.default_rng(len(quiet))
            self.usual += tuple(self.all[draw.random(len(self.all)) < share] for share in _SHARES)
        share = float(quiet.mean()) if len(quiet) else 0.0
        seen = int(np.count_nonzero(program.codes == Op.EMPTY_CACHE))
        # Half a call more: that none was seen does not prove that none was made.
        self._expected = (seen + 0.5) * share / max(1.0 - share, 0.01)
        self._calls = calls
        plausible = math.ceil(self._expected + 3 * math.sqrt(self._expected)) + 2
        self.most = (0 if share < _LEAST_SHARE else plausible) if calls is None else calls

    def drawn(self, count: int) -> Iterator[Steps]:
        """Draw sets of moments as likely as they are by what was seen. The same every time."""
        draw = np.random.default_rng(len(self.all) + 1)
        for _ in range(count):
            calls = int(draw.poisson(self._expected)) if self._calls is None else self._calls
            yield np.sort(draw.choice(self.all, min(calls, len(self.all)), replace=False))


class _Strained(Model):
    """A model that notes how near it comes to its limit.

    Attributes
    ----------
    need
        The most bytes that a request needed once all that is cached was given back, itself included.
    """

    need = 0

    def _obtain(self, size: int, group: int) -> tuple[int, int] | None:
        held = self.reserved - self._cached()
        self.need = max(self.need, held + segment_size(size, self.settings))
        return super()._obtain(size, group)

    def _cached(self) -> int:
        """Return the bytes that ``empty_cache`` would give back."""
        total = 0
        for group in self._releasable:
            for key in self._lists[group]:
                start, size = key & MASK, key >> SHIFT
                if self._segments.get(start) == size:
                    total += size
                elif self._virtual[group]:
                    low, high = self._whole_pages(start, size, group)
                    total += max(high - low, 0)
        return total


def search(
    program: Program,
    moments: Moments,
    settings: AllocatorSettings,
    addresses: Callable[[], AddressModel],
    *,
    limit: int,
    survives: Callable[[int], bool] | None,
    effort: int = EFFORT,
) -> Fatal | None:
    """Look for unseen calls with which a program that fits would not.

    Parameters
    ----------
    program, moments
        The program, and where calls may be.
    settings, addresses, limit, survives
        As for `Model`.
    effort
        See `EFFORT`.

    Returns
    -------
    Fatal or None
        As few calls as were found to be enough, or None. The same every time.
    """

    def play(steps: Steps) -> _Strained:
        changed = program.with_calls(steps)
        model = _Strained(changed, settings, addresses(), limit=limit, survives=survives, waits=True)
        model.run()
        return model

    replays = effort // max(len(program.codes), 1)
    tried: list[tuple[int, Steps]] = []
    for steps in _choices(program, moments, tried, min(replays, _MOST_REPLAYS)):
        model = play(steps)
        if _fails(model):
            fewest, died = _fewest(steps, model, play, min(replays, _TRIALS))
            if len(fewest) <= moments.most:
                return _told(program, fewest, died)
        if not tried and not model.emptied:
            return None  # Nothing is cached at any of the moments, so no call there can change anything.
        tried.append((model.need, steps))
    return None


def _choices(program: Program, moments: Moments, tried: list[tuple[int, Steps]], replays: int) -> Iterator[Steps]:
    """Yield sets of moments: the usual ones, some at random, and changes to those of `tried` that needed most."""
    yield from moments.usual
    draw = random.Random(len(program.codes))  # noqa: S311 - no secret; the same answer every time
    every = moments.all.tolist()
    for number in range(len(moments.usual), replays):
        if number < min(_AT_RANDOM, replays // 2):
            chosen = draw.sample(every, min(_SIZES[number % len(_SIZES)], len(every), moments.most))
        else:
            best = sorted(tried, key=lambda one: -one[0])[:_KEPT]
            chosen = draw.choice(best)[1].tolist()
            kind = draw.randrange(3)
            if kind == 0:
                share = draw.choice((0.5, 0.75, 0.9))
                chosen = [step for step in chosen if draw.random() < share]
            elif kind == 1:
                chosen += draw.choices(every, k=draw.choice((1, 2, 4)))
            else:
                cut = draw.choice(every)
                after = draw.choice(best)[1].tolist()
                chosen = [step for step in chosen if step < cut] + [step for step in after if step >= cut]
        chosen = sorted(set(chosen))
        if len(chosen) > moments.most:
            chosen = sorted(draw.sample(chosen, moments.most))
        yield np.array(chosen, dtype=np.int64)


def _fails(model: Model) -> bool:
    return any(not failure.is_survived for failure in model.failures)


def _fewest(steps: Steps, model: _Strained, play: Callable[[Steps], _Strained], trials: int) -> tuple[Steps, _Strained]:
    """Leave out moments as long as the program still dies: half of them, a quarter, and so on."""
    parts = 2
    while len(steps) > 1 and parts <= 2 * len(steps):
        for chosen in np.array_split(steps, min(parts, len(steps))):
            if not trials:
                return steps, model
            trials -= 1
            fewer = np.setdiff1d(steps, chosen)
            tried = play(fewer)
            if _fails(tried):
                steps, model, parts = fewer, tried, 2
                break
        else:
            parts *= 2
    return steps, model


def _told(program: Program, steps: Steps, model: _Strained) -> Fatal:
    failure = next(failure for failure in model.failures if not failure.is_survived)
    # Steps are counted with the calls that were put in.
    step = failure.step - int(np.searchsorted(steps + np.arange(len(steps)), failure.step))
    return Fatal(tuple(program.events[steps].tolist()), step, failure.lifetime, failure.size)
