"""Would another setting have had room for the request? The recording is replayed up to it, before anybody restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic.allocator.settings_text import parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.trace.model import Trace

__all__ = ["Retrial", "Retry", "retry_in"]

# More events than this take over a second, at the end of a cell that has just failed; several settings share them.
_MOST_EVENTS = 300_000
# Operations replayed to look for unseen calls of empty_cache: half a second.
_EFFORT = 300_000


@dataclass(frozen=True)
class Retrial:
    """The program up to the request that failed, under another setting; bytes.

    Attributes
    ----------
    conf
        The setting.
    cap
        The most that could have been reserved: the limit of the process, or what was reserved and what the driver had
        left, or what is known to have been allowed.
    low, expected, high
        The most that would have been reserved, up to the request or to where it dies.
    fits
        Whether the request would have been served; None when that depends on where the driver puts segments, on timing,
        or on what the program does after an error that it caught.
    dies_early
        The program would have run out of memory before it came to the request.
    is_exact
        Whether the model repeats the recording under its own setting.
    begins_late
        Memory was in use when the recording began; how an other setting had laid it out is assumed.
    """

    conf: str
    cap: int
    low: int
    expected: int
    high: int
    fits: bool | None
    dies_early: bool
    is_exact: bool
    begins_late: bool


class Retry(Protocol):
    """Replays a recording."""

    def __call__(
        self, key: str, event: int, cap: int | None, *, collects: bool, confs: Sequence[str]
    ) -> tuple[Retrial, ...]:
        """Return outcomes for the failure at `event`, up to the first setting that fits; none if it cannot be replayed.

        `cap` is None where the limit is not known: then what was reserved at most before must do. `collects`: the cap
        is a memory fraction, under which torch's garbage collection acts.
        """


def retry_in(trace: Trace) -> Retry:
    """Return the function that replays `trace` under other settings."""

    def retry(key: str, event: int, cap: int | None, *, collects: bool, confs: Sequence[str]) -> tuple[Retrial, ...]:
        # The model comes with the first failure: a cell that has room does not pay for its import.
        from gpumem_magic.allocator.lab import Lab
        from gpumem_magic.allocator.program import Op
        from gpumem_magic.allocator.settings_model import from_torch
        from gpumem_magic.allocator.whatif import Explorer

        device = next((one for one in trace.devices if one.key == key), None)
        if device is None or len(device.events) > _MOST_EVENTS:
            return ()
        try:
            lab = Lab(trace, device, recorded_limit=None)
        except (BadUsageError, SnapshotError):
            return ()
        program = lab.program
        most = int(lab.history.reserved[: event + 1].max()) if cap is None else cap
        kept = np.asarray(program.events <= event)
        upto = program.keeping(kept)
        # What failed earlier and was caught is asked for again as well; only what ends the program counts.
        explorer = Explorer(upto, limit=most, quiet=lambda: lab.find_quiet()[kept], effort=_EFFORT)

        def under(settings: AllocatorSettings, conf: str) -> Retrial:
            prediction = explorer.predict(settings)
            is_doubted = prediction.verdict.startswith("fits_unless")
            died = None if is_doubted else prediction.dies_at
            early = died is not None and died.event < event
            # A program that fills memory until it is told to stop fills it differently.
            is_adaptive = early and int(np.count_nonzero(upto.codes == Op.FAIL)) > 1
            return Retrial(
                conf=conf,
                cap=most,
                low=prediction.low,
                expected=prediction.expected,
                high=prediction.high,
                fits=None if is_adaptive or is_doubted or not prediction.unanimous else prediction.verdict == "fits",
                dies_early=early,
                is_exact=lab.exact,
                begins_late=not lab.begins_empty,
            )

        def acting(settings: AllocatorSettings) -> AllocatorSettings:
            return settings if collects else replace(settings, garbage_collection_threshold=0.0)

        recorded = acting(from_torch(trace.settings))
        found: list[Retrial] = []
        for conf in confs[: max(_MOST_EVENTS // max(len(device.events), 1), 1)]:
            try:
                settings = acting(parse_settings(conf))
            except BadUsageError:
                continue
            if explorer.effective(settings) == explorer.effective(recorded):
                continue  # It changes nothing in this program.
            # Where the model does not even repeat the failure, it cannot tell settings of one kind apart.
            if found and not lab.exact and explorer.predict(recorded).verdict == "fits":
                break
            found.append(under(settings, conf))
            if found[-1].fits:
                break
        return tuple(found)

    return retry
