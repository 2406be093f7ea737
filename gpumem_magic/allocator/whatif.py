"""What another setting would have done with the same program: a point, a range, and whether it would have fitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.addresses import BumpDown, BumpUp, Driver, Scattered
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.program import Op
from gpumem_magic.allocator.rounding import round_sizes
from gpumem_magic.allocator.settings_model import AllocatorSettings
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.trace.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpumem_magic.allocator.addresses import AddressModel
    from gpumem_magic.allocator.program import Program

__all__ = ["Death", "Explorer", "Prediction"]

_PLAIN = AllocatorSettings()
# The range: the driver with small disturbances, and orders that no driver was seen to use but that bound it.
_ENSEMBLE: tuple[Callable[[], AddressModel], ...] = (
    lambda: Driver(jitter=1),
    lambda: Driver(jitter=2),
    BumpDown,
    BumpUp,
    lambda: Scattered(1),
    lambda: Scattered(2),
    lambda: Scattered(3),
    lambda: Scattered(4),
)
# Programs of more operations are replayed with fewer orders: one of each kind.
_LARGE = 100_000
_SMALL_ENSEMBLE = (BumpDown, lambda: Scattered(1))
# When deferred frees complete is a matter of timing: at once, half as late, half as late again, twice as late.
_DELAYS = (0.0, 0.5, 1.5, 2.0)


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
        ``"fits"``, ``"oom"``, or ``"oom_unless_fallback"``: only requests fail for which cuDNN was seen to try
        another algorithm.
    dies_at
        The first request that fails, or None.
    retries
        Times the cache would be freed for a request.
    unanimous
        False when the verdict depends on where the driver puts segments.
    """

    low: int
    expected: int
    high: int
    verdict: str
    dies_at: Death | None
    retries: int
    unanimous: bool = True


class Explorer:
    """Replays one program under many settings; equal questions are answered once.

    Parameters
    ----------
    program
        The program.
    limit
        Most bytes that may be reserved, None for no limit.
    has_fallback
        Says of a lifetime whether its request is one that cuDNN answers a failure of with another algorithm.
    """

    def __init__(
        self, program: Program, *, limit: int | None = None, has_fallback: Callable[[int], bool] | None = None
    ) -> None:
        self.program = program
        self.limit = limit
        self._has_fallback = has_fallback
        self._plain_sizes = round_sizes(program.requested, _PLAIN)
        self._answers: dict[AllocatorSettings, Prediction] = {}
        self._delayed: list[Program] | None = None

    def predict(self, settings: AllocatorSettings) -> Prediction:
        """Replay the program under `settings`."""
        settings = self.effective(settings)
        answer = self._answers.get(settings)
        if answer is None:
            with paused_collector():
                answer = self._answers[settings] = self._predict(settings)
        return answer

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
        if settings.max_split_size is not None and settings.max_split_size > max(
            segment_size(largest, settings), settings.large_segment_size
        ):
            settings = replace(settings, max_split_size=None)
        if settings.max_split_size is None:
            settings = replace(settings, max_non_split_rounding=_PLAIN.max_non_split_rounding)
        return settings

    def _predict(self, settings: AllocatorSettings) -> Prediction:
        point = self._run(self.program, settings, Driver())
        runs = [point]
        if point.has_ties:
            ensemble = _ENSEMBLE if len(self.program.codes) <= _LARGE else _SMALL_ENSEMBLE
            runs += [self._run(self.program, settings, create()) for create in ensemble]
        runs += [self._run(program, settings, Driver()) for program in self._with_other_timing()]
        peaks = [run.reserved_peak for run in runs]
        verdict, death = self._judge(point)
        return Prediction(
            low=min(peaks),
            expected=point.reserved_peak,
            high=max(peaks),
            verdict=verdict,
            dies_at=death,
            retries=point.retries,
            unanimous=all(self._judge(run)[0] == verdict for run in runs),
        )

    def _run(self, program: Program, settings: AllocatorSettings, addresses: AddressModel) -> Model:
        model = Model(program, settings, addresses, limit=self.limit, survives=self._has_fallback)
        model.run()
        return model

    def _judge(self, model: Model) -> tuple[str, Death | None]:
        fatal = next((failure for failure in model.failures if not failure.is_survived), None)
        # What failed in the recording and was caught there is no verdict on the setting.
        fallen_back = next((failure for failure in model.failures if failure.lifetime >= 0), None)
        chosen = fatal or fallen_back
        if chosen is None:
            return "fits", None
        death = Death(int(self.program.events[chosen.step]), chosen.lifetime, chosen.size)
        return ("oom" if fatal else "oom_unless_fallback"), death

    def _with_other_timing(self) -> list[Program]:
        if self._delayed is None:
            self._delayed = []
            if np.any(self.program.codes == Op.FREE_LATER) and len(self.program.codes) <= _LARGE:
                self._delayed = [_with_delay(self.program, factor) for factor in _DELAYS]
        return self._delayed


def _with_delay(program: Program, factor: float) -> Program:
    """Move every deferred completion to `factor` times its distance from its request."""
    count = len(program.codes)
    position = np.arange(count, dtype=np.float64)
    requested_at: NDArray[np.float64] = np.zeros(len(program.requested), dtype=np.float64)
    asked = program.codes == Op.FREE_LATER
    requested_at[program.arguments[asked]] = position[asked]
    completed = program.codes == Op.COMPLETE
    begin = requested_at[program.arguments[completed]]
    position[completed] = begin + (position[completed] - begin) * factor + 0.5
    order = np.argsort(position, kind="stable")
    return replace(
        program,
        codes=program.codes[order],
        arguments=program.arguments[order],
        events=program.events[order],
        _steps=[],
    )
