"""What another setting would have done with the same program: a point, a range, and whether it would have fitted."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpumem_magic.allocator.addresses import BumpDown, BumpUp, Driver, Scattered
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.program import Op
from gpumem_magic.allocator.rounding import round_sizes
from gpumem_magic.allocator.settings_model import AllocatorSettings
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.allocator.timing import waits, with_delays, with_disturbed_delays
from gpumem_magic.allocator.unseen import EFFORT, Moments, search
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.addresses import AddressModel
    from gpumem_magic.allocator.foreign import Foreign
    from gpumem_magic.allocator.model import Failure
    from gpumem_magic.allocator.program import Program
    from gpumem_magic.allocator.unseen import Fatal

Doubted = Literal["addresses", "streams", "unseen calls"]

__all__ = ["Death", "Explorer", "Prediction"]

_PLAIN = AllocatorSettings()
# The range: the driver with small disturbances, and orders that no driver was seen to use but that bound it.
_JITTERS = (1, 2)
_OTHER_ORDERS: tuple[Callable[[], AddressModel], ...] = (
    BumpDown,
    BumpUp,
    partial(Scattered, 1),
    partial(Scattered, 2),
    partial(Scattered, 3),
    partial(Scattered, 4),
)
_OTHER_SEEDS = 10  # of orders that none of these has
# Programs of more operations are replayed in one other order only.
_LARGE = 100_000
_FEW_ORDERS: tuple[Callable[[], AddressModel], ...] = (BumpDown,)
# When deferred frees complete is a matter of timing: at once, half as late, half as late again, twice as late; and so
# many times each at a moment of its own, as far as that many operations go. Of 712 predictions for six programs 710
# were then in the range, with 16 such times 705, with 8 689; 32 replays of 4,000 operations take 0.1 s.
_DELAYS = (0.0, 0.5, 1.5, 2.0)
_DISTURBED = 32
_DISTURBED_EFFORT = 160_000
# What fits as it was timed and fails in a smaller share of these timings, fits. Of 178 random programs that fit so, 138
# failed in less: none of them died in another run, of the other 40 six.
_DELAYED = 0.05
# So many draws of unseen calls, and no more than replay so many operations; fewer than the last say nothing.
_DRAWS = 40
_DRAW_EFFORT = 400_000
_FEWEST_DRAWS = 10
# Where so many draws agree, 1,025 of 1,033 peaks were exact.
_FIRM = 0.95
# Fatal calls that are this unlikely leave a verdict as it is.
_VERDICT_DRAWS = 100
_LIVES = 0.97
# Starting a process costs about 0.3 s, the time in which one replays 200,000 operations.
_WORTH_A_PROCESS = 600_000
# With a lower peak no unseen call was ever found to be fatal: of 41 such programs all came within 10 % of the limit.
_CLOSE = 0.75


@dataclass(frozen=True)
class Death:
    """Where a program would die: index of the operation's event, lifetime (-1: it failed in the recording too)."""

    event: int
    lifetime: int
    size: int


@dataclass(frozen=True)
class Prediction:
    """Outcome of one setting.

    Attributes
    ----------
    low, expected, high
        Peak reserved bytes until the end or until the program dies.
    verdict
        ``"fits"``, ``"oom"``, ``"oom_unless_fallback"`` (only requests fail for which cuDNN was seen to try another
        algorithm), ``"fits_unless_delayed"`` (it fits as the recorded run was timed, but not if the GPU is done with
        blocks that several streams use at other moments), or ``"fits_unless_emptied"`` (it fits, but not if the program
        called ``empty_cache`` at moments of which the recording says nothing).
    dies_at
        The first request that fails, or None; of what fits unless something the one that then fails.
    retries
        Times the cache would be freed for a request.
    unanimous
        False when the verdict depends on where the driver puts segments.
    emptied
        With ``"fits_unless_emptied"``: the events before which the calls would have come.
    doubts
        What the peak or the verdict depends on, as far as replays tell: ``"addresses"`` (where the driver puts
        segments), ``"streams"`` (when frees that wait for another stream complete), ``"unseen calls"`` (of
        ``empty_cache``).
    agreement
        With how many of the numbers and moments of unseen calls that the seen ones let expect the peak and the end
        stay the same, as a share; 1.0 where no such call can change anything, None where that was too long to find out.
    """

    low: int
    expected: int
    high: int
    verdict: str
    dies_at: Death | None
    retries: int
    unanimous: bool = True
    emptied: tuple[int, ...] = ()
    doubts: tuple[Doubted, ...] = ()
    agreement: float | None = 1.0

    @property
    def is_firm(self) -> bool:
        """True when neither the timing of streams nor what calls may be unseen is likely to change it."""
        is_likely = self.agreement is not None and self.agreement >= _FIRM
        return is_likely and "streams" not in self.doubts and not self.verdict.startswith("fits_unless")


