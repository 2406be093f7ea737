"""What sampling this process tells of a cell in which no allocator was watched: numpy, JAX, a subprocess."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic._format import format_bytes, format_duration
from gpumem_magic.analysis.counters import analyse_counters
from gpumem_magic.analysis.groups import PlaceNamer
from gpumem_magic.analysis.lines import attribute
from gpumem_magic.analysis.model import DeviceAnalysis, Group, Headline, Row, SampledCurve
from gpumem_magic.analysis.place import place_text
from gpumem_magic.analysis.sentence import ending, sentence
from gpumem_magic.analysis.timeline import EMPTY_TIMELINE
from gpumem_magic.recording.model import Note, ProcessSeries, SourceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.recording.model import Recording

__all__ = ["ProcessFindings", "analyse_process"]

# An interpreter's own memory moves by this much without anybody's doing.
_WORTH_SHOWING = 4 * 1024 * 1024
# Beside torch, our own modules and the renderer are imported meanwhile: some 50 MiB in the first measured cell.
_WORTH_SHOWING_BESIDE_TORCH = 64 * 1024 * 1024
_REASON = "sampled: owners unknown"
# A GPU is first read 20 ms after the cell began, or, where that starts the driver's reader, up to a second later.
_LATE_US = 250_000


class ProcessFindings(NamedTuple):
    """What was found: devices with something to draw, the report's sentence, and what the reader must know."""

    devices: tuple[DeviceAnalysis, ...]
    sentence: str
    notes: tuple[Note, ...]


def analyse_process(recording: Recording, otherwise: str) -> ProcessFindings | None:
    """Say what this process's memory did in a cell whose own allocations left nothing to draw.

    Parameters
    ----------
    recording
        A finished recording.
    otherwise
        What the report says when the process's memory did not move either.

    Returns
    -------
    ProcessFindings or None
        None where torch was in use and nothing beside it moved.
    """
    every = _series(recording)
    moved = [series for series in every if _peak(series) - min(series.used) >= _least(recording, series)]
    moved.sort(key=lambda series: (not series.key.startswith(("GPU", "cuda")), series.key != "host", series.key))
    counted = _counted(recording)
    remarks = () if recording.process is None else recording.process.remarks
    notes = (*_late(recording, every), *(Note("info", text) for text in remarks))
    if not moved and not counted:
        if recording.source is not SourceKind.NONE:
            return None
        still = [_still(recording, series) for series in every if series.key != "child processes"]
        text = f"{otherwise.removesuffix('.')}; {', '.join(still)}." if still else otherwise
        return ProcessFindings((), text, notes)
    devices = (*counted, *(_device(recording, series) for series in moved))
    if counted:
        text = sentence(counted, recording)
    else:
        parts = [_told(recording, moved[0]), *(_briefly(series) for series in moved[1:4])]
        text = f"{ending(recording)}{'; '.join(parts)}. Sampled, as {_why(recording)}."
    return ProcessFindings(devices, text, (*_warnings(moved), *notes, *_rate(recording, moved)))


def _still(recording: Recording, series: ProcessSeries) -> str:
    since = " at the end (before that not known)" if _is_late(recording, series) else ", as before"
    return f"{_whose(series)} at {format_bytes(series.used[-1])}{since}"


def _is_late(recording: Recording, series: ProcessSeries) -> bool:
    """Tell whether a GPU was first read long after the cell began, so that what it held until then is not known."""
    is_own = series.key.startswith("GPU") and not series.whole_device
    return is_own and series.time_us[0] - recording.started_us > _LATE_US


def _late(recording: Recording, every: Sequence[ProcessSeries]) -> tuple[Note, ...]:
    late = [series for series in every if _is_late(recording, series)]
    if not late:
        return ()
    first = min(series.time_us[0] for series in late)
    looks = max(len(series.used) for series in late)
    keys = " and ".join(series.key for series in late[:3])
    often = "twice" if looks == 2 else f"{looks:,} times"
    text = (
        f"{keys} {'was' if len(late) == 1 else 'were'} read {often} only from "
        f"{format_duration((first - recording.started_us) / 1e6)} after the cell's beginning on: what came and went "
        "before that is not known. A second run of the cell sees it from the beginning"
    )
    return (Note("warning", text),)


def _least(recording: Recording, series: ProcessSeries) -> int:
    """Return by how much a series must have moved to be told of."""
    is_host = series.key == "host"
    return _WORTH_SHOWING_BESIDE_TORCH if is_host and recording.source is not SourceKind.NONE else _WORTH_SHOWING


