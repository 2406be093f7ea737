"""From a finished recording to the verdict on its out-of-memory error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpumem_magic.analysis.categories.words import text_at_event
from gpumem_magic.analysis.groups import PlaceNamer
from gpumem_magic.analysis.oom.accidents import find_accidents
from gpumem_magic.analysis.oom.cures import suggestions
from gpumem_magic.analysis.oom.evidence import gather
from gpumem_magic.analysis.oom.message import parse_message
from gpumem_magic.analysis.oom.settings import settings_state
from gpumem_magic.analysis.oom.verdict import Cause, decide, limit_was_in_the_way
from gpumem_magic.analysis.oom.words import numbers, reason
from gpumem_magic.analysis.place import place_text
from gpumem_magic.recording.model import DeviceReading, Note, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumem_magic.analysis.model import DeviceAnalysis, Group
    from gpumem_magic.analysis.oom.evidence import Evidence
    from gpumem_magic.analysis.oom.message import OomMessage
    from gpumem_magic.analysis.oom.retrial import Retrial, Retry
    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.recording.model import Cell, Failure, Recording

__all__ = ["OomVerdict", "diagnose"]


@dataclass(frozen=True)
class OomVerdict:
    """Why memory ran out, and what to do.

    Attributes
    ----------
    cause
        The cause that the evidence shows.
    device
        torch's notation.
    sentence
        One sentence with a full stop: where, and why.
    numbers
        What the verdict rests on, one line a subject.
    suggestions
        What to do, the smallest change that fits first.
    unknown
        What cannot be known here, and why.
    evidence
        The numbers themselves.
    """

    cause: Cause
    device: str
    sentence: str
    numbers: tuple[str, ...]
    suggestions: tuple[str, ...]
    unknown: tuple[str, ...]
    evidence: Evidence

    def lines(self) -> tuple[str, ...]:
        """Return numbers and suggestions as lines of a report."""
        do = [f"do: {text}" if number == 0 else f"    {text}" for number, text in enumerate(self.suggestions)]
        return (
            *(f"why: {text}" if number == 0 else f"     {text}" for number, text in enumerate(self.numbers)),
            *do,
            *(f"not known: {text}" for text in self.unknown),
        )

    def text(self) -> str:
        """Return all of it as a cell's output."""
        return "\n  ".join([f"gpumem: {self.sentence}", *self.lines()])

    def notes(self) -> tuple[Note, ...]:
        """Return the same as notes, for documents that show notes."""
        steps: list[str] = []
        for text in self.suggestions:
            # What stands in parentheses belongs to the suggestion above it.
            if steps and text.startswith("("):
                steps[-1] += f" {text}"
            else:
                steps.append(text)
        return (
            *(Note("info", f"Why: {text}") for text in self.numbers),
            *(Note("info", f"Do {number}: {text}") for number, text in enumerate(steps, 1)),
            *(Note("info", f"Not known: {text}") for text in self.unknown),
        )


def diagnose(
    devices: Sequence[DeviceAnalysis],
    recording: Recording | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    holders: HolderScan | None = None,
    retry: Retry | None = None,
) -> OomVerdict | None:
    """Say why memory ran out; None when it did not.

    Parameters
    ----------
    devices
        What was recorded, maybe nothing.
    recording
        The cell's recording, None for a file.
    settings
        `Trace.settings`.
    holders
        A scan of who holds what, made after the cell.
    retry
        Replays the recording, to see whether a setting would have helped before it is recommended.
    """
    failure = recording.failure if recording is not None else None
    message = parse_message(failure.text) if failure is not None else None
    if message is None and recording is not None and recording.outcome is Outcome.OUT_OF_MEMORY:
        message = parse_message(recording.error or "")
    if message is not None and message.backend == "unknown" and _is_jax_on_cuda(recording):
        message = replace(
            message, backend="cuda", missing={k: why for k, why in message.missing.items() if k != "device"}
        )
    device = _device(devices, message)
    state = device.oom_state if device is not None else None
    if message is None and state is None:
        return None
    key = _key(message, device)
    reading = None
    if recording is not None:
        host = failure.host if failure is not None else None
        known = [*((host,) if host is not None else ()), *recording.after]
        reading = next((one for one in known if one.device == key), None)
    if reading is not None and message is not None and message.worker is not None:
        # The other process's numbers are not these; how large the device is, is.
        reading = DeviceReading(key, 0, device_total=reading.device_total)
    if reading is None and device is not None and device.total is not None:
        reading = DeviceReading(key, 0, device_total=device.total, limit=device.limit)
    line = device.oom_group if device is not None and state is not None else None
    if line is None and failure is not None and recording is not None:
        line = _line(failure, recording.cell)
    environment = failure.environment if failure is not None else {}
    version = failure.torch_version if failure is not None else None
    evidence = gather(
        key,
        message=message,
        state=state,
        reading=reading,
        processes=failure.processes if failure is not None else (),
        line=line,
        accidents=find_accidents(key, state, failure, holders, line),
        settings=settings_state(settings or {}, environment, version),
        is_measured=recording is not None and recording.is_measured,
    )
    cause = decide(evidence)
    if retry is not None and cause in {Cause.FRAGMENTATION, Cause.SETTING}:
        tried = _retrials(evidence, retry, cause)
        fitting = next((one for one in tried if one.fits), tried[0] if tried else None)
        evidence = replace(evidence, retrial=fitting, tried=tried)
    if cause is Cause.REQUEST or (cause is Cause.LIMIT and _exceeds_limit(evidence)):
        # Freeing any of it would not make the request fit.
        evidence = replace(evidence, accidents=())
    return OomVerdict(
        cause=cause,
        device=key,
        sentence=f"{_begin(recording, evidence)}{_where(evidence, devices)}: {reason(cause, evidence)}.",
        numbers=(*numbers(evidence), *_purposes(device)),
        suggestions=suggestions(cause, evidence),
        unknown=evidence.missing,
        evidence=evidence,
    )


