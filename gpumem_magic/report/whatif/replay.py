"""Questions to the model of the allocator: one recording under several settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.settings_text import SUGGESTED, parse_question, parse_settings
from gpumem_magic.allocator.squeeze import Means
from gpumem_magic.report.whatif.limits import natural_cap, why_not
from gpumem_magic.report.whatif.model import STACKLESS, Answer, Cap, Facts, Row
from gpumem_magic.trace.model import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumem_magic.allocator.lab import Lab
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.allocator.whatif import Prediction
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Group
    from gpumem_magic.analysis.segments import MemoryRecord

__all__ = [
    "SUGGESTED",
    "Question",
    "acting",
    "answer_of",
    "explore",
    "facts_of",
    "question_for",
    "rows_of",
    "with_line",
]

_NO_FRACTION = "not replayed: torch collects only under a memory fraction (set_per_process_memory_fraction)"
_NO_LIMIT = "not replayed: torch collects only under a memory limit"
_NEVER_SPLITS = "not replayed: no block reaches that size"
_NEVER_ROUNDS = "not replayed: it rounds no request of this program"
_SAME = "not replayed: it changes nothing that this program asks for"


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
    emptied
        How often the program called ``empty_cache``, where that is known.
    calls
        Events before which it did, where that is known.
    room, total
        Most bytes that torch might reserve, and bytes of the device, where they are known.
    """

    trace: Trace
    confs: tuple[str, ...]
    cap: Cap | None
    wants_facts: bool = True
    fraction: int | None = None
    emptied: int | None = None
    room: int | None = None
    total: int | None = None
    calls: tuple[int, ...] | None = None

    def steps(self) -> Iterator[Row | Facts]:
        """Replay one setting after the other; the facts come last."""
        # The model of the allocator comes with the first question.
        from gpumem_magic.allocator.lab import Lab

        limit = None if self.cap is None else self.cap.bytes
        lab = Lab(
            self.trace,
            self.trace.devices[0],
            limit=limit,
            recorded_limit=self.fraction,
            emptied=self.emptied,
            calls=self.calls,
            means=Means(self.room, self.total, self.emptied),
        )
        recorded = from_torch(self.trace.settings)
        in_force = lab.predict(acting(recorded, self.cap))
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
            yield replace(row_of(lab, conf, lab.predict(acting(settings, self.cap))), inert=inert)
        if self.wants_facts:
            yield facts_of(lab)


def acting(settings: AllocatorSettings, cap: Cap | None) -> AllocatorSettings:
    """Leave out the garbage collector where torch would not run it."""
    if cap is not None and not cap.collects:
        return replace(settings, garbage_collection_threshold=0.0)
    return settings


def _why_inert(lab: Lab, cap: Cap | None, settings: AllocatorSettings, recorded: AllocatorSettings) -> str | None:
    """Return why a setting does what the recorded one does, None when it does something else."""
    if settings == recorded or lab.effective(acting(settings, cap)) != lab.effective(acting(recorded, cap)):
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
    first = alike.setdefault(lab.effective(acting(settings, cap)), conf)
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
    emptied = lab.allocation_after(found.emptied[0]) if found.emptied else -1
    low, expected, high = found.low, found.expected, found.high
    if is_recorded and found.verdict.startswith("fits") and (lab.limit is None or lab.limit >= lab.reserved_peak):
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
        dies_at=None if death is None else _where(lab, death.event),
        emptied_lifetime=emptied,
        emptied_at=_where(lab, lab.event_of(emptied)) if emptied >= 0 else None,
        doubts=found.doubts,
        agreement=found.agreement,
    )


def _where(lab: Lab, event: int) -> str | None:
    place = lab.place(event)
    if place is not None:
        return f"{place.filename}:{place.line}"
    before = lab.place_before(event)
    return None if before is None else f"{STACKLESS}{before.filename}:{before.line}"


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
        # The deviation is told by itself.
        warnings=tuple(line for line in lab.warnings if deviation is None or "the model differs" not in line),
        has_stacks=bool(np.any(lab.device.events.stack)),
        knows_calls=lab.knows_calls,
    )


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
        parse_question(conf)
    trace = Trace((memory.device,), analysis.stacks, (), memory.settings)
    limited = device.limit is not None and device.total is not None and device.limit < device.total
    return Question(
        trace,
        chosen,
        cap,
        fraction=device.limit if limited else None,
        emptied=memory.emptied,
        room=device.limit,
        total=device.total,
        calls=memory.calls,
    )


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


def with_line(row: Row, device: DeviceAnalysis) -> Row:
    """Name lines as the report names them: the one whose request fails, and the one before which a call would come."""
    memory = device.memory
    if row.dies_bytes is None or memory is None:
        return row
    dies = device.oom_group if row.dies_lifetime < 0 else _group_of(device, memory, row.dies_lifetime)
    emptied = None if row.emptied_lifetime < 0 else _group_of(device, memory, row.emptied_lifetime)
    return replace(row, dies_at=_label(dies) or row.dies_at, emptied_at=_label(emptied) or row.emptied_at)


def _group_of(device: DeviceAnalysis, memory: MemoryRecord, lifetime: int) -> Group | None:
    number = int(memory.group[lifetime])
    return device.groups[number] if number >= 0 else None


def _label(group: Group | None) -> str | None:
    if group is None or group.kind not in {"line", "frame"}:
        return None
    where = group.label if group.cell is None else f"{group.cell} {group.label}"
    return where if group.source is None else f"{where} `{group.source.strip()}`"
