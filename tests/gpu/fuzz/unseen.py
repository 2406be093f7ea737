"""Programs that call ``empty_cache`` where it leaves no event, without a GPU: the model plays both sides.

What it plays under one setting is the recording, in which those calls are missing; what it plays under another, with
them, is the truth. The model repeats a GPU's allocator exactly, so what it cannot know is what a prediction for a real
recording cannot know.
"""

from __future__ import annotations

import concurrent.futures
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from . import synth
from .programs import MIB, SETTINGS, Op, with_limit, write_program

if TYPE_CHECKING:
    from .programs import FuzzProgram

RECORDED = ("default", "expandable", "split32", "round4", "segment40")


def case(number: int) -> tuple[str, str, FuzzProgram]:
    """Return what it is recorded under, what it is predicted for, and a program that just fits or just does not."""
    rng = random.Random(f"unseen {number}")  # noqa: S311 - no secret
    budget = (100 + number * 61 % 900) * MIB
    program = write_program(number, steps=200 + number * 37 % 500, streams=False, pools=False, budget=budget)
    # From programs that hardly ever call it to those that call it all the time.
    for _ in range(rng.choice([0, 0, 1, 3, 8])):
        program.ops.insert(rng.randrange(len(program.ops)), Op("empty"))
    with_limit(program, rng.uniform(1.0, 1.2))
    assert program.limit is not None
    program.limit -= 24 * MIB
    return rng.choice(RECORDED), rng.choice(list(SETTINGS)), program


def judge(number: int) -> dict[str, Any]:
    """Predict one case from its recording; say how that compares with the truth."""
    from gpumem_magic.allocator.lab import Lab
    from gpumem_magic.allocator.program import Op as Step
    from gpumem_magic.allocator.settings_text import parse_settings
    from gpumem_magic.trace.convert import from_snapshot

    recorded, other, program = case(number)
    limit, program.limit = program.limit, None
    trace = from_snapshot(synth.play(program, SETTINGS[recorded])["snapshot"])
    free = synth.play(program, SETTINGS[other])["counters"]["reserved"]
    program.limit = limit
    died = synth.play(program, SETTINGS[other], dies=True)["failed_at"] is not None
    settings = parse_settings(SETTINGS[other])
    calls = sum(op.name == "empty" for op in program.ops)
    lab = Lab(trace, trace.devices[0])
    seen = int((lab.program.codes == Step.EMPTY_CACHE).sum())
    found = Lab(trace, trace.devices[0], limit=limit).predict(settings)
    known = Lab(trace, trace.devices[0], limit=limit, emptied=seen).predict(settings)
    peak = lab.predict(settings)
    return {
        "number": number,
        "unseen": calls - seen,
        "seen": seen,
        "died": died,
        "verdict": found.verdict,
        "plain": known.verdict,
        "in range": peak.low <= free <= peak.high,
    }


def main(count: int, processes: int, seconds: float) -> str:
    """Judge many cases; return a table and the cases that were called fitting where they died."""
    began = time.monotonic()
    totals: Counter[str] = Counter()
    wrong = []
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        for start in range(0, count, 200):
            if time.monotonic() - began > seconds:
                break
            for one in pool.map(judge, range(start, min(start + 200, count)), chunksize=10):
                end = "died" if one["died"] else "lived"
                totals[f"{end}, said {one['verdict']}"] += 1
                totals[f"{end}, without doubts said {one['plain']}"] += 1
                totals["cases"] += 1
                totals["with unseen calls"] += one["unseen"] > 0
                if one["seen"]:
                    totals["peaks of programs seen to call it"] += 1
                    totals["of these in range"] += one["in range"]
                if one["died"] and one["plain"] == "fits":
                    wrong.append(f"{one['number']} ({one['verdict']})")
    lines = [f"  {name}: {totals[name]:,}" for name in sorted(totals)]
    return "\n".join(
        [f"unseen calls, {time.monotonic() - began:.0f} s", *lines, f"  doubt was due: {', '.join(wrong)}"]
    )