@dataclass(frozen=True)
class _Run:
    """One replay: which program (0: as recorded, more: other timing), settings, addresses."""

    program: int
    settings: AllocatorSettings
    addresses: Callable[[], AddressModel]


@dataclass(frozen=True)
class _Outcome:
    reserved_peak: int
    retries: int
    has_ties: bool
    failures: tuple[Failure, ...]
    emptied: int

    @property
    def fatal(self) -> Failure | None:
        return next((failure for failure in self.failures if not failure.is_survived), None)

    @property
    def fallen_back(self) -> Failure | None:
        # What failed in the recording and was caught there is no verdict on the setting.
        return next((failure for failure in self.failures if failure.lifetime >= 0), None)

    @property
    def verdict(self) -> str:
        if self.fatal is not None:
            return "oom"
        return "fits" if self.fallen_back is None else "oom_unless_fallback"

    def ends_like(self, other: _Outcome) -> bool:
        """Tell whether peak and end are the same."""
        ours, theirs = ([failure.lifetime for failure in one.failures] for one in (self, other))
        return self.reserved_peak == other.reserved_peak and ours == theirs


@dataclass(frozen=True)
class _Bench:
    """What every run shares; sent to each process once."""

    programs: tuple[Program, ...]
    limit: int | None
    fallbacks: frozenset[int]

    @property
    def survives(self) -> Callable[[int], bool] | None:
        return self.fallbacks.__contains__ if self.fallbacks else None

    def play(self, run: _Run) -> _Outcome:
        program = self.programs[run.program]
        with paused_collector():
            model = Model(program, run.settings, run.addresses(), limit=self.limit, survives=self.survives, waits=True)
            model.run()
        return _Outcome(model.reserved_peak, model.retries, model.has_ties, tuple(model.failures), model.emptied)


