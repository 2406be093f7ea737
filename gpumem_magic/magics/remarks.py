"""What a report remarks on beside its numbers: an earlier error's memory, doubled models, a first step to come."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumem_magic.analysis.model import Analysis
    from gpumem_magic.book import Origin
    from gpumem_magic.holders import HolderScan, ToldSteps
    from gpumem_magic.recording.model import DeviceReading, Recording

__all__ = ["Leftover", "children_notes", "held_by_error", "leftover_notes", "outside_notes", "remarks"]

_LEAST = 1 << 20
# Of memory outside torch: loading one library's kernels takes a few dozen MiB, a process group of NCCL hundreds.
_OUTSIDE_LEAST = 64 << 20
# A context with its kernels and libraries takes 0.3 to 0.9 GiB (0.5 GiB on an H200 with torch 2.11).
_MOST_OF_A_CONTEXT = 1 << 30
# What the frames of one error reach is found in milliseconds.
_SECONDS = 0.05


class _Told:
    """What was told of already. One for the kernel."""

    steps: ToldSteps | None = None


class Leftover(NamedTuple):
    """A storage that the last error held when a cell began.

    `holder` is the way to it, `model` the class of the module that it belongs to or ``""``. `title` and `cell_key` are
    those of the run that made it, both ``""`` where that is not known.
    """

    device: str
    address: int
    bytes: int
    holder: str
    model: str
    title: str
    cell_key: str


def held_by_error(shell: Any, origin: Callable[[str, int], Origin | None]) -> tuple[Leftover, ...]:
    """Return what the last error holds; nothing is looked at when there is none, or no torch.

    Parameters
    ----------
    shell
        IPython's shell.
    origin
        Which run made the block at (device, address).
    """
    ended = getattr(shell, "last_execution_result", None)
    errors = (getattr(sys, "last_value", None), getattr(ended, "error_in_exec", None))
    if all(error is None for error in errors) or "torch" not in sys.modules:
        return ()
    from gpumem_magic.holders import who_holds

    try:
        scan = who_holds(shell, budget=_SECONDS, quick=True, only_errors=True)
    except Exception:  # noqa: BLE001 - any object may be hostile; the cell begins all the same, without this note
        return ()
    models = {key: model.name for model in reversed(scan.models) for key in model.storages}
    found = []
    for storage in scan.storages:
        key = (storage.device, storage.address)
        made = origin(*key)
        title, cell_key = ("", "") if made is None else (made.entry.title, made.entry.cell_key)
        found.append(Leftover(*key, storage.size, storage.holders[0].root, models.get(key, ""), title, cell_key))
    return tuple(found)


def leftover_notes(found: Sequence[Leftover], scan: HolderScan | None, cell_key: str) -> tuple[Note, ...]:
    """Say what the last error held when the cell began, one note for each device.

    Parameters
    ----------
    found
        From before the cell.
    scan
        Who holds what after it: what a variable still reaches was not held by the error alone.
    cell_key
        What runs of the cell have in common.
    """
    if not found or scan is None:
        return ()
    named = {(item.device, item.address) for item in scan.storages if item.holders[0].kind.name == "VARIABLE"}
    by_device: dict[str, list[Leftover]] = defaultdict(list)
    for one in found:
        if (one.device, one.address) not in named:
            by_device[one.device].append(one)
    texts = [
        _text(device, mine, cell_key) for device, mine in by_device.items() if sum(one.bytes for one in mine) >= _LEAST
    ]
    return tuple(Note("info", text) for text in texts)


def _text(device: str, found: Sequence[Leftover], cell_key: str) -> str:
    first = max(found, key=lambda one: one.bytes)
    size = format_bytes(sum(one.bytes for one in found))
    whose = ""
    if first.cell_key:
        whose = " of this cell's previous run" if first.cell_key == cell_key else f" that {first.title} made"
    what = ""
    if first.model:
        from gpumem_magic.holders import count_models

        count = count_models(first.model)
        alive = "" if count is None else f", {count} {'instance' if count == 1 else 'instances'} alive now"
        what = f" (class {first.model}{alive})"
    return (
        f"when this run began, {size}{whose} {'was' if len(found) == 1 else 'were'} still alive on {device} via "
        f"{first.holder}{what}: %gpumem_free before the run gives it back"
    )


def remarks(recording: Recording, analysis: Analysis, scan: HolderScan | None, cell_key: str) -> tuple[Note, ...]:
    """Return what is worth saying of a report: values that were paid for twice, models, a first step to come.

    Parameters
    ----------
    recording, analysis
        What was recorded and what it means.
    scan
        Who holds what after the cell; None where nobody looked.
    cell_key
        What runs of the cell have in common.
    """
    from gpumem_magic.analysis.gather import gather_notes
    from gpumem_magic.analysis.rebound import rebound_notes

    own = (*rebound_notes(recording, analysis), *gather_notes(recording, analysis))
    own = (*own, *_duplicate_notes(analysis, scan), *_forecast_notes(scan, cell_key))
    return (*own, *outside_notes(recording), *children_notes(recording))


def outside_notes(recording: Recording) -> tuple[Note, ...]:
    """Say what this process took of a device past torch's allocator while the cell ran.

    Known where the driver told this process's share before and after; the context itself, which the first use makes,
    has no before.
    """
    found = []
    for after in recording.after:
        before = next((one for one in recording.before if one.device == after.device), None)
        was, now = None if before is None else _outside(before), _outside(after)
        if was is None or now is None or now - was < _OUTSIDE_LEAST:
            continue
        text = (
            f"this process took {format_bytes(now - was)} of {after.device} past torch's allocator in this cell, "
            f"{format_bytes(now)} in all: kernels that were loaded, cuBLAS, NCCL or another library; no tensor"
        )
        found.append(Note("info", text))
    return tuple(found)


def children_notes(recording: Recording) -> tuple[Note, ...]:
    """Say what processes that this one has started hold of the devices: each that touches one pays for a context.

    The driver is asked where something beside this process holds memory there, and else not.
    """
    crowded = [reading for reading in recording.after if (_others(reading) or 0) >= _OUTSIDE_LEAST]
    if not crowded:
        return ()
    from gpumem_magic.recording.neighbours import processes_on

    by_device: dict[str, list[int]] = defaultdict(list)
    for process in processes_on(crowded):
        if process.is_child and process.used:
            by_device[process.device].append(process.used)
    return tuple(Note("info", _children_text(device, held)) for device, held in by_device.items())


def _others(reading: DeviceReading) -> int | None:
    if reading.device_used is None or reading.process_used is None:
        return None
    return reading.device_used - reading.process_used


def _children_text(device: str, held: Sequence[int]) -> str:
    idle = [size for size in held if size <= _MOST_OF_A_CONTEXT]
    count = "one process" if len(held) == 1 else f"{format_count(len(held))} processes"
    verb = "is" if len(held) == 1 else "are"
    text = f"{count} that this notebook started {verb} on {device} and hold{'s' if len(held) == 1 else ''} "
    text += f"{format_bytes(sum(held))} there"
    if not idle:
        return text
    about = format_bytes(sum(idle) // len(idle))
    if len(held) == 1:
        whose = "it has little more than a CUDA context"
    elif len(idle) == len(held):
        whose = f"each has little more than a CUDA context (about {about})"
    else:
        has = "has" if len(idle) == 1 else "have"
        whose = f"{format_count(len(idle))} of them {has} little more than a CUDA context (about {about} each)"
    return f"{text}: {whose}, which a worker needs only where it computes on the GPU"


def _outside(reading: DeviceReading) -> int | None:
    if not reading.process_used or reading.reserved is None:
        return None
    return reading.process_used - reading.reserved


def _duplicate_notes(analysis: Analysis, scan: HolderScan | None) -> tuple[Note, ...]:
    """Say which variable that the cell filled has the shapes of a model's parameters: a checkpoint, as a rule."""
    from gpumem_magic.holders import duplicate_text, duplicates

    filled = {_root(row.path) for device in analysis.devices for row in device.held}
    found = duplicates(scan) if scan is not None and filled else ()
    return tuple(Note("info", duplicate_text(one)) for one in found if one.copy in filled)


def _forecast_notes(scan: HolderScan | None, cell_key: str) -> tuple[Note, ...]:
    """Say what the first step of an optimizer will add, once there are gradients for it, and not in each later cell."""
    if scan is None or not any(storage.category.name == "GRADIENT" for storage in scan.storages):
        return ()
    from gpumem_magic.holders import ToldSteps, first_step_text, first_steps

    if _Told.steps is None:
        _Told.steps = ToldSteps()
    news = _Told.steps.news(first_steps(), cell_key)
    # An optimizer of a former run that waits for the collector says the same.
    return tuple(Note("info", text) for text in dict.fromkeys(map(first_step_text, news)))


def _root(path: str) -> str:
    return path.split(".", 1)[0].split("[", 1)[0]
