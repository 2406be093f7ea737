"""From torch's snapshot dict to columns.

`from_snapshot` takes what ``torch.cuda.memory._snapshot()`` returns. Versions differ in which keys exist, so every
key but ``action`` is optional, and what is missing is said in `Trace.warnings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic._errors import SnapshotError
from gpumem_magic.trace.beside import KEY, read_beside
from gpumem_magic.trace.collector import paused_collector
from gpumem_magic.trace.columns import CHUNK, Columns
from gpumem_magic.trace.interning import StackInterner, text_of
from gpumem_magic.trace.model import Action, DeviceTrace, Region, Trace
from gpumem_magic.trace.segments import Budget, read_host_segments, read_segments
from gpumem_magic.trace.times import has_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.trace.model import Events

__all__ = ["convert", "from_snapshot"]

# 1 PiB: sums of 8,000 such sizes stay within 64 bits.
_MAX_SIZE = 2**50
# Microseconds, the year 2255; the view counts in 64-bit floats.
_MAX_TIME = 2**53


def from_snapshot(
    snapshot: object,
    *,
    kind: str | None = None,
    max_entries: int | None = None,
    is_whole: bool = False,
    has_stacks: bool = True,
) -> Trace:
    """Convert a snapshot dict of the running process.

    Parameters
    ----------
    snapshot
        What ``torch.cuda.memory._snapshot()`` (or XPU's) returned, or the list of ``memory_snapshot()``.
    kind
        ``"cuda"`` or ``"xpu"``; told from the settings' names when None.
    max_entries
        Size of the recorder's ring when known: a device that filled it gets a warning.
    is_whole
        The snapshot comes straight from torch, and no kinds of events were left out of its recording. A block's stream
        is its segment's then, so that it need not be read event by event where all segments are on stream 0.
    has_stacks
        False when it was recorded without stacks: none is looked for.

    Returns
    -------
    Trace
        Devices with events or segments.

    Raises
    ------
    SnapshotError
        When the object is not a snapshot.
    """
    with paused_collector():
        return convert(snapshot, kind=kind, max_entries=max_entries, is_whole=is_whole, has_stacks=has_stacks)


def convert(
    snapshot: object,
    *,
    kind: str | None = None,
    max_entries: int | None = None,
    budget: int | None = None,
    is_whole: bool = False,
    has_stacks: bool = True,
) -> Trace:
    """Do the work of `from_snapshot`; `budget` bounds how many entries may be visited (None: no bound)."""
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, Mapping) or not ({"segments", "device_traces"} & snapshot.keys()):
        raise SnapshotError(
            "not a torch memory snapshot: neither segments nor device_traces are in it. "
            "Write one with torch.cuda.memory._dump_snapshot"
        )
    converter = _Converter(Budget(budget), max_entries, is_whole=is_whole, has_stacks=has_stacks)
    try:
        return converter.run(snapshot, kind)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        # Bytes from outside: whatever shape they have, the answer is one line.
        detail = f"{type(error).__name__}: {str(error)[:120]}"
        raise SnapshotError(f"not a torch memory snapshot: its entries have an unknown shape ({detail})") from error


class _Converter:
    def __init__(self, budget: Budget, max_entries: int | None, *, is_whole: bool, has_stacks: bool) -> None:
        self.budget = budget
        self.max_entries = max_entries
        self.is_whole = is_whole
        self.has_stacks = has_stacks
        self.stacks = StackInterner()
        self.warnings: list[str] = []

    def run(self, snapshot: Mapping[str, Any], kind: str | None) -> Trace:
        settings = snapshot.get("allocator_settings") or {}
        settings = dict(settings) if isinstance(settings, Mapping) else {}
        if kind is None:
            kind = "xpu" if any("XPU" in str(key) for key in settings) else "cuda"
        if "segments" not in snapshot:
            self.warnings.append(
                "the snapshot has no segments: what was there before the first event, and what is left, is unknown"
            )
        segments = read_segments(snapshot.get("segments") or (), self.stacks, self.budget, self.warnings)
        traces = snapshot.get("device_traces") or ()
        beside = snapshot.get(KEY)
        beside = beside if isinstance(beside, Mapping) else {}
        devices = []
        for ordinal in sorted({*segments, *(index for index, entries in enumerate(traces) if entries)}):
            if ordinal < 0:
                raise SnapshotError("not a torch memory snapshot: a segment has a negative device")
            entries = traces[ordinal] if ordinal < len(traces) else ()
            own = segments.get(ordinal, ())
            on_stream_0 = self.is_whole and not any(segment.stream for segment in own)
            events, pools = self.events(entries, f"{kind}:{ordinal}", on_stream_0=on_stream_0)
            device = DeviceTrace(ordinal, kind, events, own, pools, has_snapshot="segments" in snapshot)
            known = read_beside(beside.get(device.key), len(events)) if beside else None
            devices.append(device if known is None else replace(device, beside=known))
        host = self.host(snapshot)
        return Trace(
            devices=(*devices, *host),
            stacks=self.stacks.table(),
            regions=self.regions(snapshot.get("external_annotations") or ()),
            settings=settings,
            warnings=tuple(self.warnings),
        )

    def host(self, snapshot: Mapping[str, Any]) -> tuple[DeviceTrace, ...]:
        """Pinned host memory (torch 2.14+): read from headers only, no recording of it was at hand."""
        entries = snapshot.get("host_traces") or ()
        if entries and not isinstance(entries[0], Mapping):
            entries = [entry for part in entries for entry in part]
        blocks = snapshot.get("host_segments") or ()
        if not entries and not blocks:
            return ()
        events, pools = self.events(entries, "host")
        segments = read_host_segments(blocks, self.stacks, self.budget)
        return (DeviceTrace(0, "host", events, segments, pools),)

    def events(
        self, entries: Sequence[Mapping[str, Any]], key: str, *, on_stream_0: bool = False
    ) -> tuple[Events, tuple[tuple[int, int], ...]]:
        self.budget.spend(len(entries))
        columns = self.columns(entries, has_streams=not on_stream_0)
        if on_stream_0 and _names_streams(entries, columns.events().action):
            columns = self.columns(entries, has_streams=True)
        events, unknown = columns.events(), columns.unknown
        if unknown:
            count = int(np.count_nonzero(events.action == Action.UNKNOWN))
            self.warnings.append(
                f"{key}: {count:,} events of unknown kinds ({', '.join(sorted(unknown)[:5])}) were ignored; "
                "the figures leave out what they did"
            )
        # Mostly there is nothing to ask which event it is.
        is_odd = int(events.size.min(initial=0)) < 0 or int(events.size.max(initial=0)) > _MAX_SIZE
        if is_odd and np.any(((events.size < 0) | (events.size > _MAX_SIZE)) & (events.action < Action.OOM)):
            raise SnapshotError(f"not a torch memory snapshot: {key} has an event with an impossible size")
        self.check_times(events.time_us, key)
        if self.max_entries is not None and len(entries) >= self.max_entries:
            self.warnings.append(
                f"{key}: the recording is full ({len(entries):,} events): earlier events were overwritten. "
                "Record with a larger max_entries"
            )
        return events, tuple(columns.pools)

    def columns(self, entries: Sequence[Mapping[str, Any]], *, has_streams: bool) -> Columns:
        columns = Columns(len(entries), self.stacks if self.has_stacks else None, has_streams=has_streams)
        for start in range(0, len(entries), CHUNK):
            columns.read(entries[start : start + CHUNK], start)
        return columns

    def check_times(self, times: NDArray[np.int64], key: str) -> None:
        if int(times.max(initial=0)) > _MAX_TIME or int(times.min(initial=0)) < -_MAX_TIME:
            raise SnapshotError(f"not a torch memory snapshot: {key} has an event with an impossible time")
        if not has_times(times):
            self.warnings.append(f"{key}: no times were recorded (torch before 2.3 has none): events are in order only")
        elif len(times):
            backwards = int(np.count_nonzero(times[1:] < times[:-1]))
            if backwards:
                self.warnings.append(
                    f"{key}: time goes backwards in {backwards:,} places; events are shown in the order recorded"
                )

    def regions(self, annotations: Sequence[Mapping[str, Any]]) -> tuple[Region, ...]:
        self.budget.spend(len(annotations))
        regions: list[Region] = []
        open_at: dict[tuple[int, str], list[int]] = {}
        for annotation in annotations:
            name = text_of(annotation.get("name"))
            device = int(annotation.get("device", 0))
            time_us = int(annotation.get("time_us", 0))
            waiting = open_at.setdefault((device, name), [])
            if annotation.get("stage") == "START":
                waiting.append(len(regions))
                regions.append(Region(name, device, time_us, None))
            elif waiting:
                index = waiting.pop()
                regions[index] = regions[index]._replace(end_us=time_us)
            else:
                regions.append(Region(name, device, None, time_us))
        return tuple(regions)


def _names_streams(entries: Sequence[Mapping[str, Any]], action: NDArray[np.uint8]) -> bool:
    """Tell whether a segment came, went or was wanted on another stream than 0."""
    return any(entries[index].get("stream", 0) for index in np.flatnonzero(action >= Action.SEGMENT_ALLOC).tolist())
