"""The same programs under other settings, each run in a process of its own: the truth for predictions."""

from __future__ import annotations

import concurrent.futures
import fcntl
import json
import lzma
import os
import pickle
import subprocess
import sys
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from .programs import FRESH, FRESH_SETTINGS, MIB, first_of, fresh_program, fresh_variants

if TYPE_CHECKING:
    from pathlib import Path

    from gpumem_magic.allocator.whatif import Prediction
    from gpumem_magic.trace.model import DeviceTrace

    from .programs import FuzzProgram

GIB = 1 << 30
# What the counts of predictions are called that know of every call of empty_cache.
TOLD = " (as %%gpumem records)"


def name_of(seed: int, variant: int) -> str:
    """Return the name of a run's files: c0 is torch's default, c1 expandable segments, as in other recordings."""
    return f"fresh{seed}.c{variant}"


def main(script: Path, out: Path, seconds: float, seeds: range, processes: int) -> int:
    """Run every program under every setting, as far as `seconds` go; write recordings and ``truth.json``."""
    began = time.monotonic()
    folder = out / "fresh"
    folder.mkdir(exist_ok=True)
    lock = folder / "lock"
    lock.touch()
    jobs = [(seed, variant) for seed in seeds for variant in fresh_variants(seed)]
    rows: list[dict[str, Any]] = []
    problems: list[str] = []

    def run(job: tuple[int, int]) -> None:
        seed, variant = job
        left = seconds - min(40, seconds / 3) - (time.monotonic() - began)
        if left < 8:
            return
        setting, _ = FRESH[first_of(variant)]
        environ = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
        if FRESH_SETTINGS[setting]:
            environ["PYTORCH_CUDA_ALLOC_CONF"] = FRESH_SETTINGS[setting]
        command = [sys.executable, str(script), "one", "--out", str(folder), "--lock", str(lock)]
        command += ["--seed", str(seed), "--variant", str(variant)]
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, check=False, timeout=max(left + 20, 20)
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{job}: no answer in time")
            return
        if done.returncode:
            problems.append(f"{job}: exit {done.returncode}: {done.stderr[-400:]}")
            return
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        if len(rows) % 50 == 0:
            print(f"{len(rows)} processes after {time.monotonic() - began:.0f} s", flush=True)

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        list(pool.map(run, jobs))
    lock.unlink()
    rows.sort(key=lambda row: (row["seed"], row["variant"]))
    (folder / "truth.json").write_text(json.dumps({"rows": rows}, indent=1))
    took = time.monotonic() - began
    drawn = f"seeds {seeds.start} to {seeds.stop - 1}"
    lines = [f"other settings, {drawn}: {len(rows)} fresh processes in {took:.0f} s; {len(problems)} did not answer"]
    lines += problems[:5]
    lines.append(compare(folder, processes))
    text = "\n".join(lines)
    (out / "fresh.txt").write_text(text + "\n")
    print(text, flush=True)
    return 0


def one(out: Path, lock: Path, seed: int, variant: int) -> int:
    """Play one program in this process, alone on the card; print its row."""
    import torch  # noqa: F401 - before the lock: it takes seconds

    setting, share = FRESH[first_of(variant)]
    program = fresh_program(seed, share)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        from .play import Player

        played = Player().play(program, dies=True)
        row = {
            "seed": seed,
            "variant": variant,
            "recording": name_of(seed, variant),
            "workload": f"fresh{seed}",
            "conf": FRESH_SETTINGS[setting],
            "cap_gib": None if played["limit"] is None else played["limit"] / GIB,
            "streams": program.has_streams,
            "oom_message": None if played["failed_at"] is None else "out of memory",
            "failed_alloc": None,
            "empties": len(played["empties"]),
            **{f"{name}_peak": value for name, value in played["counters"].items() if not name.startswith("num")},
            **{name: value for name, value in played["counters"].items() if name.startswith("num")},
        }
        if played["failed_at"] is not None:
            # Not of the program's own operations: a capture also allocates, for its random numbers.
            entries = played["snapshot"]["device_traces"][0]
            row["failed_alloc"] = sum(entry["action"] == "alloc" for entry in entries)
        data = pickle.dumps(played["snapshot"], protocol=4)
        (out / f"{name_of(seed, variant)}.pickle.xz").write_bytes(lzma.compress(data, preset=1))
        print(json.dumps(row), flush=True)
        # The memory goes with the process, and only then may the next one begin.
        os._exit(0)


