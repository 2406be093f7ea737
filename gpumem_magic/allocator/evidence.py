"""A recording, its replay, and what else is known of how it was made: what every reader of it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.settings_model import Course, from_torch
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import DeviceTrace, StackTable

__all__ = ["Evidence"]


@dataclass(frozen=True)
class Evidence:
    """One device of a recording.

    Attributes
    ----------
    device
        The recording.
    history
        Its replay, which pairs allocations with frees.
    stacks
        Stacks of the trace: they tell ``empty_cache`` from the allocator's own releases.
    settings
        `Trace.settings`, as torch says them.
    known_limit
        Most bytes that the recorded process might reserve, when that is known.
    known_course
        The settings over the recording, where they were changed on the way.
    """

    device: DeviceTrace
    history: History
    stacks: StackTable
    settings: Mapping[str, object]
    known_limit: int | None = None
    known_course: Course | None = None

    @property
    def course(self) -> Course:
        """The settings over the recording: one for all of it, unless something else is known."""
        return Course(from_torch(self.settings)) if self.known_course is None else self.known_course

    @property
    def limit(self) -> int | None:
        """Most bytes that might be reserved: as known, else the largest under which requests fail as they did.

        None when nothing failed, or when more was reserved at another time: what was in the way then was not a limit.
        """
        if self.known_limit is not None:
            return self.known_limit
        events = self.device.events
        failures = np.flatnonzero(events.action == Action.OOM).tolist()
        if not failures:
            return None
        typed = from_torch(self.settings)
        reserved = self.history.reserved
        least = min(int(reserved[event]) + segment_size(int(events.size[event]), typed) - 1 for event in failures)
        return least if least >= int(reserved.max()) else None
