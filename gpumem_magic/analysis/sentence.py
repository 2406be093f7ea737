"""The first line of a report: what happened, where, and what is left, for a tired reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, visible
from gpumem_magic.analysis.place import STATEMENT, place_text
from gpumem_magic.recording.model import Outcome, SourceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.model import DeviceAnalysis, Row
    from gpumem_magic.analysis.oom import OomVerdict
    from gpumem_magic.recording.model import Cell, Recording

__all__ = ["ending", "has_no_code", "nothing_sentence", "place_text", "sentence"]

# Less unused reserve than this is how the allocator works, not news.
_WORTH_NAMING = 256 * 1024 * 1024
# A line that holds less of the peak only came last.
_HARDLY = 0.01
# A line that holds less of it is no answer either.
_MUCH = 0.2


def _peak(device: DeviceAnalysis, *, named: bool) -> str:
    headline = device.headline
    peak = headline.allocated_peak
    on = f" on {device.key}" if named else ""
    if peak is None:
        return f"Peak{on} unknown"
    # The CPU's source keeps the first events, so a higher peak may have come later; a GPU's peak is torch's counter.
    least = "at least " if device.kind == "cpu" and not device.exact else ""
    text = f"Peak {least}{format_bytes(peak)}{on}"
    if device.sampled is not None:
        return text
    if headline.peak_us is None:
        return f"{text} in the part of the recording that was lost"
    if device.peak_group is None:
        return f"{text} before the first allocation"
    group = device.groups[device.peak_group]
    if group.kind in {"line", "frame"}:
        return f"{text} at {place_text(group)}"
    if group.kind == "unknown" and group.label != "no stacks":
        return f"{text} ({group.label}: {group.reason})" if group.reason else f"{text} ({group.label})"
    return text


def _stayed(device: DeviceAnalysis) -> str:
    headline = device.headline
    if headline.stayed is None:
        if headline.allocated_before is None or headline.allocated_after is None:
            return ""
        change = headline.allocated_after - headline.allocated_before
        return f"{format_bytes(change, signed=True)} over the cell" if change else "as much after as before"
    if headline.stayed == 0:
        return f"nothing stayed, {_freed(device)}" if headline.freed else "nothing stayed"
    text = "all of it" if headline.stayed == headline.allocated_peak else format_bytes(headline.stayed)
    text = f"{text} stayed"
    owner = _main_owner(device, device.stayed, headline.stayed)
    if owner:
        text += f" ({owner})"
    return f"{text}, {_freed(device)}" if headline.freed else text


def _peak_and_stayed(device: DeviceAnalysis, peak: str) -> list[str]:
    """Put both together; a line that reached the peak and holds what stayed is named once."""
    stayed = _stayed(device)
    holder = _holder(device)
    if holder and f"({holder})" not in stayed:
        # The line that came last is hardly the one to look at.
        peak = f"{peak} ({holder})"
    group = None if device.peak_group is None else device.groups[device.peak_group]
    if group is not None and device.headline.stayed and group.kind in {"line", "frame"}:
        here = place_text(group)
        owner = f" (allocated at {here})"
        if peak.endswith(f" at {here}") and owner in stayed:
            if device.headline.stayed == device.headline.allocated_peak:
                return [peak, stayed.replace(owner, "", 1)]
            return [peak.removesuffix(f" at {here}"), stayed.replace(owner, f", both at {here}", 1)]
    return [peak, stayed] if stayed else [peak]


def _holder(device: DeviceAnalysis) -> str:
    """Say who holds most of a peak that a line with next to nothing of it reached; nothing where there is no need."""
    peak = device.headline.allocated_peak
    if not peak or device.peak_group is None or device.groups[device.peak_group].kind not in {"line", "frame"}:
        return ""
    own = sum(row.bytes for row in device.peak if row.group == device.peak_group)
    top = max(device.peak, key=lambda row: row.bytes, default=None)
    if top is None or own >= _HARDLY * peak or top.bytes < _MUCH * peak:
        return ""
    if device.groups[top.group].kind == "before":
        return f"{top.bytes / peak:.0%} of it from before the cell"
    return _main_owner(device, [top], peak)


def _freed(device: DeviceAnalysis) -> str:
    return f"{format_bytes(device.headline.freed or 0)} from before was freed"


def _main_owner(device: DeviceAnalysis, rows: Sequence[Row], total: int) -> str:
    known = [row for row in rows if device.groups[row.group].kind in {"line", "frame"}]
    if not known or total <= 0:
        return ""
    top = known[0]
    # Rounding belongs to what was rounded: a number of 4 bytes in a block of 512 is not 1% of what stayed.
    rounding = sum(row.bytes for row in rows if device.groups[row.group].kind == "rounding")
    share = top.bytes / max(total - rounding, top.bytes, 1)
    place = place_text(device.groups[top.group])
    if share > 0.9:
        return f"allocated at {place}"
    if share >= 0.35:
        return f"{share:.0%} allocated at {place}"
    return f"{share:.0%}, the largest part, allocated at {place}"


def _room(device: DeviceAnalysis) -> str:
    headroom = device.headline.headroom
    if headroom is None:
        return ""
    return f"{format_bytes(max(headroom, 0))} to the limit"


def _failure(recording: Recording | None, oom: OomVerdict | None) -> str:
    """Say how it ended when it did not end well."""
    outcome = recording.outcome if recording is not None else None
    if outcome is Outcome.OUT_OF_MEMORY:
        return "Out of memory. " if oom is None else f"{oom.sentence} "
    ended = "Interrupted. " if outcome is Outcome.INTERRUPTED else ""
    if recording is not None and outcome is Outcome.ERROR:
        kind = (recording.error or "an error").split(":", 1)[0]
        ended = f"Ended with {kind}. "
    # A library (cuDNN) or the cell itself caught it, or the file does not say how its program ended.
    return ended if oom is None else f"{oom.sentence} {ended}"


def ending(recording: Recording) -> str:
    """Say how the cell ended when it did not end well, as the beginning of a sentence; else nothing."""
    return _failure(recording, None)


def _reserved(device: DeviceAnalysis) -> str:
    """Name a reserve that grew far beyond what was ever needed at once."""
    headline = device.headline
    peak, top, before = headline.allocated_peak, headline.reserved_peak, headline.reserved_before
    if not peak or top is None or before is None or top <= before or top < 2 * peak or top - peak < _WORTH_NAMING:
        return ""
    return f"reserved grew to {format_bytes(top)}, {top / peak:.1f}× the peak"


def _named_once(first: str, text: str, devices: Sequence[DeviceAnalysis]) -> str:
    """Return both, with a line's code quoted where it is named first; later in `text` it goes by its number."""
    for group in (group for device in devices for group in device.groups if group.source):
        place = place_text(group)
        label = "the statement" if group.label == STATEMENT else visible(group.label)
        if place in first:
            text = text.replace(place, label)
        elif text.count(place) > 1:
            before, _, after = text.partition(place)
            text = f"{before}{place}{after.replace(place, label)}"
    return first + text


