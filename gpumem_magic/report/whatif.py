"""What another allocator setting would have done with a recorded program: questions and answers as plain data.

The replay itself is `gpumem_magic.allocator`; the command line, the magic, the exported report and the live tab all
ask here, and `whatif_words` puts the answer into words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic.allocator.replay import reserved_bytes
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.trace.model import Action, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumem_magic.allocator.lab import Lab
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.allocator.whatif import Prediction
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.analysis.segments import MemoryRecord

__all__ = [
    "SUGGESTED",
    "Answer",
    "Cap",
    "Facts",
    "Question",
    "Row",
    "answer_of",
    "bare",
    "explore",
    "facts_of",
    "natural_cap",
    "question_for",
    "row_of",
    "rows_of",
    "why_not",
    "with_line",
]

#: What people try, with the values that articles name. The garbage collector acts under a limit only.
SUGGESTED = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "expandable_segments:True,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
)
# A setting that gives back less than this share of what was reserved is no reason to change anything.
_WORTH = 0.02
_WORTH_BYTES = 20 << 20

# Folders in front of a file's name.
_BARE = re.compile(r"^.*[/\\\\]")

_NO_FRACTION = "not replayed: torch collects only under a memory fraction (set_per_process_memory_fraction)"
_NO_LIMIT = "not replayed: torch collects only under a memory limit"
_NEVER_SPLITS = "not replayed: no block reaches that size"
_NEVER_ROUNDS = "not replayed: it rounds no request of this program"
_SAME = "not replayed: it changes nothing that this program asks for"


@dataclass(frozen=True)
class Cap:
    """The most that may be reserved.

    Attributes
    ----------
    bytes
        The limit.
    why
        Where it comes from, for the reader.
    collects
        Whether torch knows of it, so that its garbage collector acts: a memory fraction is set. The device's size
        alone does not make it collect.
    """

    bytes: int
    why: str
    collects: bool = True


@dataclass(frozen=True)
class Row:
    """One setting's outcome, sizes in bytes.

    Attributes
    ----------
    conf
        The setting; empty for torch's defaults.
    low, expected, high
        Peak reserved bytes, until the end or until the program dies.
    verdict
        ``"fits"``, ``"oom"`` or ``"oom_unless_fallback"``.
    unanimous
        False when the verdict depends on where the driver puts segments.
    retries
        Times the cache would be freed for a request.
    is_recorded
        The setting that was in force.
    inert
        Why it was not replayed, or None.
    dies_event, dies_lifetime, dies_bytes, dies_at
        The first request that fails: its event, lifetime (-1: it failed in the recording too), size, and its line.
    """

    conf: str
    low: int
    expected: int
    high: int
    verdict: Literal["fits", "oom", "oom_unless_fallback"]
    unanimous: bool
    retries: int
    is_recorded: bool = False
    inert: str | None = None
    dies_event: int = -1
    dies_lifetime: int = -1
    dies_bytes: int | None = None
    dies_at: str | None = None


@dataclass(frozen=True)
class Facts:
    """What does not depend on a setting.

    Attributes
    ----------
    device, conf, reserved_peak, events
        Of the recording.
    deviation
        The first event at which the model differs from the recording, what it expected and what was recorded; None
        when it repeats every address.
    live_peak, packed_peak
        Bytes that no setting can go below, and of an arrangement that exists.
    warnings
        What lowers the confidence, one line each.
    has_stacks
        False when no stack tells which requests were cuDNN's, which it can do without.
    """

    device: str
    conf: str
    reserved_peak: int
    events: int
    deviation: tuple[int, str, str] | None
    live_peak: int
    packed_peak: int
    warnings: tuple[str, ...]
    has_stacks: bool = True


@dataclass(frozen=True)
class Answer:
    """All settings side by side."""

    facts: Facts
    cap: Cap | None
    rows: tuple[Row, ...]

    @property
    def recorded(self) -> Row | None:
        """The setting that was in force."""
        return next((row for row in self.rows if row.is_recorded), None)

    @property
    def best(self) -> Row | None:
        """The setting worth changing to, or None when nothing would help.

        It must fit wherever the driver puts segments, and give back 2 % and 20 MiB at least in the whole range; where
        the recorded setting dies, fitting is enough.
        """
        recorded = self.recorded
        dies = recorded is not None and recorded.verdict != "fits"
        peak = self.facts.reserved_peak
        worth = max(int(peak * _WORTH), _WORTH_BYTES)
        candidates = [
            row
            for row in self.rows
            if not row.is_recorded
            and row.inert is None
            and row.verdict == "fits"
            and row.unanimous
            and (dies or row.high <= peak - worth)
        ]
        return min(candidates, key=lambda row: (row.expected, row.conf.count(":"), row.high), default=None)


@dataclass(frozen=True)
class Question:
    """Everything that a replay needs, and nothing else: it can be sent to another process.

    Attributes
    ----------
    trace
        A recording of one device.
    confs
        Settings to try besides the recorded one.
    cap
        The limit, or None.
    wants_facts
        False when they are known already.
    fraction
        The recorded process's memory fraction in bytes, where it had one: it tells whose releases were whose.
    """

    trace: Trace
    confs: tuple[str, ...]
    cap: Cap | None
    wants_facts: bool = True
    fraction: int | None = None

    def steps(self) -> Iterator[Row | Facts]:
        """Replay one setting after the other; the facts come last."""
        limit = None if self.cap is None else self.cap.bytes
        # The model of the allocator comes with the first question.
        from gpumem_magic.allocator.lab import Lab

        lab = Lab(self.trace, self.trace.devices[0], limit=limit, recorded_limit=self.fraction)
        recorded = from_torch(self.trace.settings)
        in_force = lab.predict(_acting(recorded, self.cap))
        yield row_of(lab, lab.conf, in_force, is_recorded=True)
        seen = {recorded}
        alike: dict[AllocatorSettings, str] = {}
        for conf in self.confs:
            settings = parse_settings(conf)
            if settings in seen:
                continue
            seen.add(settings)
            inert = _why_inert(lab, self.cap, settings, recorded) or _twin(lab, self.cap, conf, settings, alike)
            # What was replayed already is not replayed again.
            yield replace(row_of(lab, conf, lab.predict(_acting(settings, self.cap))), inert=inert)
        if self.wants_facts:
            yield facts_of(lab)


def _acting(settings: AllocatorSettings, cap: Cap | None) -> AllocatorSettings:
    """Leave out the garbage collector where torch would not run it."""
    if cap is not None and not cap.collects:
        return replace(settings, garbage_collection_threshold=0.0)
    return settings


def _why_inert(lab: Lab, cap: Cap | None, settings: AllocatorSettings, recorded: AllocatorSettings) -> str | None:
    """Return why a setting does what the recorded one does, None when it does something else."""
    if settings == recorded or lab.effective(_acting(settings, cap)) != lab.effective(_acting(recorded, cap)):
        return None
    if settings.garbage_collection_threshold != recorded.garbage_collection_threshold:
        if cap is None:
            return _NO_LIMIT
        if not cap.collects:
            return _NO_FRACTION
    if settings.max_split_size != recorded.max_split_size:
        return _NEVER_SPLITS
    if settings.roundup_power2_divisions != recorded.roundup_power2_divisions:
        return _NEVER_ROUNDS
    return _SAME


def _twin(
    lab: Lab, cap: Cap | None, conf: str, settings: AllocatorSettings, alike: dict[AllocatorSettings, str]
) -> str | None:
    """Return that an earlier setting does the same here, None for the first of its kind."""
    first = alike.setdefault(lab.effective(_acting(settings, cap)), conf)
    return None if first == conf else f"not replayed: here it does the same as {first or 'the defaults'}"


def rows_of(
    lab: Lab, cap: Cap | None, in_force: Prediction, results: Sequence[tuple[str, Prediction]]
) -> tuple[Row, ...]:
    """Write down predictions that were made together.

    Parameters
    ----------
    lab
        Made them.
    cap
        The limit.
    in_force
        The prediction for the recorded setting; it comes first unless it is among `results`.
    results
        Settings and their predictions.
    """
    recorded = from_torch(lab.trace.settings)
    rows = []
    alike: dict[AllocatorSettings, str] = {}
    for conf, found in results:
        settings = parse_settings(conf)
        is_recorded = settings == recorded
        inert = None
        if not is_recorded:
            inert = _why_inert(lab, cap, settings, recorded) or _twin(lab, cap, conf, settings, alike)
        rows.append(replace(row_of(lab, conf, found, is_recorded=is_recorded), inert=inert))
    if not any(row.is_recorded for row in rows):
        rows.insert(0, row_of(lab, lab.conf, in_force, is_recorded=True))
    return tuple(rows)


def row_of(lab: Lab, conf: str, found: Prediction, *, is_recorded: bool = False) -> Row:
    """Write down what was predicted for one setting; of the recorded one, what is known."""
    death = found.dies_at
    place = None if death is None else lab.place(death)
    low, expected, high = found.low, found.expected, found.high
    if is_recorded and found.verdict == "fits" and (lab.limit is None or lab.limit >= lab.reserved_peak):
        low = expected = high = lab.reserved_peak
    return Row(
        conf=conf,
        low=low,
        expected=expected,
        high=high,
        verdict=found.verdict,  # type: ignore[arg-type]
        unanimous=found.unanimous,
        retries=found.retries,
        is_recorded=is_recorded,
        dies_event=-1 if death is None else death.event,
        dies_lifetime=-1 if death is None else death.lifetime,
        dies_bytes=None if death is None else death.size,
        dies_at=None if place is None else f"{place.filename}:{place.line}",
    )


def facts_of(lab: Lab) -> Facts:
    """Write down what does not depend on a setting."""
    deviation = lab.first_deviation
    return Facts(
        device=lab.device.key,
        conf=lab.conf,
        reserved_peak=lab.reserved_peak,
        events=len(lab.device.events),
        deviation=None if deviation is None else (deviation.event, deviation.expected, deviation.recorded),
        live_peak=lab.bound.live_peak,
        packed_peak=lab.bound.packed_peak,
        warnings=lab.warnings,
        has_stacks=bool(np.any(lab.device.events.stack)),
    )


def why_not(analysis: Analysis, device: DeviceAnalysis | None = None) -> str | None:
    """Return why there is nothing to replay, or None when there is.

    Parameters
    ----------
    analysis
        A report's.
    device
        One of its devices; None: any will do.
    """
    devices = analysis.devices if device is None else (device,)
    if any(one.memory is not None and len(one.memory.device.events) for one in devices):
        return None
    if not devices:
        return "nothing was recorded, so there is nothing to replay"
    first = devices[0]
    if first.kind in {"cpu", "host"}:
        return f"{first.key}: memory there does not come from torch's caching allocator, so no setting can change it"
    if first.sampled is not None or not first.events:
        return (
            f"{first.key}: only counters were read here, no events, so there is nothing to replay; "
            "the notes of the report say why"
        )
    return f"{first.key}: the recording has no final state of the allocator, so it cannot be replayed"


def natural_cap(device: DeviceAnalysis) -> Cap | None:
    """Return the limit that the recorded process had, as far as it is known.

    A memory fraction counts as it is. Without one the device's memory is the limit, less what others and the libraries
    of this process hold at the end. A recorded out-of-memory error says at least that much. What ran to its end has
    fitted.
    """
    cap: Cap | None = None
    headline = device.headline
    if device.limit is not None and device.total is not None:
        if device.limit < device.total:
            cap = Cap(device.limit, "this process's memory fraction")
        else:
            outside = max((headline.device_used or 0) - (headline.reserved_after or 0), 0)
            cap = Cap(device.total - outside, "what the device has for torch", collects=False)
    memory = device.memory
    if memory is None:
        return cap
    if cap is None or not cap.collects:
        found = _limit_of_failure(memory)
        if found is not None and (cap is None or found.bytes < cap.bytes):
            return found
    if cap is not None and cap.bytes < (headline.reserved_peak or 0):
        cap = replace(cap, bytes=headline.reserved_peak or 0)
    return cap


def _limit_of_failure(memory: MemoryRecord) -> Cap | None:
    """Return the least limit under which the recording's failed requests fail, None when none failed.

    The event says what the driver had left. Less than the request needed: the device was full, and that is the limit.
    More: a memory fraction stopped it, somewhere from what was reserved on to just under what was needed. The least of
    that range is taken, so that nothing is said to fit that may not.
    """
    events = memory.device.events
    failures = np.flatnonzero(events.action == Action.OOM).tolist()
    if not failures:
        return None
    reserved = reserved_bytes(memory.device)
    settings = from_torch(memory.settings)
    most = int(reserved.max())
    last = failures[-1]
    left, wanted = int(events.addr[last]), segment_size(int(events.size[last]), settings)
    if left < wanted:
        full = int(reserved[last]) + left
        return Cap(max(full, most), "what the device had when the recorded run ran out of memory", collects=False)
    return Cap(most, "what the recorded run held at most before it ran out of memory", collects=True)


def question_for(
    analysis: Analysis, device: DeviceAnalysis, confs: Iterable[str] | None = None, cap: Cap | None = None
) -> Question:
    """Ask about one device of a report.

    Parameters
    ----------
    analysis
        The report's.
    device
        One of its devices.
    confs
        Settings to try; None: the usual ones.
    cap
        The limit, None for none.

    Raises
    ------
    SnapshotError
        There is nothing to replay.
    BadUsageError
        A setting is wrong.
    """
    reason = why_not(analysis, device)
    memory = device.memory
    if reason is not None or memory is None:
        raise SnapshotError(reason or "there is nothing to replay")
    chosen = tuple(SUGGESTED if confs is None else confs)
    for conf in chosen:
        parse_settings(conf)
    trace = Trace((memory.device,), analysis.stacks, (), memory.settings)
    limited = device.limit is not None and device.total is not None and device.limit < device.total
    return Question(trace, chosen, cap, fraction=device.limit if limited else None)


def answer_of(
    question: Question,
    device: DeviceAnalysis | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Answer:
    """Replay everything that was asked, here and now.

    Parameters
    ----------
    question
        What to try.
    device
        The device as analysed: it knows lines that no stack tells.
    progress
        Called with the number of settings done, and of all.
    """
    rows: list[Row] = []
    facts: Facts | None = None
    for step in question.steps():
        if isinstance(step, Facts):
            facts = step
            continue
        rows.append(step if device is None else with_line(step, device))
        if progress is not None:
            progress(len(rows), len(question.confs) + 1)
    if facts is None:
        raise BadUsageError("the facts were not asked for")
    return Answer(facts, question.cap, tuple(rows))


def explore(
    analysis: Analysis,
    confs: Iterable[str] | None = None,
    cap: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Answer]:
    """Answer for every device that can be replayed; see `Report.explored`."""
    reason = why_not(analysis)
    if reason is not None:
        raise SnapshotError(reason)
    chosen = None if confs is None else tuple(confs)
    answers = {}
    for device in analysis.devices:
        if why_not(analysis, device) is None:
            limit = natural_cap(device) if cap is None else Cap(cap, "as asked for")
            question = question_for(analysis, device, chosen, limit)
            answers[device.key] = answer_of(question, device, progress)
    return answers


def bare(answer: Answer) -> Answer:
    """Strip source lines and folders, for a report to share."""
    rows = (
        row if row.dies_at is None else replace(row, dies_at=_BARE.sub("", row.dies_at.split(" `", 1)[0]))
        for row in answer.rows
    )
    return replace(answer, rows=tuple(rows))


def with_line(row: Row, device: DeviceAnalysis) -> Row:
    """Name the line whose request fails as the report names it."""
    memory = device.memory
    if row.dies_bytes is None or memory is None:
        return row
    group = device.oom_group
    if row.dies_lifetime >= 0:
        number = int(memory.group[row.dies_lifetime])
        group = device.groups[number] if number >= 0 else None
    if group is None or group.kind not in {"line", "frame"}:
        return row
    where = group.label if group.cell is None else f"{group.cell} {group.label}"
    return replace(row, dies_at=where if group.source is None else f"{where} `{group.source.strip()}`")