def _purposes(device: DeviceAnalysis | None) -> tuple[str, ...]:
    """Say what was allocated at that moment was for."""
    state = device.oom_state if device is not None else None
    if device is None or state is None or device.categories is None:
        return ()
    text = text_at_event(device.categories, device.timeline, state.event)
    return () if text is None else (f"allocated then: {text}",)


def _exceeds_limit(evidence: Evidence) -> bool:
    request, limit = evidence.request, evidence.limit
    return request is not None and limit is not None and request.low > limit.high


def _retrials(evidence: Evidence, retry: Retry, cause: Cause) -> tuple[Retrial, ...]:
    """Try settings on the recording where segments that can grow are not on; for a lost setting, those segments."""
    state, settings = evidence.state, evidence.settings
    if state is None or state.expandable or settings is None or settings.expandable:
        return ()
    confs = (settings.merged,) if cause is Cause.SETTING else (settings.merged, *settings.alternatives)
    is_limited = limit_was_in_the_way(evidence)
    cap: int | None = state.reserved + state.device_free
    if is_limited:
        cap = evidence.limit.value if evidence.limit is not None else None
    return retry(evidence.key, state.event, cap, collects=is_limited, confs=confs)


def _device(devices: Sequence[DeviceAnalysis], message: OomMessage | None) -> DeviceAnalysis | None:
    """Find the device whose last failure this was. What a library caught earlier, elsewhere, is another failure."""
    failed = [device for device in devices if device.oom_state is not None]
    if message is None:
        return max(failed, key=lambda device: device.oom_state.time_us) if failed else None  # type: ignore[union-attr]
    if message.backend in {"cpu", "mps"} or message.worker is not None or message.kind != "allocator":
        return None
    for device in failed:
        state = device.oom_state
        numbered = message.device is None or device.key.endswith(f":{message.device}")
        asked = message.tried is None or (
            state is not None and message.tried.low <= state.segment <= message.tried.high
        )
        if numbered and asked:
            return device
    return None


def _is_jax_on_cuda(recording: Recording | None) -> bool:
    """Return whether all devices of which JAX keeps counters are GPUs of CUDA; on the CPU it keeps none."""
    process = recording.process if recording is not None else None
    readings = () if process is None else (*process.before, *process.after)
    return bool(readings) and all(reading.device.startswith("cuda:") for reading in readings)


def _key(message: OomMessage | None, device: DeviceAnalysis | None) -> str:
    if device is not None:
        return device.key
    if message is None or message.backend in {"cpu", "mps"}:
        return message.backend if message is not None else "cpu"
    if message.backend == "unknown":
        return "an unknown device"
    kind = "xpu" if message.backend == "xpu" else "cuda"
    return f"{kind}:{message.device or 0}"


def _line(failure: Failure, cell: Cell) -> Group | None:
    namer = PlaceNamer(cell)
    known = tuple(frame for frame in failure.frames if namer.in_notebook(frame[0]))
    picked = namer.pick(known, deep=False) if known else None
    return None if picked is None else namer.line(*picked)[1]


def _begin(recording: Recording | None, evidence: Evidence) -> str:
    if evidence.kind == "killed":
        return "Most likely out of memory"
    if recording is not None and recording.outcome is Outcome.OUT_OF_MEMORY:
        return "Out of memory"
    # A library or the cell itself caught it, or a file does not say how its program ended.
    return "Ran out of memory"


def _where(evidence: Evidence, devices: Sequence[DeviceAnalysis]) -> str:
    on = f" on {evidence.key}" if len(devices) > 1 else ""
    other = evidence.worker or evidence.thread
    on = f" in {other}" if other else on
    return f" at {place_text(evidence.line)}{on}" if evidence.line is not None else on