class Explorer:
    """Replays one program under many settings; equal questions are answered once.

    Parameters
    ----------
    program
        The program.
    limit
        Most bytes that may be reserved, None for no limit.
    fallbacks
        Lifetimes whose request cuDNN answers a failure of with another algorithm.
    foreign
        Holes that the recording shows (see `Driver`).
    quiet
        Returns before which operations the program may have emptied the cache without leaving an event
        (`gpumem_magic.allocator.verify.find_quiet`). None: it is known to have made no such call.
    unseen
        How often it was called so, when that is known.
    without
        The program without calls that are only taken to have been made: the range has it too.
    effort
        Operations that may be replayed to find out whether such calls would have been fatal.
    processes
        How many processes may replay at once, where that is worth their start. More than one only from a program of
        our own: a notebook's kernel must not be forked or run twice.
    """

    def __init__(
        self,
        program: Program,
        *,
        limit: int | None = None,
        fallbacks: frozenset[int] = frozenset(),
        foreign: Sequence[Foreign] = (),
        quiet: Callable[[], NDArray[np.bool_]] | None = None,
        unseen: int | None = None,
        without: Program | None = None,
        effort: int = EFFORT,
        processes: int = 1,
    ) -> None:
        self.program = program
        self.limit = limit
        self._quiet = quiet
        self._unseen = unseen
        self._effort = effort
        self._processes = processes
        self._driver = partial(Driver, foreign=tuple(foreign))
        self._ensemble = _FEW_ORDERS
        if len(program.codes) <= _LARGE:
            self._ensemble = (*(partial(self._driver, jitter=seed) for seed in _JITTERS), *_OTHER_ORDERS)
        self._plain_sizes = round_sizes(program.requested, _PLAIN)
        self._answers: dict[AllocatorSettings, Prediction] = {}
        timings = [program]
        if waits(program) and len(program.codes) <= _LARGE:
            timings += [with_delays(program, factor) for factor in _DELAYS]
            count = min(_DISTURBED, _DISTURBED_EFFORT // len(program.codes))
            timings += [with_disturbed_delays(program, seed) for seed in range(count)]
        self._timed = len(timings)
        timings += [] if without is None else [without]
        self._bench = _Bench(tuple(timings), limit, fallbacks)

    def predict(self, settings: AllocatorSettings) -> Prediction:
        """Replay the program under `settings`."""
        return self.predict_all([settings])[0]

    def predict_all(self, settings: Sequence[AllocatorSettings]) -> list[Prediction]:
        """Replay the program under each of `settings`, in that order."""
        effective = [self.effective(one) for one in settings]
        open_ = [one for one in dict.fromkeys(effective) if one not in self._answers]
        with self._player(self._bench, len(open_)) as play:
            points = dict(zip(open_, play([_Run(0, one, self._driver) for one in open_]), strict=True))
            ensemble = self._ensemble
            others = [_Run(0, one, create) for one in open_ if points[one].has_ties for create in ensemble]
            others += [run for one in open_ for run in self._timings(one, has_ties=points[one].has_ties)]
            last = range(self._timed, len(self._bench.programs))
            others += [_Run(number, one, self._driver) for one in open_ for number in last]
            outcomes = list(zip(others, play(others), strict=True))
        unseen = self._with_unseen_calls(open_)
        for one in open_:
            mine = [(run.program, outcome) for run, outcome in outcomes if run.settings == one]
            called = [outcome for run, outcome in unseen if run.settings == one]
            found: dict[Doubted, list[_Outcome]] = {
                "addresses": [outcome for number, outcome in mine if not number],
                "streams": [outcome for number, outcome in mine if 0 < number < self._timed],
                "unseen calls": [*called, *(outcome for number, outcome in mine if number >= self._timed)],
            }
            answer = replace(self._answer(points[one], found), agreement=self._agreement(points[one], called))
            self._answers[one] = self._doubted(one, self._delayed(answer, mine))
        return [self._answers[one] for one in effective]

    def _timings(self, settings: AllocatorSettings, *, has_ties: bool) -> list[_Run]:
        """Return the replays in other timings; disturbed ones also disturb the order of addresses where it matters."""
        first = 1 + len(_DELAYS)
        return [
            _Run(
                number,
                settings,
                partial(Scattered, _OTHER_SEEDS + number) if has_ties and number >= first else self._driver,
            )
            for number in range(1, self._timed)
        ]

    @cached_property
    def _moments(self) -> Moments | None:
        """Where calls may be hidden; None when there are none."""
        moments = None if self._quiet is None else Moments(self.program, self._quiet(), self._unseen)
        return moments if moments is not None and len(moments.all) else None

    def _with_unseen_calls(self, settings: Sequence[AllocatorSettings]) -> list[tuple[_Run, _Outcome]]:
        """Replay with more calls of ``empty_cache`` what is seen to call it: their number and moments are not known.

        The first `Moments.usual` are followed by the draws.
        """
        if not np.any(self.program.codes == Op.EMPTY_CACHE) or self._moments is None:
            return []
        every, *usual = self._moments.usual
        chosen = [every, *usual, *self._moments.drawn(min(_DRAWS, _DRAW_EFFORT // len(self.program.codes)))]
        programs = tuple(self.program.with_calls(steps) for steps in chosen)
        with self._player(replace(self._bench, programs=programs), len(settings)) as play:
            first = [_Run(0, one, self._driver) for one in settings]
            found = list(zip(first, play(first), strict=True))
            # Where calls at every moment give nothing back, fewer do not either.
            open_ = [run.settings for run, outcome in found if outcome.emptied]
            runs = [_Run(number, one, self._driver) for one in open_ for number in range(1, len(programs))]
            return found + list(zip(runs, play(runs), strict=True))

    def _agreement(self, point: _Outcome, unseen: Sequence[_Outcome]) -> float | None:
        """Return the share of draws that end like the point."""
        if len(unseen) < 2 or self._moments is None:
            return 1.0
        drawn = unseen[len(self._moments.usual) :]
        if len(drawn) < _FEWEST_DRAWS:
            return 1.0 if all(outcome.ends_like(point) for outcome in unseen) else None
        return sum(outcome.ends_like(point) for outcome in drawn) / len(drawn)

    def _delayed(self, found: Prediction, runs: Sequence[tuple[int, _Outcome]]) -> Prediction:
        """Say of what fits in the recorded timing that it does not in others, if so."""
        timed = [(number, outcome) for number, outcome in runs if 0 < number < self._timed]
        fatal = [(number, outcome.fatal) for number, outcome in timed if outcome.fatal is not None]
        if found.verdict != "fits" or len(fatal) < _DELAYED * len(timed) or not fatal:
            return found
        number, failed = fatal[0]
        assert failed is not None  # noqa: S101 (for the type checker)
        event = int(self._bench.programs[number].events[failed.step])
        return replace(found, verdict="fits_unless_delayed", dies_at=Death(event, failed.lifetime, failed.size))

    def _doubted(self, settings: AllocatorSettings, found: Prediction) -> Prediction:
        """Look for unseen calls with which a program that just fits does not."""
        if self.limit is None or found.verdict != "fits" or found.high < _CLOSE * self.limit:
            return found
        if self._moments is None or not self._moments.most:
            return found
        with paused_collector():
            fatal = search(
                self.program,
                self._moments,
                settings,
                self._driver,
                limit=self.limit,
                survives=self._bench.survives,
                effort=self._effort,
            )
            if fatal is None:
                return found
            lives = chance = self._share_that_lives(settings)
        doubts = tuple(dict.fromkeys((*found.doubts, "unseen calls")))
        if lives is not None and found.agreement is not None:
            lives = min(lives, found.agreement)
        found = replace(found, doubts=doubts, agreement=lives)
        if chance is not None and chance >= _LIVES:
            return found
        return replace(found, verdict="fits_unless_emptied", dies_at=self._death(fatal), emptied=fatal.moments)

    def _share_that_lives(self, settings: AllocatorSettings) -> float | None:
        """Return the share of draws with which a program runs to its end; None where that takes too long."""
        if self._moments is None or len(self.program.codes) * _VERDICT_DRAWS > self._effort:
            return None
        programs = tuple(self.program.with_calls(steps) for steps in self._moments.drawn(_VERDICT_DRAWS))
        bench = replace(self._bench, programs=programs)
        ends = [bench.play(_Run(number, settings, self._driver)) for number in range(len(programs))]
        return sum(end.verdict == "fits" for end in ends) / len(ends)

    @contextmanager
    def _player(self, bench: _Bench, settings: int) -> Iterator[Callable[[list[_Run]], list[_Outcome]]]:
        """Yield a function that plays runs, in several processes where that is worth it."""
        if self._processes < 2 or settings < 2 or settings * len(self.program.codes) < _WORTH_A_PROCESS:
            yield lambda runs: [bench.play(run) for run in runs]
            return
        # Spawned, not forked: numpy has threads of its own.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._processes, context, initializer=_receive, initargs=(bench,)) as pool:
            yield lambda runs: list(pool.map(_play, runs))

    def effective(self, settings: AllocatorSettings) -> AllocatorSettings:
        """Drop options that cannot act on this program, so that what is alike is replayed once."""
        sizes = self._plain_sizes
        if any(divisions > 1 for divisions in settings.roundup_power2_divisions):
            sizes = round_sizes(self.program.requested, settings)
        if np.array_equal(sizes, self._plain_sizes):
            settings = replace(settings, roundup_power2_divisions=_PLAIN.roundup_power2_divisions)
        if self.limit is None:
            settings = replace(settings, garbage_collection_threshold=0.0)
        largest = int(sizes.max(initial=0))
        whole = max(segment_size(largest, settings), settings.large_segment_size)
        # Free pages of a growing segment become one block that is larger than any request.
        if settings.max_split_size is not None and settings.max_split_size > whole and not settings.expandable_segments:
            settings = replace(settings, max_split_size=None)
        if settings.max_split_size is None:
            settings = replace(settings, max_non_split_rounding=_PLAIN.max_non_split_rounding)
        return settings

    def _answer(self, point: _Outcome, found: Mapping[Doubted, Sequence[_Outcome]]) -> Prediction:
        runs = [point, *found["addresses"], *found["streams"]]
        peaks = [outcome.reserved_peak for outcome in (*runs, *found["unseen calls"])]
        verdict, death = self._judge(point)
        return Prediction(
            low=min(peaks),
            expected=point.reserved_peak,
            high=max(peaks),
            verdict=verdict,
            dies_at=death,
            retries=point.retries,
            unanimous=all(run.verdict == verdict for run in runs),
            doubts=tuple(name for name, others in found.items() if not all(map(point.ends_like, others))),
        )

    def _judge(self, outcome: _Outcome) -> tuple[str, Death | None]:
        chosen = outcome.fatal or outcome.fallen_back
        return outcome.verdict, None if chosen is None else self._death(chosen)

    def _death(self, failed: Failure | Fatal) -> Death:
        return Death(int(self.program.events[failed.step]), failed.lifetime, failed.size)


_received: list[_Bench] = []


def _receive(bench: _Bench) -> None:
    _received[:] = [bench]


def _play(run: _Run) -> _Outcome:
    return _received[0].play(run)