def compare(folder: Path, processes: int) -> str:
    """Predict every run from every other one of its program that had no limit; return the table."""
    every = json.loads((folder / "truth.json").read_text())["rows"]
    rows = [row for row in every if row["variant"] < len(FRESH)]
    by_seed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_seed[row["seed"]].append(row)
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    misses: list[str] = []
    began = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        for found, errors, missed in pool.map(_compare_seed, [(folder, ours) for ours in by_seed.values()]):
            for name, counter in found.items():
                totals[name].update(counter)
                worst[name] = max(worst[name], errors[name])
            misses += missed
    lines = [
        f"  {name}: " + ", ".join(f"{value} {key}" for key, value in total.items()) for name, total in totals.items()
    ]
    took = f"predicted and compared in {time.monotonic() - began:.0f} s"
    return "\n".join([*misses, *sorted(lines), took, *_goals(totals, worst), *_apart(every)])


def _apart(rows: list[dict[str, Any]]) -> list[str]:
    """Say how far two runs of one program under one setting were from each other: no prediction can be nearer."""
    first = {(row["seed"], row["variant"]): row["reserved_peak"] for row in rows if row["variant"] < len(FRESH)}
    pairs = [
        (first[row["seed"], first_of(row["variant"])], row["reserved_peak"])
        for row in rows
        if row["variant"] >= len(FRESH) and (row["seed"], first_of(row["variant"])) in first
    ]
    if not pairs:
        return []
    off = [abs(one - other) / one for one, other in pairs]
    same, near = off.count(0) / len(off), sum(one <= 0.03 for one in off) / len(off)
    text = f"several streams, a program and setting run twice: {len(pairs)} pairs, {same:.1%} the same"
    return [f"{text}, {near:.1%} within 3 %, at most {max(off):.2%} apart"]


def _goals(totals: dict[str, Counter[str]], worst: dict[str, float]) -> list[str]:
    """Return a line for each class of predictions that has a goal of its own, and one for the whole of them."""
    lines = []
    for told in ("", TOLD):
        ours = {name: total for name, total in totals.items() if name.endswith(TOLD) == bool(told)}
        lines += [f"GOAL{told} {line}" for line in _goals_of(ours, worst)]
    same = totals["same setting"]
    return [f"GOAL same setting: {same['exact']} of {same['runs']} exact", *lines]


def _goals_of(totals: dict[str, Counter[str]], worst: dict[str, float]) -> list[str]:
    lines = []
    for title, limited, streams, hidden in (
        ("no limit, one stream, every call in the recording", False, False, False),
        ("no limit, one stream, an unseen empty_cache", False, False, True),
        ("no limit, one stream, both", False, False, None),
        ("no limit, several streams", False, True, None),
        ("limit, one stream, every call in the recording", True, False, False),
        ("limit, one stream, an unseen empty_cache", True, False, True),
        ("limit, one stream", True, False, None),
        ("limit, several streams", True, True, None),
        ("limit, all", True, None, None),
    ):
        names = [
            name
            for name in totals
            if name != "same setting"
            and ("no limit" not in name) == limited
            and streams in {None, "streams" in name}
            and hidden in {None, "left no event" in name}
        ]
        total = sum((totals[name] for name in names), Counter())
        count = total["predictions"]
        if not count:
            continue
        parts = [
            f"exact {total['exact'] / count:.1%}, within 3 % {total['within 3 %'] / count:.1%}",
            f"at most {max(worst[name] for name in names):.2%} off",
            f"in range {total['in range'] / count:.1%}",
            f"called firm {total['firm']}, of which exact {total['firm, exact'] / max(total['firm'], 1):.1%}",
        ]
        if limited:
            parts += [
                f"verdict right {total['verdict'] / count:.1%}",
                f'"fits" where it died {total["fits where it died"]}',
                f"hedged {total['fits unless']}, of which died {total['hedged and died']}",
                f"retries {total['retries'] / count:.1%}",
                f"failing request {total['same request'] / count:.1%}",
            ]
        lines.append(f"{title}: {count} predictions, " + ", ".join(parts))
    return lines