def _peak(series: ProcessSeries) -> int:
    return max(*series.used, series.highest or 0)


def _series(recording: Recording) -> list[ProcessSeries]:
    if recording.process is not None:
        return [series for series in recording.process.series if len(series.used) > 1]
    found = []
    for after in recording.after:
        before = next((reading for reading in recording.before if reading.device == after.device), None)
        samples = [sample for sample in recording.samples if sample.device == after.device]
        points = [
            (point.time_us, point.process_used)
            for point in (before, *samples, after)
            if point is not None and point.process_used is not None
        ]
        if len(points) > 1 and after.device != "cpu":
            times, values = zip(*sorted(points), strict=True)
            found.append(ProcessSeries(after.device, after.name, after.device_total, times, values))
    return found


def _counted(recording: Recording) -> list[DeviceAnalysis]:
    """Return the devices of which JAX keeps counters, where these moved."""
    process = recording.process
    if process is None or not process.after:
        return []
    known = {reading.device for reading in process.before}
    # JAX was started in the cell: nothing was allocated before.
    fresh = [
        replace(reading, time_us=recording.started_us, allocated=0, reserved=None, max_allocated=0)
        for reading in process.after
        if reading.device not in known
    ]
    own = replace(recording, before=(*process.before, *fresh), after=process.after, samples=process.samples)
    return [device for device in analyse_counters(own) if device.sampled is not None and _has_moved(device)]


def _has_moved(device: DeviceAnalysis) -> bool:
    headline = device.headline
    rose = (headline.allocated_peak or 0) > (headline.allocated_before or 0)
    return rose or (device.sampled is not None and bool(np.ptp(device.sampled.value)))


def _device(recording: Recording, series: ProcessSeries) -> DeviceAnalysis:
    end_us = max(recording.ended_us, recording.started_us + 1)
    times = np.clip(np.array(series.time_us, np.int64), recording.started_us, end_us)
    # The last look comes after the end; the curve reaches from edge to edge, where that is known.
    is_late = _is_late(recording, series)
    times[-1] = end_us
    if not is_late:
        times[0] = recording.started_us
    values = np.array(series.used, np.int64)
    peak = _peak(series)
    why = series.reason or _REASON
    missing = dict.fromkeys(("peak_us", "stayed", "freed"), why)
    if is_late:
        missing["allocated_before"] = "not read before the cell had run for a while"
    label = "all processes on it" if series.whole_device else _whose(series)
    return DeviceAnalysis(
        key=series.key,
        name=series.name,
        kind="cpu" if series.key in {"host", "child processes"} else "cuda",
        total=series.total,
        limit=None,
        events=0,
        start_us=recording.started_us,
        end_us=end_us,
        headline=Headline(
            allocated_before=None if is_late else int(values[0]), allocated_peak=peak, allocated_after=int(values[-1])
        ),
        groups=(Group("unknown", label, reason=why), Group("rounding", "rounding and unsplit remainders")),
        peak=(Row(0, peak, 0),) if peak else (),
        end=(Row(0, int(values[-1]), 0),) if values[-1] else (),
        stayed=(),
        peak_group=None,
        markers=(),
        regions=(),
        lanes=(),
        timeline=EMPTY_TIMELINE,
        sampled=SampledCurve(times, values, "process"),
        missing=missing,
        exact=False,
    )


def _whose(series: ProcessSeries) -> str:
    if series.key == "host":
        return "this process's host memory"
    if series.key == "child processes":
        return "host memory of child processes"
    return f"{'all memory in use' if series.whole_device else 'memory of this process'} on {series.key}"


