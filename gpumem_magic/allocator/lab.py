"""A recording on the bench: its program, how well the model repeats it, and what other settings would do."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gpumem_magic._errors import SnapshotError
from gpumem_magic.allocator.bounds import find_bound
from gpumem_magic.allocator.fallback import requests_with_fallback
from gpumem_magic.allocator.foreign import find_foreign
from gpumem_magic.allocator.program import extract
from gpumem_magic.allocator.replay import history, reserved_bytes
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.verify import verify
from gpumem_magic.allocator.whatif import Explorer
from gpumem_magic.trace.frames import is_native, user_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.allocator.bounds import Bound
    from gpumem_magic.allocator.history import Deviation
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.allocator.whatif import Death, Prediction
    from gpumem_magic.trace.model import DeviceTrace, Frame, Trace

__all__ = ["Lab", "most_used"]


def most_used(trace: Trace) -> DeviceTrace:
    """Return the device with allocator events whose reserved bytes were highest."""
    candidates = [device for device in trace.devices if device.kind in {"cuda", "xpu"}]
    if not candidates:
        raise SnapshotError("the recording has no device with torch's caching allocator, so no setting to compare")
    return max(candidates, key=lambda device: int(reserved_bytes(device).max()))


class Lab:
    """One device of a recording.

    Parameters
    ----------
    trace
        The recording.
    device
        One of its devices.
    limit
        Most bytes that may be reserved, None for no limit.
    processes
        How many processes may replay at once (see `Explorer`).

    Raises
    ------
    SnapshotError
        When the device's memory does not come from torch's caching allocator.
    """

    def __init__(self, trace: Trace, device: DeviceTrace, *, limit: int | None = None, processes: int = 1) -> None:
        if device.kind not in {"cuda", "xpu"}:
            raise SnapshotError(f"{device.key}: memory there does not come from torch's caching allocator")
        self.trace = trace
        self.device = device
        self.limit = limit
        self.history = history(device, trace.settings)
        self.program = extract(device, self.history, trace.stacks, trace.settings)
        self.reserved_peak = int(self.history.reserved.max())
        conf = trace.settings.get("PYTORCH_CUDA_ALLOC_CONF")
        self.conf = conf if isinstance(conf, str) else ""
        fallbacks = requests_with_fallback(self.history, trace.stacks) if limit is not None else frozenset()
        self._explorer = Explorer(
            self.program, limit=limit, fallbacks=fallbacks, foreign=find_foreign(device), processes=processes
        )

    @property
    def begins_empty(self) -> bool:
        """True when nothing was there before the first event."""
        lives = self.history.lifetimes
        return not self.history.reserved[0] and not (len(lives) and lives.alloc_event[0] < 0)

    @cached_property
    def first_deviation(self) -> Deviation | None:
        """Where the model, under the recorded setting, first differs from the recording."""
        if self.history.first_deviation is not None:
            return self.history.first_deviation
        settings = self.trace.settings
        return verify(self.device, self.history, self.program, from_torch(settings), settings)

    @property
    def exact(self) -> bool:
        """True when the model repeats every address and every segment event of the recording."""
        return self.history.exact and self.first_deviation is None

    @cached_property
    def bound(self) -> Bound:
        """What no setting can go below, and what exists."""
        return find_bound(self.program, self.reserved_peak)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What lowers the confidence in predictions, one line each."""
        lines = [*self.trace.warnings, *self.history.warnings]
        key = self.device.key
        if not self.begins_empty:
            lines.append(
                f"{key}: the recording begins with memory in use; for other settings it is taken as allocated in "
                "address order at the beginning, which was within 1 % in tests"
            )
        if self.first_deviation is not None:
            lines.append(
                f"{key}: from event {self.first_deviation.event:,} on the model differs from the recording "
                f"({self.first_deviation.recorded} instead of {self.first_deviation.expected}): predictions are less "
                "certain. Another process may have filled the device"
            )
        return tuple(lines)

    def examine(self) -> None:
        """Find `first_deviation` and `bound` now."""
        _ = self.first_deviation, self.bound

    def predict(self, settings: AllocatorSettings) -> Prediction:
        """Replay the program under `settings`."""
        return self._explorer.predict(settings)

    def predict_all(self, settings: Sequence[AllocatorSettings]) -> list[Prediction]:
        """Replay the program under each of `settings`, in that order."""
        return self._explorer.predict_all(settings)

    def place(self, death: Death) -> Frame | None:
        """Return the user's line whose request fails, None when no stack tells."""
        stack = int(self.device.events.stack[death.event]) if death.event >= 0 else 0
        frame = user_frame(self.trace.stacks.resolve(stack))
        return None if frame is None or is_native(frame.filename) else frame

    def time_us(self, death: Death) -> int | None:
        """Return when the recording made the request that fails."""
        return (int(self.device.events.time_us[death.event]) or None) if death.event >= 0 else None
