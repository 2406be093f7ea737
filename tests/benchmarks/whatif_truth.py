"""Predictions against what torch counted: one table for a folder of recordings.

    python tests/benchmarks/whatif_truth.py DIR [--from c0|c1] [--quick]

DIR holds recordings (``NAME.pickle.xz``, ``NAME.c0.pickle.xz`` …) and ``truth.json``: a list of rows, or
``{"rows": [...]}``, with `workload`, `conf`, `cap_gib`, peaks, `num_alloc_retries`, `num_ooms`, `oom_message`. A row
is predicted from the workload's recording; rows of folders below DIR are included. Nothing is asserted; misses are
listed.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import pickle
import time
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.trace.reader import read_trace

GIB = 2**30
EIGHT = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:4",
)


def value(row, name):
    for key in (f"{name}_bytes.all.peak", f"{name}_peak"):
        if key in row:
            return row[key]
    return None


def rows_of(folder):
    for file in sorted(folder.rglob("truth.json")):
        content = json.loads(file.read_text())
        for row in content["rows"] if isinstance(content, dict) else content:
            if "workload" in row and "conf" in row:
                yield file.parent, row


def recording(folder, workload, variant):
    for name in (f"{workload}.{variant}", workload, f"{workload}.c0", f"{workload}.c1"):
        for suffix in (".pickle.xz", ".pickle.gz", ".pickle"):
            path = folder / f"{name}{suffix}"
            if path.exists():
                return path
    return None


@cache
def trace_of(path):
    return read_trace(path)


@cache
def lab_of(path, limit):
    trace = trace_of(path)
    return Lab(trace, trace.devices[0], limit=limit)


def has_streams(lab):
    return len({stream for _, stream in lab.program.groups}) > 1


def same_setting(folder):
    table: Counter[str] = Counter()
    misses = []
    # The limit under which a recording was made is not in the file.
    limits = {
        (place, row["recording"]): round(row["cap_gib"] * GIB)
        for place, row in rows_of(folder)
        if row.get("recording") and row["cap_gib"] is not None
    }
    for path in sorted(folder.rglob("*.pickle*")):
        trace = trace_of(path)
        for device in trace.devices:
            limit = limits.get((path.parent, path.name.partition(".pickle")[0]))
            lab = Lab(trace, device, recorded_limit=limit)
            table["devices"] += 1
            table["exact"] += lab.exact
            if not lab.exact:
                misses.append((path.name, device.key, lab.first_deviation))
    print(f"same setting: {table['exact']} of {table['devices']} devices exact (every address, every segment event)")
    for miss in misses:
        print("  ", *miss)


def goes_on(row):
    """The program itself goes on after a failed request."""
    return row["num_ooms"] > 1 and "caught" in (row.get("oom_message") or "")


def class_of(lab, row):
    kind = "fuzz" if row["workload"].startswith(("fuzz", "fresh")) else "workloads"
    if has_streams(lab) and kind == "fuzz":
        kind += ", streams"
    if goes_on(row):
        # It caught errors and asked for something else; only whether the first one comes can be predicted.
        return f"{kind}, cap, catches its errors"
    return f"{kind}, {'no cap' if row['cap_gib'] is None else 'cap'}"


def compare(row, prediction):
    """Return counters for one row, and the reasons for which it is a miss."""
    if goes_on(row):
        right = prediction.verdict == "oom"
        return {"rows": 1, "verdict": right, "missed death": not right, "worst": 0.0}, [] if right else ["missed"]
    true = value(row, "reserved")
    error = prediction.expected - true
    relative = abs(error) / true if true else float(error != 0)
    result = {
        "rows": 1,
        "exact": error == 0,
        "within 1 %": relative <= 0.01,
        "within 3 %": relative <= 0.03,
        "in range": prediction.low <= true <= prediction.high,
        # By its own word neither the GPU's timing nor calls that left no event are likely to change it.
        "firm": prediction.is_firm,
        "firm and exact": prediction.is_firm and error == 0,
        "worst": relative,
    }
    reasons = []
    if error:
        reasons.append(f"{error / 2**20:+.0f} MiB ({error / true:+.2%})" if true else f"{error:+,} B")
        doubts = ", ".join(prediction.doubts)
        reasons.append("called firm" if prediction.is_firm else f"depends on {doubts}")
    if not result["in range"]:
        reasons.append("out of range")
    if row["cap_gib"] is not None:
        died = bool(row.get("oom_message"))
        verdict = prediction.verdict
        result["verdict"] = verdict == "oom" if died else verdict in {"fits", "oom_unless_fallback"}
        # Neither right nor wrong: it depends on calls that the recording cannot show, or on the GPU's timing.
        result["hedged"] = verdict.startswith("fits_unless")
        result["missed death"] = died and verdict == "fits"
        result["retries"] = prediction.retries == row["num_alloc_retries"]
        if "failed_alloc" in row:
            death = prediction.dies_at
            result["failing request"] = (death.lifetime if death else None) == row["failed_alloc"]
        if not result["verdict"]:
            reasons.append(f"verdict {verdict}, and it {'died' if died else 'lived'}")
        if not result["retries"]:
            reasons.append(f"retries {prediction.retries} for {row['num_alloc_retries']} ({row['num_ooms']} failed)")
    return result, reasons


def speed(path):
    """Ratios to unpickling the same file with the garbage collector off; every replay in this one process."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        data = file.read()
    gc.disable()
    began = time.process_time()
    pickle.loads(data)  # noqa: S301 (a recording of one's own)
    unpickling = time.process_time() - began
    gc.enable()
    trace = trace_of(path)
    lab = Lab(trace, trace.devices[0])
    times = []
    for conf in EIGHT:
        began = time.process_time()
        lab.predict(parse_settings(conf))
        times.append((time.process_time() - began) / unpickling)
    print(
        f"speed on {path.name} ({len(trace.devices[0].events):,} events; CPU time, one process): "
        f"{len(EIGHT)} settings {sum(times):.1f}x unpickling, one more {sorted(times)[len(times) // 2]:.2f}x "
        f"(at most {max(times):.2f}x)"
    )


