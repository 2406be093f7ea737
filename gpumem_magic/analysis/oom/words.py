"""A verdict in words: the sentence, the numbers behind it, and what to do, smallest change first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.analysis.oom.verdict import Cause, limit_was_in_the_way
from gpumem_magic.analysis.place import place_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.analysis.oom.evidence import Evidence
    from gpumem_magic.analysis.oom.sizes import Size
    from gpumem_magic.analysis.oom.state import Owner, Pin

__all__ = ["numbers", "reason", "started_here"]

MIB = 1 << 20
_CODE_KINDS = {"line", "frame", "before"}


def size_text(size: Size | None) -> str:
    """Write a size; ``up to`` where the text of an error gives no more than a bound."""
    if size is None:
        return "an unknown amount"
    if size.low * 2 < size.high:
        return f"up to {format_bytes(size.high)}"
    return format_bytes(size.value)


def _request_text(evidence: Evidence) -> str:
    """Write what was asked for: as a range where all that is known is the segment that it was rounded up to."""
    request, segment = evidence.request, evidence.segment
    text = size_text(request)
    if request is None or segment is None or request.is_exact or text == size_text(segment) or "up to" in text:
        return text
    low, high = format_bytes(request.low), format_bytes(request.high)
    number, unit = low.rsplit(" ", 1)
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def device_word(evidence: Evidence) -> str:
    """Return what to call the device."""
    return {"cpu": "machine", "mps": "Mac", "unknown": "device"}.get(evidence.backend, "card")


def _asked(evidence: Evidence) -> str:
    return f"it asked for {_request_text(evidence)}"


def _request(evidence: Evidence) -> str:
    if evidence.kind == "absurd":
        return "it asked for more than 1 EB: a size was computed wrongly (a negative or overflowed dimension)"
    if evidence.kind == "buffer":
        return f"{_asked(evidence)} in one piece, more than one buffer of MPS may hold, whatever is free"
    if evidence.backend == "mps":
        return f"{_asked(evidence)} in one piece, more than MPS may use ({size_text(evidence.limit)})"
    what, total = device_word(evidence), size_text(evidence.total)
    request, whole = evidence.request, evidence.total
    end = "no allocator setting can help" if evidence.backend != "cpu" else "freeing other memory cannot help"
    if request is not None and whole is not None and request.value <= whole.value:
        return f"{_asked(evidence)} in one piece, more than the {what} has left beside torch's own needs; {end}"
    return f"{_asked(evidence)} in one piece, more than the whole {what} holds ({total}); {end}"


def _main_owner(evidence: Evidence) -> str:
    state = evidence.state
    owners = [] if state is None else [owner for owner in state.owners if owner.group.kind in _CODE_KINDS]
    if state is None or not owners or not state.allocated:
        return ""
    return f", {owners[0].bytes / state.allocated:.0%} of it from {place_text(owners[0].group)}"


def _demand(evidence: Evidence) -> str:
    held = "this process" if evidence.backend == "cpu" else "live tensors"
    size = evidence.process if evidence.backend == "cpu" else evidence.allocated
    whole = evidence.limit if evidence.backend == "mps" else evidence.total
    of = f" of the {device_word(evidence)}'s {size_text(whole)}" if whole is not None else ""
    asked = f"{_asked(evidence)}, and " if evidence.request is not None else ""
    if evidence.request is not None and evidence.backend == "cpu":
        asked = f"{_asked(evidence)} with {size_text(evidence.device_free)} free, and "
    return f"{asked}{held} really {'holds' if evidence.backend == 'cpu' else 'hold'} {size_text(size)}{of}" + (
        _main_owner(evidence)
    )


def _pinned_by(evidence: Evidence) -> str:
    state = evidence.state
    if state is None or not state.pins:
        return ""
    best: Pin = state.pins[0]
    by = "" if best.group is None else f" of {place_text(best.group)}"
    blocks = f"{format_count(best.blocks)} block{'s' if best.blocks != 1 else ''} ({format_bytes(best.used)}){by}"
    if best.size >= state.requested:
        return f"; a segment of {format_bytes(best.size)} is pinned by {blocks}"
    return f"; {format_count(len(state.pins))} segments are pinned, the first by {blocks}"


def _fragmentation(evidence: Evidence) -> str:
    state = evidence.state
    if state is None:
        reserved, allocated = evidence.reserved, evidence.allocated
        free = reserved.minus(allocated) if reserved is not None and allocated is not None else None
        return (
            f"{_asked(evidence)}; torch holds {size_text(free)} free in its segments, most likely in too small pieces"
        )
    if state.usable < max(state.private, state.other_stream):
        if state.private >= state.other_stream:
            return (
                f"{_asked(evidence)}; torch holds {format_bytes(state.private)} free in private pools (CUDA graphs, "
                "MemPool), which other requests cannot use"
            )
        return (
            f"{_asked(evidence)}; torch holds {format_bytes(state.other_stream)} free in segments of other streams, "
            "which this stream cannot use"
        )
    return (
        f"{_asked(evidence)}; torch holds {format_bytes(state.usable)} free for it, but the largest piece is "
        f"{format_bytes(state.largest)}{_pinned_by(evidence)}"
    )


def _setting(evidence: Evidence) -> str:
    settings = evidence.settings
    lost = settings.lost if settings is not None else None
    wanted = settings.wanted if settings is not None else ""
    return f"{_fragmentation(evidence)}. The setting against it, '{wanted}', is not in force: {lost}"


def _accident(evidence: Evidence) -> str:
    total = sum(accident.bytes for accident in evidence.accidents)
    what = evidence.accidents[0].holder
    more = " and others" if len(evidence.accidents) > 1 else ""
    short = evidence.shortfall
    lack = f" and was {format_bytes(short)} short" if short else ""
    asked = _asked(evidence) if evidence.request is not None else "a library or the driver found the card full"
    kept = "was kept by accident, by" if all(one.is_sure for one in evidence.accidents) else "could be freed, held by"
    return f"{asked}{lack}; {format_bytes(total)} {kept} {what}{more}"


def _limit(evidence: Evidence) -> str:
    if evidence.kind == "shared":
        return "the shared memory (/dev/shm) is full in which a loader's workers hand their batches over"
    if evidence.backend == "cpu":
        asked = f"{_asked(evidence)}, and" if evidence.request is not None else "its error names no size;"
        which = "ulimit -v, its container, the kernel's overcommit rule"
        if evidence.limit is not None:
            which = f"ulimit -v lets it address {size_text(evidence.limit)}"
        refused = "refused it" if evidence.request is not None else "is the likely reason"
        free = size_text(evidence.device_free)
        return f"{asked} the machine had {free} free: a limit on this process ({which}) {refused}"
    limit = f"the limit of this process, {size_text(evidence.limit)}," if evidence.limit else "a limit of this process"
    if evidence.kind == "rejected":
        return f"{_asked(evidence)}, which {limit} (memory fraction) does not allow; the driver was not asked"
    request = evidence.request
    if request is not None and evidence.limit is not None and request.low > evidence.limit.high:
        return f"{_asked(evidence)}, more than {limit} (memory fraction) allows at all"
    free = f" while the card had {size_text(evidence.device_free)} free" if evidence.device_free else ""
    return (
        f"{_asked(evidence)}, and {limit} (memory fraction) stopped it{free}; {size_text(evidence.allocated)} was in "
        f"live tensors{_main_owner(evidence)}"
    )


def _others(evidence: Evidence) -> str:
    if evidence.backend == "cpu":
        asked = _asked(evidence) if evidence.request is not None else "it found the machine full,"
        return (
            f"{asked} with {size_text(evidence.device_free)} free; other processes hold "
            f"{size_text(evidence.others)} of the machine's {size_text(evidence.total)}, this one "
            f"{size_text(evidence.process)}"
        )
    asked = _asked(evidence) if evidence.request is not None else "the driver refused"
    whole = f" of the card's {size_text(evidence.total)}" if evidence.total else ""
    state, taken = evidence.state, evidence.taken
    if state is not None and taken is not None and (evidence.others is None or evidence.others.value < taken):
        return (
            f"{asked}, and the card was full although torch held only {format_bytes(state.reserved)} of the "
            f"{format_bytes(state.reached)} that it had here at another time: something else had taken "
            f"{format_bytes(taken)}, another process as a rule"
        )
    if evidence.others is None:
        return (
            f"{asked}, and {size_text(evidence.unexplained)}{whole} is held by other processes or by libraries outside "
            f"torch (the driver does not tell which); torch holds {size_text(evidence.reserved)}"
        )
    who = [one for one in evidence.neighbours if one.used][:1]
    named = f" ({_neighbour(who[0].pid, who[0].name)}: {format_bytes(who[0].used or 0)})" if who else ""
    if evidence.children:
        named = f" ({started_here(evidence)})"
    return (
        f"{asked}, and other processes hold {size_text(evidence.others)}{whole}{named}; this one holds "
        f"{size_text(evidence.process)}"
    )


def started_here(evidence: Evidence) -> str:
    """Say what processes that this notebook started hold."""
    those = evidence.children
    held = [one.used or 0 for one in those]
    count = "one process" if len(those) == 1 else f"{format_count(len(those))} processes"
    each = "" if len(those) == 1 else f", {format_bytes(max(held))} at most each"
    return f"{count} that this notebook started: {format_bytes(sum(held))}{each}"


def _neighbour(pid: int, name: str | None) -> str:
    return f"PID {pid} {name}" if name else f"PID {pid}"


def _outside(evidence: Evidence) -> str:
    if evidence.kind in {"driver", "library"} and evidence.reserved is not None and evidence.allocated is not None:
        free = evidence.reserved.minus(evidence.allocated)
        if evidence.outside is None or evidence.outside.value <= evidence.reserved.value:
            return (
                f"a library asked the driver itself and found the card full; torch keeps {size_text(free)} free in its "
                "cache, where the library cannot get at it"
            )
    asked = f"{_asked(evidence)}, and " if evidence.request is not None else ""
    return (
        f"{asked}{size_text(evidence.outside)} of this process lies outside torch (context, NCCL, another library), "
        f"against {size_text(evidence.reserved)} in torch"
    )


def _unknown(evidence: Evidence) -> str:
    if evidence.kind == "killed":
        return (
            "the system ended it by signal 9, as it does with the largest process when the machine or its container "
            "runs out of memory; such an end leaves no error and no numbers"
        )
    if evidence.kind in {"driver", "library"}:
        who = "a library" if evidence.kind == "library" else "the driver"
        free = f"; right after it the card had {size_text(evidence.device_free)} free" if evidence.device_free else ""
        return f"{who} reported it, past torch's allocator and without numbers{free}"
    if evidence.request is not None:
        return f"{_asked(evidence)}; the numbers at hand do not tell why it failed"
    if evidence.backend == "cpu" and evidence.device_free is not None:
        return (
            f"its error names no size, and the machine had {size_text(evidence.device_free)} of "
            f"{size_text(evidence.total)} free right after it: this line asked for more than that in one piece, or "
            "the system refused it by a rule of its own"
        )
    return "its error carries no numbers, and nothing was recorded"


_REASONS: dict[Cause, Callable[[Evidence], str]] = {
    Cause.REQUEST: _request,
    Cause.FRAGMENTATION: _fragmentation,
    Cause.SETTING: _setting,
    Cause.ACCIDENT: _accident,
    Cause.LIMIT: _limit,
    Cause.OTHERS: _others,
    Cause.OUTSIDE: _outside,
    Cause.DEMAND: _demand,
    Cause.UNKNOWN: _unknown,
}


def reason(cause: Cause, evidence: Evidence) -> str:
    """Say in one clause why memory ran out, beginning in lower case and without a full stop."""
    return _REASONS[cause](evidence)


def _owner(owner: Owner) -> str:
    return f"{format_bytes(owner.bytes)} {place_text(owner.group)}"


def numbers(evidence: Evidence) -> tuple[str, ...]:
    """Return the numbers behind the verdict, one line a subject; unknown ones are left out."""
    lines = []
    if evidence.request is not None:
        text = f"asked for {_request_text(evidence)}"
        if evidence.segment is not None and evidence.segment.value != evidence.request.value:
            text += f" (a segment of {size_text(evidence.segment)} from the driver)"
        if evidence.shortfall:
            text += f", {format_bytes(evidence.shortfall)} more than could be had"
        lines.append(text)
    state = evidence.state
    if evidence.reserved is not None and evidence.backend != "cpu":
        text = f"torch: {size_text(evidence.allocated)} in live tensors, {size_text(evidence.reserved)} reserved"
        if state is not None:
            text += (
                f"; free {format_bytes(state.free)} (releasable {format_bytes(state.releasable)}, unreleasable "
                f"{format_bytes(state.unreleasable)}), largest piece for this request {format_bytes(state.largest)}"
            )
            if state.private:
                text += f", {format_bytes(state.private)} free in private pools"
        lines.append(text)
    lines += _device_numbers(evidence)
    if state is not None and state.owners:
        shown = "; ".join(_owner(owner) for owner in state.owners[:3])
        rest = state.owners[3:]
        more = f"; {format_bytes(sum(owner.bytes for owner in rest))} elsewhere" if rest else ""
        lines.append(f"alive then: {shown}{more}")
    for is_sure, told in ((True, "kept by accident"), (False, "could be freed")):
        those = [one for one in evidence.accidents if one.is_sure is is_sure][:3]
        if those:
            lines.append(f"{told}: " + "; ".join(f"{format_bytes(one.bytes)} by {one.holder}" for one in those))
    return tuple(lines)


def _device_numbers(evidence: Evidence) -> list[str]:
    parts = []
    if evidence.process is not None:
        text = f"this process {size_text(evidence.process)}"
        if evidence.outside is not None:
            text += f" ({size_text(evidence.outside)} outside torch)"
        parts.append(text)
    if evidence.others is not None:
        parts.append(f"other processes {size_text(evidence.others)}")
    if evidence.unexplained is not None:
        parts.append(f"others and outside torch together {size_text(evidence.unexplained)}")
    if evidence.device_free is not None:
        parts.append(f"free {size_text(evidence.device_free)}")
    if evidence.taken is not None and evidence.state is not None:
        parts.append(
            f"taken by something else since torch had {format_bytes(evidence.state.reached)} of it "
            f"{format_bytes(evidence.taken)}"
        )
    if evidence.limit is not None:
        parts.append(f"limit of this process {size_text(evidence.limit)}")
    elif limit_was_in_the_way(evidence) and evidence.reserved is not None and evidence.segment is not None:
        top = evidence.reserved.plus(evidence.segment)
        parts.append(f"limit of this process below {size_text(top)}, since the driver had enough")
    if not parts:
        return []
    name = f"{device_word(evidence)} {size_text(evidence.total)}" if evidence.total else device_word(evidence)
    lines = [f"{name}: {', '.join(parts)}"]
    if evidence.children:
        lines.append(f"of that {started_here(evidence)}")
    listed = [f"{_neighbour(one.pid, one.name)} {format_bytes(one.used)}" for one in evidence.neighbours if one.used]
    if listed:
        lines.append("other processes: " + ", ".join(listed[:5]) + (f", {len(listed) - 5} more" if listed[5:] else ""))
    return lines
