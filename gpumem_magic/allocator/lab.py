"""A recording on the bench: its program, how well the model repeats it, and what other settings would do."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._errors import SnapshotError
from gpumem_magic.allocator.bounds import find_bound
from gpumem_magic.allocator.captures import has_captures, with_calls_where_quiet
from gpumem_magic.allocator.evidence import Evidence
from gpumem_magic.allocator.fallback import requests_with_fallback
from gpumem_magic.allocator.foreign import find_foreign
from gpumem_magic.allocator.program import Op, extract, find_doubts
from gpumem_magic.allocator.replay import history, reserved_bytes
from gpumem_magic.allocator.sites import find_unshown_calls
from gpumem_magic.allocator.squeeze import Means, find_squeeze
from gpumem_magic.allocator.verify import find_quiet, verify
from gpumem_magic.allocator.whatif import Explorer
from gpumem_magic.trace.frames import is_library, is_native, user_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.bounds import Bound
    from gpumem_magic.allocator.history import Deviation
    from gpumem_magic.allocator.program import Doubt, Program
    from gpumem_magic.allocator.settings_model import AllocatorSettings, Course
    from gpumem_magic.allocator.verify import Verdict
    from gpumem_magic.allocator.whatif import Prediction
    from gpumem_magic.trace.model import DeviceTrace, Frame, Trace

__all__ = ["Lab", "most_used"]

# Whose releases they were is tried out in recordings up to this many events, this many releases before a deviation.
_MOST_TO_TRY = 100_000
_TRIES = 8


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
    recorded_limit
        Most bytes that the recorded process might reserve (its memory fraction), when that is known.
    course
        The settings over the recording, where it is known that they were changed on the way.
    emptied
        How often the program called ``empty_cache`` (torch's counters tell); None when that is not known. A call that
        finds nothing to give back leaves no event.
    calls
        Events before which it did, each of them, when that is known: then nothing is left to doubt. Where a file says
        so, neither this nor the recorded limit need be given.
    means
        What else is known of the recorded process: it tells whether something else filled the device.

    Raises
    ------
    SnapshotError
        When the device's memory does not come from torch's caching allocator.
    """

    def __init__(
        self,
        trace: Trace,
        device: DeviceTrace,
        *,
        limit: int | None = None,
        processes: int = 1,
        recorded_limit: int | None = None,
        course: Course | None = None,
        emptied: int | None = None,
        calls: Sequence[int] | None = None,
        means: Means | None = None,
    ) -> None:
        if device.kind not in {"cuda", "xpu"}:
            raise SnapshotError(f"{device.key}: memory there does not come from torch's caching allocator")
        if device.beside is not None:
            calls = device.beside.calls if calls is None else calls
            recorded_limit = device.beside.fraction if recorded_limit is None else recorded_limit
            means = means or Means(device.beside.limit, device.beside.total, emptied)
        self.trace = trace
        self.device = device
        self.limit = limit
        self.history = history(device, trace.settings, course=course)
        self._evidence = Evidence(device, self.history, trace.stacks, trace.settings, recorded_limit, course)
        self.squeeze = find_squeeze(
            device,
            self.history,
            trace.stacks,
            trace.settings,
            means or Means(fraction=recorded_limit, emptied=emptied),
        )
        self.program = self._find_program()
        if has_captures(self.program):
            self.program = with_calls_where_quiet(self.program, self.find_quiet())
        self.reserved_peak = int(self.history.reserved.max())
        conf = trace.settings.get("PYTORCH_CUDA_ALLOC_CONF")
        self.conf = conf if isinstance(conf, str) else ""
        fallbacks = requests_with_fallback(self.history, trace.stacks) if limit is not None else frozenset()
        unseen = None if emptied is None else emptied - int(np.count_nonzero(self.program.codes == Op.EMPTY_CACHE))
        if unseen is not None and unseen < 0:
            unseen = None  # More were seen than made: what is taken for the program's calls is not.
        asked = self.program
        self.knows_calls = calls is not None or unseen == 0
        quiet = self.find_quiet
        if calls is not None:
            unseen = 0
            steps = np.searchsorted(asked.events, np.sort(np.asarray(calls, np.int64)), "left")
            asked = asked.with_calls(steps[steps < len(asked.events)])
        elif not self.knows_calls:
            told = find_unshown_calls(device, trace.stacks, asked, self.find_quiet)
            if len(told):
                asked = asked.with_calls(told)
                unseen = None if unseen is None else max(unseen - len(told), 0)
                quiet = partial(self._find_quiet_beside, told)
        self._explorer = Explorer(
            asked,
            limit=limit,
            fallbacks=fallbacks,
            foreign=find_foreign(device),
            quiet=None if unseen == 0 else quiet,
            unseen=unseen,
            without=None if asked is self.program or self.knows_calls else self.program,
            processes=processes,
        )

    def _find_program(self) -> Program:
        """Turn the recording into a program; where releases may be the program's or the allocator's, try both."""
        program = extract(self._evidence)
        doubts = find_doubts(self._evidence)
        if not doubts or len(self.device.events) > _MOST_TO_TRY:
            return program
        turned: frozenset[Doubt] = frozenset()
        deviation = verify(self._evidence, program).deviation
        # The last one before the deviation is asked first: what lies before the one that is wrong, fits.
        for _ in range(2 * len(doubts)):
            open_ = [one for one in doubts if deviation and one.event <= deviation.event and one not in turned]
            better = None
            for one in reversed(open_[-_TRIES:]):
                tried = extract(self._evidence, turned | {one})
                after = verify(self._evidence, tried).deviation
                if deviation and (after is None or after.event > deviation.event):
                    better = one, tried, after
                    break
            if better is None:
                break
            turned |= {better[0]}
            program, deviation = better[1], better[2]
        return program

    def find_quiet(self) -> NDArray[np.bool_]:
        """Tell before which operations an ``empty_cache`` would have left no event (see `verify.find_quiet`)."""
        return find_quiet(self._evidence, self.program)

    def _find_quiet_beside(self, calls: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell it of the program with `calls` put in: beside them there is no other."""
        quiet = self.find_quiet()
        beside = np.insert(quiet, calls, values=False)
        beside[calls + np.arange(len(calls)) + 1] = False
        return beside

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
        return self._verified.deviation

    @cached_property
    def recorded_retries(self) -> int | None:
        """How often the cache was freed for a request while recording; None when the model does not repeat it."""
        return None if self.history.first_deviation is not None else self._verified.retries

    @cached_property
    def _verified(self) -> Verdict:
        return verify(self._evidence, self.program)

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
        if self.squeeze is not None:
            lines.append(self.squeeze.text(key))
        if self.first_deviation is not None:
            lines.append(
                f"{key}: from event {self.first_deviation.event:,} on the model differs from the recording "
                f"({self.first_deviation.recorded} instead of {self.first_deviation.expected}): predictions are less "
                "certain"
            )
        return tuple(lines)

    def examine(self) -> None:
        """Find `first_deviation` and `bound` now."""
        _ = self.first_deviation, self.bound

    def effective(self, settings: AllocatorSettings) -> AllocatorSettings:
        """Drop options that cannot act on this program: settings that are then equal do the same."""
        return self._explorer.effective(settings)

    def predict(self, settings: AllocatorSettings) -> Prediction:
        """Replay the program under `settings`."""
        return self._explorer.predict(settings)

    def predict_all(self, settings: Sequence[AllocatorSettings]) -> list[Prediction]:
        """Replay the program under each of `settings`, in that order."""
        return self._explorer.predict_all(settings)

    def place(self, event: int) -> Frame | None:
        """Return the user's line at an event, None when no stack tells."""
        stack = int(self.device.events.stack[event]) if event >= 0 else 0
        frame = user_frame(self.trace.stacks.resolve(stack))
        return None if frame is None or is_native(frame.filename) else frame

    def place_before(self, event: int) -> Frame | None:
        """Return the last of the user's own lines before an event: autograd's thread has no stacks."""
        stacks, last = self.device.events.stack, -1
        while event > 0:
            event -= 1
            if stacks[event] not in {0, last}:
                last = stacks[event]
                found = self.place(event)
                if found is not None and not is_library(found.filename):
                    return found
        return None

    def time_us(self, event: int) -> int | None:
        """Return when an event was recorded."""
        return (int(self.device.events.time_us[event]) or None) if event >= 0 else None

    def allocation_after(self, event: int) -> int:
        """Return the lifetime of the first allocation from an event on, -1 when there is none."""
        lives = self.history.lifetimes
        number = int(np.searchsorted(lives.alloc_event, event))
        return number if number < len(lives) else -1

    def event_of(self, lifetime: int) -> int:
        """Return the event of an allocation, -1 when it was made before the first event."""
        return int(self.history.lifetimes.alloc_event[lifetime])