def sentence(
    devices: Sequence[DeviceAnalysis], recording: Recording | None, oom: OomVerdict | None = None, *, first: str = ""
) -> str:
    """Write the sentence for what has something to show.

    Parameters
    ----------
    devices
        At least one, the one with the highest peak first.
    recording
        The cell's recording, or None for a file.
    oom
        Why memory ran out, or None.
    first
        What is said before it, with a blank at its end.
    """
    device = devices[0]
    headline = device.headline
    parts = [_peak(device, named=len(devices) > 1)]
    if oom is not None and not headline.allocated_peak:
        # The very first request failed, and there is nothing more to say.
        return f"{first}{_failure(recording, oom)}".rstrip()
    if headline.allocated_peak is not None and headline.allocated_peak == headline.allocated_before and headline.freed:
        # Nothing went above the start: what was freed is the news.
        parts = [f"Freed {format_bytes(headline.freed)} from before"]
        if headline.stayed:
            parts.append(_stayed(device).removesuffix(f", {_freed(device)}"))
        if headline.allocated_after is not None:
            parts.append(f"{format_bytes(headline.allocated_after)} left")
    else:
        parts = _peak_and_stayed(device, parts[0])
    grown = _reserved(device)
    if grown:
        parts.append(grown)
    room = _room(device)
    if room and oom is None:
        parts.append(room)
    if device.kind == "cpu" and recording is not None:
        parts.append("CPU tensors of this cell only")
    if device.sampled is not None:
        parts.append("by counters only")
    text = ", ".join(parts)
    others = [
        f"{other.key} peak {format_bytes(other.headline.allocated_peak)}"
        for other in devices[1:4]
        if other.headline.allocated_peak is not None
    ]
    if others:
        more = f" and {len(devices) - 4} more" if len(devices) > 4 else ""
        text += f"; {', '.join(others)}{more}"
    if recording is not None and recording.cell.runs > 1:
        text += f"; the body ran {recording.cell.runs:,} times"
    # Verdicts stay word for word as they are told elsewhere.
    return _named_once(f"{first}{_failure(recording, oom)}", f"{text}.", devices)


def has_no_code(cell: Cell) -> bool:
    """Tell whether a cell is its magic's line and nothing else but comments."""
    lines = [line for line in map(str.strip, cell.source.splitlines()) if line and not line.startswith("#")]
    return len(lines) == 1 and lines[0].startswith("%%gpumem")


def nothing_sentence(recording: Recording, held: int | None, oom: OomVerdict | None = None) -> str:
    """Say in one line why there is nothing to draw.

    Parameters
    ----------
    recording
        The cell's recording.
    held
        Bytes that torch held all the time, or None when unknown.
    oom
        Why memory ran out, or None.
    """
    failure = _failure(recording, oom)
    if has_no_code(recording.cell):
        text = "There is no code below %%gpumem"
    elif recording.source is SourceKind.NONE:
        reason = next((note.text for note in recording.notes if note.level == "warning"), "")
        text = f"Nothing to show: {reason}" if reason else "Nothing to show: torch was not used in this cell"
    elif recording.source is SourceKind.COUNTERS:
        text = "Allocated memory did not change, as far as counters tell"
    elif recording.source is SourceKind.CPU:
        text = "Nothing was allocated: no CPU tensor was made in this cell"
    else:
        text = "Nothing was allocated or freed on a GPU in this cell"
    if held:
        text += f"; {format_bytes(held)} is allocated, as before"
    return failure + text.rstrip(".") + "."
