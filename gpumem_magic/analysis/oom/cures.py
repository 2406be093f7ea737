"""What to do about it, the smallest change that fits first, and honest where nothing helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.oom.verdict import Cause
from gpumem_magic.analysis.place import place_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.analysis.oom.evidence import Evidence
    from gpumem_magic.analysis.oom.retrial import Retrial

__all__ = ["suggestions"]

MIB = 1 << 20
_SMALLER = "make this request smaller: a smaller batch, or the same work in chunks"
_GROWING = "(not where tensors are shared by CUDA IPC or paused by sleep-mode tools; max_split_size_mb has no say then)"
_HOST_RULES = "look at `ulimit -v`, the container's memory limit and /proc/sys/vm/overcommit_memory"
_SAVE = (
    "hold less at once: a smaller batch, activation checkpointing, autocast, torch.no_grad() where nothing is trained"
)


def _request(evidence: Evidence) -> list[str]:
    if evidence.kind == "absurd":
        return ["check the shape that this line computes"]
    where = f" at {place_text(evidence.line)}" if evidence.line is not None else ""
    first = f"ask for less at once{where}: chunks, a smaller batch or dtype, or an operation that does not write it out"
    if evidence.backend == "cpu":
        return [first, "keep the data on disk and map it (torch.from_file, numpy.memmap)"]
    return [first, "or use a device that holds more, or split it over several"]


def _restart(evidence: Evidence) -> list[str]:
    """Recommend the setting that the replay shows to fit; segments that grow where nothing could be replayed."""
    settings = evidence.settings
    if evidence.backend not in {"cuda", "hip"}:
        return []
    if (evidence.state is not None and evidence.state.expandable) or (settings is not None and settings.expandable):
        return ["expandable segments are on already, so that setting is used up"]
    plain = settings.merged if settings is not None else "expandable_segments:True"
    retrial = evidence.retrial
    if retrial is None:
        return [f"{_begin_with(plain)}: segments then grow", _GROWING]
    if retrial.fits:
        found = [f"{_begin_with(retrial.conf)}: {_replayed(retrial)}"]
        found += [_GROWING] if "expandable_segments:True" in retrial.conf else []
        first = evidence.tried[0] if evidence.tried else retrial
        return found if first is retrial else [*found, f"({_not_shown(first)})"]
    # Where no setting surely fits, the one that may is worth a try.
    maybe = next((one for one in evidence.tried if one.fits is None), None)
    if maybe is None:
        found = [f"segments that grow ({retrial.conf}) would not have helped: {_replayed(retrial)}"]
    else:
        found = [f"{_begin_with(maybe.conf)}: {_replayed(maybe)}"]
        found += [_GROWING] if "expandable_segments:True" in maybe.conf else []
    shown = maybe or retrial
    others = [one.conf for one in evidence.tried if one is not shown]
    return [*found, f"(no other setting that was replayed is shown to fit: {'; '.join(others)})"] if others else found


def _begin_with(conf: str) -> str:
    line = f'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{conf}"'
    return f"or restart the kernel and begin with `import os; {line}`, before torch is imported"


def _not_shown(retrial: Retrial) -> str:
    kind = "would not have helped" if retrial.fits is False else "is not shown to help"
    return f"{retrial.conf} {kind}: {_replayed(retrial)}"


def _replayed(retrial: Retrial) -> str:
    """Say how the replay under another setting ended, and how sure that is."""
    low, high = format_bytes(retrial.low), format_bytes(retrial.high)
    reserved = f"{low} to {high}" if low != high else low
    if retrial.fits is None:
        told = f"replayed with it, this may or may not have fitted: {reserved} of {format_bytes(retrial.cap)} reserved"
    elif retrial.fits:
        told = f"replayed with it, the request fits, with {reserved} of {format_bytes(retrial.cap)} reserved"
    elif retrial.dies_early:
        told = f"replayed with it, the program passes {format_bytes(retrial.cap)} even earlier"
    else:
        told = f"replayed with it, the program still asks for more than {format_bytes(retrial.cap)}"
    if not retrial.is_exact:
        return f"{told} (an estimate: the model does not repeat this recording exactly)"
    if retrial.begins_late:
        return f"{told} (what was in use before the recording is taken as packed)"
    return told


def _fragmentation(evidence: Evidence) -> list[str]:
    state, found = evidence.state, []
    if state is not None and state.usable < max(state.private, state.other_stream):
        if state.private >= state.other_stream:
            return ["delete the captured graphs or pools that are done with, then torch.cuda.empty_cache()", _SMALLER]
        return [
            "allocate on one stream, or free what the other stream holds and call torch.cuda.empty_cache()",
            _SMALLER,
        ]
    if state is not None and state.pins and state.pins[0].group is not None:
        pin = state.pins[0]
        where = place_text(state.pins[0].group)
        if pin.size >= state.requested:
            found.append(
                f"free the {format_bytes(pin.used)} of {where} before this line (or allocate it before the large "
                f"temporaries): that frees a whole segment of {format_bytes(pin.size)}"
            )
        else:
            found.append(
                f"allocate what stays ({where}) before the large temporaries, or free it before this line: "
                f"{format_bytes(state.pinning)} pins {format_bytes(sum(pin.size for pin in state.pins))}"
            )
    return [*found, *_restart(evidence), *_raise_limit(evidence), _SMALLER]


def _setting(evidence: Evidence) -> list[str]:
    settings = evidence.settings
    if settings is not None and settings.lost is not None and "does not support" in settings.lost:
        return [*_fragmentation(evidence)[:1], _SMALLER]
    told = "" if evidence.retrial is None else f": {_replayed(evidence.retrial)}"
    return [
        "restart the kernel and set it in the first cell, before torch is imported; %gpumem_conf shows what counts"
        + told,
        _SMALLER,
    ]


def _accident(evidence: Evidence) -> list[str]:
    cures = list(dict.fromkeys(accident.cure for accident in evidence.accidents))
    if "%gpumem_free --out" in cures and "%gpumem_free" in cures:
        cures.remove("%gpumem_free")  # the other does the same and more
    lines = [
        f"run `{cure}` in a cell of its own, then this cell again" if cure.startswith("%") else cure for cure in cures
    ]
    return [*lines, "%gpumem_who names every holder"]


def _raise_limit(evidence: Evidence) -> list[str]:
    needed = None
    if evidence.limit is None or evidence.segment is None or evidence.total is None or evidence.reserved is None:
        return []
    needed = (evidence.reserved.value + evidence.segment.value) / evidence.total.value
    if evidence.device_free is not None and evidence.device_free.value < evidence.segment.value:
        return []
    if needed > 1:
        return []
    # Two decimals, rounded up: the fraction is taken of the card's bytes.
    fraction = min(int(needed * 100 + 1) / 100, 1.0)
    return [f"raise the limit: torch.cuda.set_per_process_memory_fraction({fraction:.2f}) lets this request pass"]


def _limit(evidence: Evidence) -> list[str]:
    if evidence.kind == "shared":
        return [
            "make it larger: `docker run --shm-size=8g`, `--ipc=host`, or remount /dev/shm (`df -h /dev/shm` shows it)",
            "hand over less: a smaller batch_size, num_workers or prefetch_factor",
            "or by files: torch.multiprocessing.set_sharing_strategy('file_system')",
        ]
    if evidence.backend == "cpu":
        return [_HOST_RULES, _SMALLER]
    raised = _raise_limit(evidence) or [
        "raise the limit: torch.cuda.set_per_process_memory_fraction(1.0), or per_process_memory_fraction if set"
    ]
    return [*raised, _SAVE]


def _others(evidence: Evidence) -> list[str]:
    if evidence.backend == "cpu":
        return ["close what else runs on this machine", _SMALLER]
    own = evidence.children
    named = [f"PID {one.pid}" + (f" ({one.name})" if one.name else "") for one in evidence.neighbours if one.used]
    found = []
    if own and sum(one.used or 0 for one in own) >= (evidence.others.value if evidence.others is not None else 0) / 2:
        found.append(
            "end the processes that this notebook started, or keep CUDA out of them: a DataLoader's workers need none "
            "where they build CPU tensors, and each that touches the GPU pays for a context"
        )
    elif named:
        found.append(f"stop or wait for {', '.join(named[:3])}; a forgotten kernel of yours is a usual one")
    else:
        found.append("look at `nvidia-smi` on the host: a container or another user does not see other processes")
    return [*found, "or use another card: CUDA_VISIBLE_DEVICES before torch is imported", _SMALLER]


def _outside(evidence: Evidence) -> list[str]:
    found = []
    if evidence.backend == "mps":
        return ["free what other libraries of this process hold, and call torch.mps.empty_cache()", *_mps()]
    if evidence.reserved is not None and evidence.allocated is not None and evidence.kind in {"driver", "library"}:
        free = evidence.reserved.minus(evidence.allocated).value
        if free >= 64 * MIB:
            found.append(f"call torch.cuda.empty_cache() before this line: it gives back up to {format_bytes(free)}")
    return [
        *found,
        "look for other libraries in this process: JAX takes most of a card (XLA_PYTHON_CLIENT_PREALLOCATE=false)",
        "each NCCL process group takes hundreds of MiB: use fewer",
        _SMALLER,
    ]


def _mps() -> list[str]:
    return [
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit, at the risk of the whole system running out of memory"
    ]


def _demand(evidence: Evidence) -> list[str]:
    found = []
    state = evidence.state
    if state is not None and state.owners and state.owners[0].group.kind in {"line", "frame", "before"}:
        top = state.owners[0]
        found.append(f"begin with {place_text(top.group)}, which holds {format_bytes(top.bytes)}: is all of it needed?")
    found.append(_SAVE if evidence.backend != "cpu" else _SMALLER)
    if evidence.backend == "mps":
        return [*found, *_mps()]
    if evidence.backend != "cpu":
        found.append("no allocator setting helps: what is short is in live tensors")
    return found


def _unknown(evidence: Evidence) -> list[str]:
    if evidence.kind == "killed":
        fewer = (
            "use fewer workers, or a smaller prefetch_factor: each holds its own batches, and its own copy of the "
            "dataset's Python objects once it has touched them (arrays and tensors are shared)"
        )
        return [
            fewer,
            "`dmesg | grep -i oom`, and the container's memory limit, tell whether it was that",
        ]
    if evidence.backend == "unknown":
        return [_SMALLER, "on a GPU that torch uses too, call torch.cuda.empty_cache() before this line"]
    if evidence.kind in {"driver", "library"}:
        found = ["call torch.cuda.empty_cache() before this line, so that libraries find room"]
        return [*found, _SMALLER if evidence.is_measured else "run it under %%gpumem"]
    if evidence.worker is not None:
        return [f"run what {evidence.worker} does in this process (num_workers=0), where it is recorded", _SMALLER]
    if evidence.backend == "cpu":
        return [
            "look at the size that this line asks for, and ask for less at once: chunks, or a smaller dtype",
            _HOST_RULES,
        ]
    first = _SMALLER if evidence.is_measured else "run it under %%gpumem, which records who holds what"
    return [first, "%gpumem_who names what is alive now"]


_CURES: dict[Cause, Callable[[Evidence], list[str]]] = {
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


def suggestions(cause: Cause, evidence: Evidence) -> tuple[str, ...]:
    """Return what to do, the smallest change that fits first."""
    found = _CURES[cause](evidence)
    found[0] = found[0].removeprefix("or ")
    settings = evidence.settings
    if cause is not Cause.SETTING and settings is not None and settings.lost is not None:
        found.append(f"beside this: '{settings.wanted}' is not in force ({settings.lost})")
    return tuple(found)
