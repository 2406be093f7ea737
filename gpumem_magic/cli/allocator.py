"""Commands that replay a recording under other allocator settings: ``whatif``."""

from __future__ import annotations

import argparse
import json
import math
import ntpath
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from gpumem_magic._errors import BadUsageError
from gpumem_magic.cli.snapshot import open_snapshot, pick_device, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.allocator.lab import Lab
    from gpumem_magic.allocator.whatif import Death, Prediction
    from gpumem_magic.report.whatif.model import Cap

__all__ = ["add_parsers"]

_GIB = 2**30


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register this family's commands."""
    parser = commands.add_parser(
        "whatif",
        help="what another allocator setting would have reserved, and whether it would have fitted",
        description="Replay a recording through a model of torch's caching allocator under other settings: peak "
        "reserved bytes as a point and a range, and with a limit whether the program would have run to its end.",
    )
    parser.add_argument("file", metavar="FILE", help="a torch memory snapshot: pickle, .gz or .xz")
    parser.add_argument("--device", metavar="N", help="ordinal, or a name such as cuda:1 (default: the highest peak)")
    parser.add_argument(
        "--conf",
        metavar="STRING",
        action="append",
        help='a PYTORCH_CUDA_ALLOC_CONF value, "" for torch\'s defaults; may be repeated (default: the usual ones)',
    )
    parser.add_argument(
        "--cap-gib",
        metavar="X",
        type=_gib,
        help='most GiB that may be reserved, or "none" (default: the limit that the file states, as those written by '
        "%%gpumem do, else none, so that all fits)",
    )
    parser.add_argument("--torch", metavar="VERSION", help="release that reads them (default: the newest known)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")
    parser.set_defaults(run=_run_whatif)


def _run_whatif(arguments: argparse.Namespace) -> int:
    from gpumem_magic.allocator.conf.environment import NEWEST, TorchVersion
    from gpumem_magic.allocator.lab import Lab, most_used
    from gpumem_magic.allocator.settings_model import from_torch
    from gpumem_magic.allocator.settings_text import parse_question
    from gpumem_magic.report.whatif.limits import stated_cap
    from gpumem_magic.report.whatif.replay import SUGGESTED, acting

    asked = _asked_cap(arguments.cap_gib)
    confs: list[str] = arguments.conf if arguments.conf is not None else list(SUGGESTED)
    # Before the file is read: a typo should not cost seconds.
    version = TorchVersion.parse(arguments.torch) if arguments.torch else NEWEST
    settings = [parse_question(text, version) for text in confs]
    trace = open_snapshot(arguments.file)
    device = most_used(trace) if arguments.device is None else pick_device(trace, arguments.device)
    cap = stated_cap(device) if arguments.cap_gib is None else asked
    settings = [acting(one, cap) for one in settings]
    recorded = acting(from_torch(trace.settings), cap)
    lab = Lab(trace, device, limit=None if cap is None else cap.bytes, processes=min(os.cpu_count() or 1, 4))
    with ThreadPoolExecutor(1) as beside:
        # Large programs are replayed in processes of their own; meanwhile this one compares and bounds.
        predictions = beside.submit(lab.predict_all, [recorded, *settings])
        lab.examine()
        in_force, *others = predictions.result()
    results = list(zip(confs, others, strict=True))
    if arguments.json:
        print(json.dumps(_whatif_json(lab, results)))
    else:
        _print_whatif(lab, cap, in_force, results)
    return 0


def _gib(text: str) -> float | Literal["none"]:
    if text.strip().lower() == "none":
        return "none"
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None


def _asked_cap(gib: float | Literal["none"] | None) -> Cap | None:
    """Read ``--cap-gib``; None for no limit, also where nothing was said."""
    from gpumem_magic.report.whatif.model import Cap

    if gib is None or gib == "none":
        return None
    if not 0 < gib < 2**20:
        raise BadUsageError("--cap-gib must be a positive number of GiB")
    return Cap(int(gib * _GIB), "as asked for")


def _whatif_json(lab: Lab, results: Sequence[tuple[str, Prediction]]) -> dict[str, Any]:
    deviation = lab.first_deviation
    return {
        "device": lab.device.key,
        "recorded": {
            "conf": lab.conf,
            "reserved_peak": lab.reserved_peak,
            "exact": lab.exact,
            "first_deviation": None
            if deviation is None
            else {"event": deviation.event, "expected": deviation.expected, "recorded": deviation.recorded},
        },
        "calls_known": lab.knows_calls,
        "cap_bytes": lab.limit,
        "bound": {"live_peak": lab.bound.live_peak, "packed_peak": lab.bound.packed_peak},
        "results": [
            {
                "conf": text,
                "reserved_peak": {"low": one.low, "expected": one.expected, "high": one.high},
                "verdict": one.verdict,
                "dies_at": _death_json(lab, one.dies_at),
                "retries": one.retries,
                "unanimous": one.unanimous,
                "emptied_before": [_event_json(lab, event) for event in one.emptied],
                "doubts": list(one.doubts),
                "agreement": one.agreement,
            }
            for text, one in results
        ],
        "warnings": list(lab.warnings),
    }


def _death_json(lab: Lab, death: Death | None) -> dict[str, Any] | None:
    return None if death is None else {**_event_json(lab, death.event), "bytes": death.size}


def _event_json(lab: Lab, event: int) -> dict[str, Any]:
    place = lab.place(event)
    before = lab.place_before(event) if place is None else None
    return {
        "event": event,
        "time_us": lab.time_us(event),
        "file": place.filename if place else None,
        "line": place.line if place else None,
        "function": place.name if place else None,
        # The last known line, where the request itself has none.
        "after": {"file": before.filename, "line": before.line, "function": before.name} if before else None,
    }


def _print_whatif(lab: Lab, cap: Cap | None, in_force: Prediction, results: Sequence[tuple[str, Prediction]]) -> None:
    from gpumem_magic.allocator.settings_model import from_torch
    from gpumem_magic.report.whatif.limits import limit_of_failure
    from gpumem_magic.report.whatif.model import Answer
    from gpumem_magic.report.whatif.replay import facts_of, rows_of
    from gpumem_magic.report.whatif.words import text

    rows = tuple(
        replace(row, dies_at=_short(row.dies_at), emptied_at=_short(row.emptied_at))
        for row in rows_of(lab, cap, in_force, results)
    )
    print(printable(text(Answer(facts_of(lab), cap, rows))))
    failed = limit_of_failure(lab.device, from_torch(lab.trace.settings)) if cap is None else None
    if failed is not None:
        # Without a limit everything fits, which is no answer to a run that did not. Rounded up by at most 1 MiB: the
        # allocator asks the driver for 2 MiB at least.
        gib = math.ceil(failed.bytes / _GIB * 1000) / 1000
        print(f"  the recorded run ran out of memory: `--cap-gib {gib:g}` says which setting would have fitted")


def _short(place: str | None) -> str | None:
    """Name a file as a report's tables do; ``--json`` has the whole path."""
    if place is None:
        return None
    from gpumem_magic.report.whatif.model import STACKLESS

    before = STACKLESS if place.startswith(STACKLESS) else ""
    return before + ntpath.basename(place.removeprefix(STACKLESS))
