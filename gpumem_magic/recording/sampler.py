"""The live line of a long cell, and the samples behind it.

Five times a second on the ticker's thread, for cells of more than half a second. It reads NVML and the allocator's
counters and never calls the CUDA runtime, because a graph capture may be under way. The line follows at every third
sample: writing and sending it costs as much as three samples, all with the interpreter's lock that the cell waits for.
"""

from __future__ import annotations

import contextvars
import time
from functools import partial
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_duration
from gpumem_magic.recording.ticker import call_every

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumem_magic.recording.model import Sample
    from gpumem_magic.recording.notes import Notes
    from gpumem_magic.recording.ticker import Tick

__all__ = ["Sampler", "live_line"]

_DELAY_SECONDS = 0.5
_PERIOD_SECONDS = 0.19  # from the end of one sample to the beginning of the next
_SHOW_EVERY = 3
# Hours of training must not fill memory: above this, every second sample is dropped and half as many are kept from
# there on.
_MOST_SAMPLES = 20_000


def live_line(samples: Sequence[Sample], seconds: float, totals: dict[str, int]) -> str:
    """Write one moment as a line.

    Parameters
    ----------
    samples
        One per device.
    seconds
        Since the cell began.
    totals
        Bytes of each device, where known.
    """
    parts = []
    for sample in samples:
        figures = []
        if sample.allocated is not None:
            figures.append(f"allocated {format_bytes(sample.allocated)}")
        if sample.reserved is not None:
            figures.append(f"reserved {format_bytes(sample.reserved)}")
        if sample.allocated is None and sample.process_used is not None:
            figures.append(f"this process {format_bytes(sample.process_used)}")
        if sample.device_used is not None:
            total = totals.get(sample.device)
            of_total = f" of {format_bytes(total)}" if total is not None else ""
            figures.append(
                f"{'host' if sample.device == 'cpu' else 'device'} used {format_bytes(sample.device_used)}{of_total}"
            )
        if figures:
            parts.append(f"{sample.device}: {' · '.join(figures)}")
    return " │ ".join(["gpumem: recording", *parts, format_duration(seconds)])


class Sampler:
    """Samples until stopped.

    Parameters
    ----------
    read
        Returns one sample per device; called on the ticker's thread.
    show
        Shows the samples (seconds since the start beside them); None for no live line.
    notes
        Where a failure is told; sampling then ends.
    """

    def __init__(
        self,
        read: Callable[[], list[Sample]],
        show: Callable[[list[Sample], float], None] | None,
        notes: Notes,
    ) -> None:
        self.samples: list[Sample] = []
        self._read = read
        self._show = show
        self._notes = notes
        self._keep_every = 1
        self._turn = 0
        self._began = 0.0
        self._tick: Tick | None = None

    def start(self) -> None:
        """Sample from half a second on."""
        self._began = time.monotonic()
        # Display messages find their cell through context variables.
        tick = partial(contextvars.copy_context().run, self._sample)
        self._tick = call_every(_PERIOD_SECONDS, tick, delay=_DELAY_SECONDS)

    def stop(self) -> tuple[Sample, ...]:
        """End sampling and return the samples in time order."""
        if self._tick is not None:
            self._tick.cancel()
        return tuple(self.samples)

    def _sample(self) -> bool:
        went_well = False
        with self._notes.guard("the live line"):
            now = self._read()
            turn, self._turn = self._turn, self._turn + 1
            if turn % self._keep_every == 0:
                self.samples += now
            if len(self.samples) > _MOST_SAMPLES:
                self._thin()
            show = self._show if turn % _SHOW_EVERY == 0 else None
            if show is not None and self._tick is not None and not self._tick.cancelled:
                show(now, time.monotonic() - self._began)
            went_well = True
        return went_well  # noqa: RET504 - the guard swallows what goes wrong above

    def _thin(self) -> None:
        times = sorted({sample.time_us for sample in self.samples})
        kept = set(times[::2])
        self.samples = [sample for sample in self.samples if sample.time_us in kept]
        self._keep_every *= 2
