"""Commands that read a snapshot file: ``summary`` and ``peak``."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic._format import format_bytes, format_count, format_duration, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.alive import Alive, AliveGroup
    from gpumem_magic.analysis.summary import Counter, DeviceSummary
    from gpumem_magic.trace.model import DeviceTrace, Events, Trace

__all__ = ["add_parsers", "open_snapshot", "pick_device", "print_table", "printable"]

_COUNTERS = ("requested", "allocated", "active", "reserved")
_DEFAULT_TOP = 20


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register this family's commands."""
    _add_summary(commands)
    _add_peak(commands)


def open_snapshot(path: str) -> Trace:
    """Read a snapshot file that holds something.

    Raises
    ------
    SnapshotError
        Also when nothing was recorded.
    """
    # Here and in the commands: numpy is imported when a file is read, not for --help.
    from gpumem_magic.trace.reader import read_trace

    trace = read_trace(path)
    if not trace.devices:
        raise SnapshotError(
            f"{path}: nothing was recorded: no events and no segments. Call torch.cuda.memory._record_memory_history() "
            "before the work, and _dump_snapshot() before recording is stopped"
        )
    return trace


def pick_device(trace: Trace, wanted: str) -> DeviceTrace:
    """Find a device by ordinal (``"1"``) or by torch's notation (``"cuda:1"``).

    Raises
    ------
    BadUsageError
        When the recording does not have it.
    """
    for device in trace.devices:
        if wanted in {device.key, str(device.device) if device.kind in {"cuda", "xpu"} else device.key}:
            return device
    known = ", ".join(device.key for device in trace.devices)
    raise BadUsageError(f"no device {wanted} in the recording; it has {known}")


def printable(text: str) -> str:
    """Return lines of text without characters that would steer the terminal."""
    # Isolates keep a right-to-left source line from turning its row around.
    return visible(text, keep="\n\u2066\u2069")


def print_table(rows: Sequence[Sequence[str]], *, left: frozenset[int] = frozenset({0}), indent: str = "  ") -> None:
    """Print rows in aligned columns: those in `left` to the left, the others to the right."""
    # A file or function name from a foreign snapshot must not steer the terminal.
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print((indent + "  ".join(cells)).rstrip())


def _add_summary(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "summary",
        help="what a snapshot file holds, device by device",
        description="Print requested, allocated, active and reserved bytes (before, peak, end) of every device in a "
        "snapshot file, exact to the byte, with failed requests and retries.",
    )
    parser.add_argument("file", metavar="FILE", help="a torch memory snapshot: pickle, .gz or .xz")
    parser.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")
    parser.set_defaults(run=_run_summary)


def _run_summary(arguments: argparse.Namespace) -> int:
    from gpumem_magic.analysis.summary import summarize

    trace = open_snapshot(arguments.file)
    devices = summarize(trace)
    warnings = [*trace.warnings, *(line for device in devices for line in device.warnings)]
    if arguments.json:
        print(json.dumps({"devices": [_summary_json(device) for device in devices], "warnings": warnings}))
        return 0
    for device in devices:
        _print_summary(device)
    for line in warnings:
        print(f"warning: {line}")
    return 0


def _summary_json(device: DeviceSummary) -> dict[str, Any]:
    fields = asdict(device)
    del fields["warnings"]
    return fields


def _print_summary(device: DeviceSummary) -> None:
    span = ""
    if device.span_us:
        first, last = device.span_us
        span = f" in {format_duration((last - first) / 1e6)}, from {_clock(first)}"
    retries = "unknown" if device.retries is None else format_count(device.retries)
    print(f"{device.device}: {format_count(device.events)} events{span}")
    rows: list[tuple[str, ...]] = [("", "before", "peak", "end", "peak at")]
    for name in _COUNTERS:
        counter: Counter = getattr(device, name)
        since = "-"
        if counter.peak_time_us is not None and device.span_us:
            since = "+" + format_duration((counter.peak_time_us - device.span_us[0]) / 1e6)
        sizes = (format_bytes(size) for size in (counter.start, counter.peak, counter.end))
        rows.append((name, *sizes, since))
    print_table(rows)
    print(f"  out of memory: {format_count(device.ooms)}, retries after freeing the cache: {retries}")


def _add_peak(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "peak",
        help="who was alive at the allocated peak",
        description="Print who was alive when allocated bytes were highest, by the line of code that allocated it. "
        "The rows add up to the peak exactly.",
    )
    parser.add_argument("file", metavar="FILE", help="a torch memory snapshot: pickle, .gz or .xz")
    parser.add_argument("--device", metavar="N", help="ordinal, or a name such as cuda:1 (default: the highest peak)")
    parser.add_argument(
        "--top", metavar="K", type=int, help=f"lines to name (default: {_DEFAULT_TOP}, all with --json)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")
    parser.set_defaults(run=_run_peak)