def calls_of(program: FuzzProgram, device: DeviceTrace) -> list[int] | None:
    """Return the events of a recording before which its program called ``empty_cache``, as our recorder tells them.

    None where the recording does not show the program from its beginning to its end.

    A program on one stream makes one event for each request and each free, and two requests more at each capture, for
    the random numbers of the graph; entering one empties the cache.
    """
    from gpumem_magic.trace.model import Action

    action = device.events.action
    blocks = ((action == Action.ALLOC) | (action == Action.FREE_REQUESTED)).nonzero()[0].tolist()
    calls = []
    done = 0
    for op in program.ops:
        if op.name in {"empty", "capture"}:
            calls.append(blocks[min(done, len(blocks)) - 1] + 1 if done else 0)
        done += {"alloc": 1, "free": 1, "capture": 2}.get(op.name, 0)
    return calls if done == len(blocks) else None


def _compare_seed(
    job: tuple[Path, list[dict[str, Any]]],
) -> tuple[dict[str, Counter[str]], dict[str, float], list[str]]:
    import numpy as np

    from gpumem_magic.allocator.lab import Lab
    from gpumem_magic.allocator.program import Op
    from gpumem_magic.allocator.settings_text import parse_settings
    from gpumem_magic.trace.reader import read_trace

    folder, rows = job
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    misses = []
    for source in rows:
        if source["cap_gib"] is not None:
            continue
        trace = read_trace(folder / f"{source['recording']}.pickle.xz")
        labs: dict[tuple[int | None, str], Lab] = {}
        # An empty_cache that gave nothing back left no event, and would give something back under another setting.
        program = fresh_program(source["seed"], None)
        emptied = sum(op.name in {"empty", "capture"} for op in program.ops)
        seen = Lab(trace, trace.devices[0]).program.codes
        hidden = ", an empty_cache left no event" if np.count_nonzero(seen == Op.EMPTY_CACHE) < emptied else ""
        totals["same setting"].update({"runs": 1, "exact": int(Lab(trace, trace.devices[0]).exact)})
        calls = calls_of(program, trace.devices[0])
        for target in rows:
            if target is source:
                continue
            limit = None if target["cap_gib"] is None else round(target["cap_gib"] * GIB)
            kind = ("streams, " if source["streams"] else "") + ("no limit" if limit is None else "limit") + hidden
            for told, known in (("", None), (TOLD, calls)):
                if told and calls is None:
                    continue
                if (limit, told) not in labs:
                    labs[limit, told] = Lab(trace, trace.devices[0], limit=limit, calls=known)
                counter, error, miss = _judge(labs[limit, told].predict(parse_settings(target["conf"])), target)
                totals[kind + told].update(counter)
                worst[kind + told] = max(worst[kind + told], error)
                if miss:
                    misses.append(f"  {kind}{told}: {source['recording']} -> {miss}")
    return totals, worst, misses


def _judge(prediction: Prediction, target: dict[str, Any]) -> tuple[dict[str, int], float, str]:
    """Compare a prediction with a run; return counters, the relative error, and what is wrong (empty: nothing)."""
    true = target["reserved_peak"]
    off = abs(prediction.expected - true)
    counter = {
        "predictions": 1,
        "exact": int(not off),
        "within 1 %": int(off <= 0.01 * true),
        "within 3 %": int(off <= 0.03 * true),
        "in range": int(prediction.low <= true <= prediction.high),
        "firm": int(prediction.is_firm),
        "firm, exact": int(prediction.is_firm and not off),
    }
    if target["cap_gib"] is not None:
        died = target["failed_alloc"] is not None
        at = prediction.dies_at.lifetime if prediction.dies_at else None
        counter |= {
            "verdict": int(prediction.verdict == ("oom" if died else "fits")),
            "fits unless": int(prediction.verdict.startswith("fits_unless")),
            "hedged and died": int(died and prediction.verdict.startswith("fits_unless")),
            "fits where it died": int(died and prediction.verdict == "fits"),
            "retries": int(prediction.retries == target["num_alloc_retries"]),
            "same request": int(at == target["failed_alloc"]),
        }
    miss = ""
    if off or not counter.get("verdict", 1):
        told = f"{prediction.expected / MIB:.0f} MiB [{prediction.low / MIB:.0f}, {prediction.high / MIB:.0f}]"
        told += ", firm" if prediction.is_firm else ""
        miss = (
            f"{target['recording']} ({target['conf'] or 'defaults'}, limit {target['cap_gib']}): {told}, "
            f"true {true / MIB:.0f} MiB, {prediction.verdict}"
        )
    return counter, off / true if true else 0.0, miss
