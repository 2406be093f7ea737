"""Does the model do what the recording shows? Every address and every segment event, in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic.allocator.adopt import find_regions
from gpumem_magic.allocator.history import Deviation
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.program import Op
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.allocator.adopt import Region
    from gpumem_magic.allocator.evidence import Evidence
    from gpumem_magic.allocator.history import History
    from gpumem_magic.allocator.program import Program
    from gpumem_magic.trace.model import DeviceTrace, Events

__all__ = ["Recorded", "Verdict", "find_quiet", "verify"]

# -1, "got none", becomes an address that nothing has.
_MASK64 = 2**64 - 1
_NAMES = {
    int(Action.SEGMENT_ALLOC): "segment_alloc",
    int(Action.SEGMENT_FREE): "segment_free",
    int(Action.SEGMENT_MAP): "segment_map",
    int(Action.SEGMENT_UNMAP): "segment_unmap",
}


class Verdict(NamedTuple):
    """How the model repeats a recording; `retries` is None when it does not."""

    deviation: Deviation | None
    retries: int | None


class Recorded:
    """Addresses as the driver gave them, in the recorded order.

    Once the model holds other segments than the recording did, a recorded address can be taken; the model then gets
    one far away, and goes on being wrong without breaking.
    """

    def __init__(self, device: DeviceTrace, regions: Sequence[Region] = ()) -> None:
        events = device.events
        self._native = iter(events.addr[events.action == Action.SEGMENT_ALLOC].tolist())
        self._beyond = 1 << 50
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        for region in regions:
            self._hold(region.start, region.size)

    def take(self, size: int, event: int) -> int:  # noqa: ARG002 (the order is all that counts)
        """Return the address of the next recorded segment."""
        address = next(self._native, None)
        if address is None or self._overlaps(address, size):
            self._beyond += 1 << 42
            address = self._beyond
        self._hold(address, size)
        return address

    def give_back(self, address: int, size: int) -> None:  # noqa: ARG002 (the size is known)
        """Take a segment back."""
        del self._ends[address]
        del self._starts[bisect_left(self._starts, address)]

    def _hold(self, address: int, size: int) -> None:
        insort(self._starts, address)
        self._ends[address] = address + size

    def _overlaps(self, address: int, size: int) -> bool:
        index = bisect_left(self._starts, address)
        if index < len(self._starts) and self._starts[index] < address + size:
            return True
        return index > 0 and self._ends[self._starts[index - 1]] > address


class _Repeated:
    """A model about to repeat a recording.

    Attributes
    ----------
    model
        Has not run yet.
    kept
        Number of each of its steps in the program that was given.
    recorded
        The segment events that it should make: event, action, address, size.
    """

    def __init__(self, evidence: Evidence, program: Program) -> None:
        device, history, course = evidence.device, evidence.history, evidence.course
        events = device.events
        which = np.flatnonzero((events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP))
        self.recorded = [
            (event, _NAMES[action], address, size)
            for event, action, address, size in zip(
                which.tolist(),
                events.action[which].tolist(),
                events.addr[which].tolist(),
                events.size[which].tolist(),
                strict=True,
            )
        ]
        self._history = history
        self._regions = find_regions(device, history, program) if history.reserved[0] else []
        # What released nothing when it was recorded has no effect here.
        keep = (program.codes != Op.HIDDEN_EMPTY_CACHE) & ~_quiet_failures(program, events)
        if evidence.limit is None:
            # Where no limit explains what failed, the model would find room for it.
            keep &= program.codes != Op.FAIL
        self.kept = np.flatnonzero(keep)
        self.model = Model(
            program.keeping(keep),
            course.first,
            Recorded(device, self._regions),
            limit=evidence.limit,
            virtual_base=lambda _group: _next_base(self.model, self.recorded),
            survives=lambda _number: True,
            traced=True,
            changes=course.changes,
        )

    def begin(self) -> int:
        """Lay out what was there before; return the step to run the model from."""
        return self.model.begin_with(self._history, self._regions) if self._regions else 0


def verify(evidence: Evidence, program: Program) -> Verdict:
    """Run the model under the recording's own setting, with the driver's addresses as recorded.

    A recording that begins in the middle of a process starts from what was there before.

    Parameters
    ----------
    evidence
        The recording, and what is known of it.
    program
        The program found in it.

    Returns
    -------
    Verdict
        The first event at which model and recording differ, and the retries of the model.
    """
    run = _Repeated(evidence, program)
    model, recorded, events = run.model, run.recorded, evidence.device.events
    try:
        model.run(run.begin())
    except (KeyError, IndexError):
        # What was there before is partly guessed; a wrong guess about which pool a segment belongs to breaks the lists.
        event = int(model.program.events[model.step])
        broken = Deviation(max(event, 0), "the state before the recording to hold", "what contradicts it")
        return Verdict(_first_step(model, recorded) or broken, None)
    deviation = _first_difference(evidence.history, model.program, model, recorded, len(events))
    # Whether a failed request that was left out went through the whole ladder is not known.
    is_counted = deviation is None and _failures(model.program) == _failures(program)
    # What failed had been through the ladder; a block can have become free in it, when it is not looked for again.
    return Verdict(deviation, model.retries + model.spared if is_counted else None)


def find_quiet(evidence: Evidence, program: Program) -> NDArray[np.bool_]:
    """Tell before which operations an ``empty_cache`` would have left no event: there was nothing to give back.

    Parameters are those of `verify`.

    Returns
    -------
    bool array
        One value an operation. All True where the model cannot follow the recording, so that nothing is ruled out.
    """
    run = _Repeated(evidence, program)
    quiet = np.zeros(len(program.codes), bool)
    try:
        for step in run.model.walk(run.begin()):
            quiet[run.kept[step]] = not run.model.would_show
    except (KeyError, IndexError):
        quiet[:] = True
    return quiet


def _quiet_failures(program: Program, events: Events) -> NDArray[np.bool_]:
    """Mark failed requests before which nothing was released, where private pools are in play.

    While one is in use the cache is not released for a request, and whether one was is not recorded.
    """
    quiet: NDArray[np.bool_] = program.codes == Op.FAIL
    if not quiet.any() or all(pool == (0, 0) for pool, _ in program.groups):
        return quiet & False
    before = events.action[np.maximum(program.events - 1, 0)]
    quiet &= (program.events <= 0) | ((before != Action.SEGMENT_FREE) & (before != Action.SEGMENT_UNMAP))
    return quiet


def _failures(program: Program) -> int:
    return int(np.count_nonzero(program.codes == Op.FAIL))


def _next_base(model: Model, recorded: list[tuple[int, str, int, int]]) -> int:
    """Return the address of the recorded event that the model is about to repeat."""
    position = len(model.steps)
    return recorded[position][2] if position < len(recorded) else 1 << 52


def _first_difference(
    history: History,
    program: Program,
    model: Model,
    recorded: list[tuple[int, str, int, int]],
    end: int,
) -> Deviation | None:
    differences: list[Deviation] = []
    lives = history.lifetimes
    ours = np.array([address & _MASK64 for address in model.address], dtype=np.uint64)
    wrong = np.flatnonzero((ours != lives.address) & (lives.alloc_event >= 0))
    if len(wrong):
        number = int(wrong[0])
        differences.append(
            Deviation(
                int(lives.alloc_event[number]),
                f"address {model.address[number]:#x}",
                f"{int(lives.address[number]):#x}",
            )
        )
    different = _first_step(model, recorded)
    if different is not None:
        differences.append(different)
    elif len(model.steps) > len(recorded):
        step = model.steps[len(recorded)]
        event = int(program.events[step.step])
        differences.append(Deviation(event, f"{step.action} of {step.size:,} bytes", "nothing"))
    elif len(model.steps) < len(recorded):
        event, action, _, size = recorded[len(model.steps)]
        differences.append(Deviation(min(event, end - 1), "nothing", f"{action} of {size:,} bytes"))
    return min(differences, key=lambda one: one.event, default=None)


def _first_step(model: Model, recorded: list[tuple[int, str, int, int]]) -> Deviation | None:
    """Compare segment events as far as both go."""
    for step, (event, *expected) in zip(model.steps, recorded, strict=False):
        if [step.action, step.address, step.size] != expected:
            return Deviation(
                event,
                f"{step.action} of {step.size:,} bytes at {step.address:#x}",
                f"{expected[0]} of {expected[2]:,} bytes at {expected[1]:#x}",
            )
    return None