def _run_peak(arguments: argparse.Namespace) -> int:
    from gpumem_magic.analysis.alive import alive_at, peak_event
    from gpumem_magic.analysis.stackless import infer_frames

    if arguments.top is not None and arguments.top < 1:
        raise BadUsageError("--top must be at least 1")
    trace = open_snapshot(arguments.file)
    device, replayed, known = _device_and_history(trace, arguments.device)
    event = peak_event(replayed)
    alive = alive_at(replayed, trace.stacks, event, inferred=infer_frames(device.events, known, trace.stacks))
    times = device.events.time_us
    time_us = int(times[max(event, 0)]) or None if len(times) else None
    warnings = [*trace.warnings, *replayed.warnings]
    if arguments.json:
        groups = _top(alive.groups, arguments.top or len(alive.groups))
        print(
            json.dumps(
                {
                    "device": device.key,
                    "allocated_peak": alive.allocated,
                    "time_us": time_us,
                    "requested_bytes": alive.requested,
                    "groups": [_group_json(group) for group in groups],
                    "rounding_bytes": alive.rounding,
                    "warnings": warnings,
                }
            )
        )
        return 0
    start = int(times[0]) if len(times) else None
    _print_peak(device, alive, _top(alive.groups, arguments.top or _DEFAULT_TOP), time_us, start)
    for line in warnings:
        print(f"warning: {line}")
    return 0


def _device_and_history(trace: Trace, wanted: str | None) -> tuple[DeviceTrace, History, list[tuple[Events, History]]]:
    """Return the device asked for or that with the highest peak, its replay, and what all devices did."""
    from gpumem_magic.allocator.replay import history

    chosen = None if wanted is None else pick_device(trace, wanted)
    replayed = [(device, history(device, trace.settings)) for device in trace.devices]
    device, own = max(
        (pair for pair in replayed if chosen is None or pair[0] is chosen),
        key=lambda pair: int(pair[1].allocated.max()),
    )
    return device, own, [(other.events, its_own) for other, its_own in replayed]


def _top(groups: tuple[AliveGroup, ...], count: int) -> tuple[AliveGroup, ...]:
    """Keep the largest groups and make one of the others, so that the sum stays."""
    from gpumem_magic.analysis.alive import AliveGroup

    if len(groups) <= count:
        return groups
    rest = groups[count:]
    other = AliveGroup(
        file=None,
        line=None,
        function=None,
        requested=sum(group.requested for group in rest),
        size=sum(group.size for group in rest),
        blocks=sum(group.blocks for group in rest),
        reason=f"{len(rest):,} other lines",
        inferred=sum(group.inferred for group in rest),
    )
    return (*groups[:count], other)


def _group_json(group: AliveGroup) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "file": group.file,
        "line": group.line,
        "function": group.function,
        "bytes": group.requested,
        "blocks": group.blocks,
    }
    if group.reason is not None:
        fields["reason"] = group.reason
    if group.inferred:
        fields["inferred_bytes"] = group.inferred
    return fields


def _print_peak(
    device: DeviceTrace, alive: Alive, groups: Sequence[AliveGroup], time_us: int | None, start_us: int | None
) -> None:
    when = ""
    if time_us is not None and start_us is not None:
        when = f" at {_clock(time_us)} (+{format_duration(max(time_us - start_us, 0) / 1e6)})"
    print(f"{device.key}: peak {format_bytes(alive.allocated)} allocated{when}")
    if not alive.allocated:
        return
    rows = [
        (format_bytes(group.requested), _share(group.requested, alive), f"{format_count(group.blocks)}×", _where(group))
        for group in groups
    ]
    rounding = "rounding and unsplit remainders"
    rows.append((format_bytes(alive.rounding), _share(alive.rounding, alive), "", rounding))
    print_table(rows, left=frozenset({3}))
    inferred = sum(group.inferred for group in groups)
    if inferred:
        print(
            f"  {format_bytes(inferred)} of this has no stack (autograd's thread) and stands at the line that the "
            "program was in before and after it"
        )


def _share(part: int, alive: Alive) -> str:
    return f"{100 * part / alive.allocated:.1f} %"


def _where(group: AliveGroup) -> str:
    if group.file is None:
        return f"({group.reason})"
    place = f"{group.file}:{group.line}" if group.line else group.file
    return f"{place} {group.function}"


def _clock(time_us: int) -> str:
    # Local time: the reader's clock, and the notebook's.
    try:
        return datetime.fromtimestamp(time_us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{time_us} µs"