def _told(recording: Recording, series: ProcessSeries) -> str:
    """Say what the first of the series did, and which line ran while it rose most."""
    before, after = series.used[0], series.used[-1]
    peak = _peak(series)
    whose = _whose(series)
    name = whose[0].upper() + whose[1:]
    if series.key == "child processes" and peak - before >= _WORTH_SHOWING:
        place = _line_of_rise(recording, series, series.used.index(peak))
        left = f", {format_bytes(after)} at the end" if after else ""
        return f"Child processes held up to {format_bytes(peak)} of host memory{place}{left}"
    if _is_late(recording, series):
        return f"{name} was up to {format_bytes(peak)}, {format_bytes(after)} at the end; before that not known"
    top = max(series.used)
    if peak - before < _WORTH_SHOWING:
        return f"{name} fell from {format_bytes(before)} to {format_bytes(after)}"
    # Where the system's own mark is far above every sample, no sample tells when that was.
    near = peak - top < max(_WORTH_SHOWING, (peak - before) // 10)
    place = _line_of_rise(recording, series, series.used.index(top)) if near else ""
    text = f"{name} rose by {format_bytes(peak - before)} to {format_bytes(peak)}{place}"
    change = after - before
    if peak - after < _WORTH_SHOWING:
        return f"{text} and stayed there"
    if abs(change) < _WORTH_SHOWING:
        return f"{text} and came back"
    return f"{text}, {format_bytes(abs(change))} {'more' if change > 0 else 'less'} at the end than before"


def _briefly(series: ProcessSeries) -> str:
    peak, before = _peak(series), series.used[0]
    if series.key == "child processes":
        return f"child processes held up to {format_bytes(peak)}"
    if peak - before < _WORTH_SHOWING:
        return f"{_whose(series)} fell by {format_bytes(before - series.used[-1])}"
    return f"{_whose(series)} up to {format_bytes(peak)}"


def _line_of_rise(recording: Recording, series: ProcessSeries, top: int) -> str:
    """Name the line that ran while memory rose most on its way to a sample.

    Not the one that ran at the highest sample: by then, what took the memory may be done. Where several ran between two
    samples, host memory is taken to be of the longest, as its pages are filled at some 4 GB/s; a GPU's comes at once.
    """
    steps = np.diff(np.array(series.used[: top + 1], np.int64))
    if not len(steps):
        return ""
    step = int(steps.argmax())
    since, until = series.time_us[step : step + 2]
    begun, ended = _line_at(recording, since), _line_at(recording, until)
    if begun is not None and ended is not None and begun != ended:
        if series.key not in {"host", "child processes"}:
            return f" between {begun} and {ended}"
        ended = _longest_line(recording, since, until)
    return "" if ended is None else f" while {ended} ran"


def _longest_line(recording: Recording, since_us: int, until_us: int) -> str | None:
    marks = recording.marks
    if marks is None:
        return None
    edges = np.unique(np.append(np.clip(marks.time_us, since_us, until_us), [since_us, until_us]))
    places = attribute(marks, edges[:-1]).place
    known, which = np.unique(places, return_inverse=True)
    taken = np.bincount(which, weights=np.diff(edges))
    return _line_named(recording, int(known[taken.argmax()]))


def _line_at(recording: Recording, time_us: int) -> str | None:
    marks = recording.marks
    if marks is None or not recording.started_us <= time_us <= recording.ended_us:
        return None
    return _line_named(recording, int(attribute(marks, np.array([time_us], np.int64)).place[0]))


def _line_named(recording: Recording, number: int) -> str | None:
    if recording.marks is None or number < 0:
        return None
    namer = PlaceNamer(recording.cell)
    frame = namer.pick(recording.marks.places[number], deep=False)
    return None if frame is None else place_text(namer.line(*frame)[1])


def _why(recording: Recording) -> str:
    return {
        SourceKind.NONE: "torch was not used in this cell",
        SourceKind.CPU: "the cell made no CPU tensor",
    }.get(recording.source, "torch allocated nothing in this cell")


def _warnings(moved: Sequence[ProcessSeries]) -> tuple[Note, ...]:
    shown = "this process's share is not known, the whole device's memory is shown"
    return tuple(
        Note("warning", f"{series.key}: {f'{shown} ({why})' if series.whole_device else why}")
        for series in moved
        if (why := series.reason)
    )


def _rate(recording: Recording, moved: Sequence[ProcessSeries]) -> tuple[Note, ...]:
    if not moved:
        return ()
    seconds = max(recording.ended_us - recording.started_us, 1) / 1e6
    # The first and the last look stand at the edges.
    count = max(len(series.used) for series in moved) - 2
    looks = None if recording.process is None else recording.process.looks
    if looks is not None:
        # What child processes hold is read more seldom than the rest, and how often is not kept.
        count = 0 if all(series.key == "child processes" for series in moved) else max(count, looks)
    rate = f"read {count / seconds:.0f} times a second" if count > max(seconds, 2) else f"read {count + 2} times in all"
    if not count and looks is not None:
        rate = "sampled"
    text = (
        f"{rate}, from the driver and the operating system: what came and went in between is not seen, nor who "
        "allocated; a line is the one that ran while memory rose most"
    )
    if any(series.highest is not None for series in moved):
        text += ". The peak of host memory is the system's own mark, which misses nothing"
    notes = [Note("info", text)]
    if any(series.key == "child processes" for series in moved):
        notes.append(Note("info", "memory that several child processes share counts in each of them"))
    return tuple(notes)