def print_goals(totals, worst):
    """Sum up by what there are goals for."""
    kinds = (
        ("no cap, one stream", ("exact", "firm", "firm and exact", "in range"), lambda name: "streams" not in name),
        ("no cap, several streams", ("exact", "within 3 %", "in range"), lambda name: "streams" in name),
        ("no cap, all", ("exact", "in range"), lambda _: True),
    )
    for title, keys, chosen in kinds:
        names = [name for name in totals if ", no cap" in name and chosen(name)]
        total: Counter[str] = sum((totals[name] for name in names), Counter())
        if total["rows"]:
            parts = [f"{key} {total[key]} ({total[key] / total['rows']:.1%})" for key in keys]
            print(f"GOAL {title}: {total['rows']} rows, {', '.join(parts)}, worst {max(worst[n] for n in names):.2%}")
    limited: Counter[str] = sum((found for name, found in totals.items() if ", cap" in name), Counter())
    if limited["rows"]:
        right = limited["verdict"]
        print(
            f"GOAL cap: {limited['rows']} rows, verdict {right} ({right / limited['rows']:.1%}), "
            f'hedged {limited["hedged"]}, "fits" where it died {limited["missed death"]}'
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="variant", default="c0", help="recording to predict from (default: c0)")
    parser.add_argument("--quick", action="store_true", help="leave out the same-setting replay")
    arguments = parser.parse_args()
    if not arguments.quick:
        same_setting(arguments.folder)
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    misses = []
    started = time.perf_counter()
    for folder, row in rows_of(arguments.folder):
        path = recording(folder, row["workload"], arguments.variant)
        if path is None:
            totals["without a recording"]["rows"] += 1
            continue
        limit = None if row["cap_gib"] is None else round(row["cap_gib"] * GIB)
        lab = lab_of(path, limit)
        prediction = lab.predict(parse_settings(row["conf"]))
        result, reasons = compare(row, prediction)
        name = class_of(lab, row)
        if "unseen calls" in prediction.doubts and not prediction.is_firm and "streams" not in name:
            # An empty_cache() with nothing to give back leaves no event: what it cannot know is counted apart.
            name += ", unseen calls likely to matter"
        worst[name] = max(worst[name], result.pop("worst"))
        totals[name].update({key: int(count) for key, count in result.items()})
        if reasons:
            misses.append((name, row["workload"], row["conf"] or "(defaults)", row["cap_gib"], "; ".join(reasons)))
    for name, total in sorted(totals.items()):
        parts = [f"{key} {total[key]}" for key in total if key != "rows"]
        print(f"{name}: {total['rows']} rows: {', '.join(parts)}, worst {worst[name]:.2%}")
    for miss in misses:
        print("  ", *miss)
    print_goals(totals, worst)
    print(f"{time.perf_counter() - started:.1f} s")
    if not arguments.quick:
        speed(max(arguments.folder.rglob("*.pickle*"), key=lambda path: path.stat().st_size))


if __name__ == "__main__":
    main()
