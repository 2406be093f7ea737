"""Many traces in one process, each from an empty allocator, under settings changed at run time; judged beside it."""

from __future__ import annotations

import json
import lzma
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from .programs import SETTINGS, round_of, run_time_text

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

# Traces kept for study: of each setting the shortest that deviate, some that fit (fixtures), some with a change.
KEPT = {"deviates": 3, "fits": 2, "changed": 100}
MOST_AHEAD = 64
NOT_EMPTY = 3


def main(script: Path, out: Path, seconds: float, traces: int, processes: int) -> int:
    """Play until `traces` are done or `seconds` are over; write ``same.jsonl`` and kept traces to `out`."""
    began = time.monotonic()
    rows = out / "same.jsonl"
    rows.unlink(missing_ok=True)
    start, restarts = 0, 0
    while start < traces and restarts < 12 and time.monotonic() - began < seconds - 15:
        left = seconds - (time.monotonic() - began)
        command = [sys.executable, str(script), "player", "--out", str(out), "--start", str(start)]
        command += ["--traces", str(traces), "--seconds", str(left), "--processes", str(processes)]
        environ = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
        done = subprocess.run(command, env=environ, check=False)
        start = 1 + max((json.loads(line)["number"] for line in rows.read_text().splitlines()), default=start)
        if done.returncode == 0:
            break
        restarts += 1
        print(f"the playing process ended with {done.returncode}; another goes on at trace {start}", flush=True)
    text = summary([json.loads(line) for line in rows.read_text().splitlines()], time.monotonic() - began)
    (out / "same.txt").write_text(text + "\n")
    print(text, flush=True)
    return 0


def player(out: Path, start: int, traces: int, seconds: float, processes: int) -> int:  # noqa: C901 - one loop
    """Play traces from number `start` on in this process."""
    from .play import Player, set_at_run_time

    until = time.monotonic() + seconds - 8
    kept = _Kept(out)
    playing = Player()
    waiting: dict[Future[dict[str, Any]], tuple[dict[str, Any], bytes]] = {}
    current = None
    code = 0
    context = multiprocessing.get_context("spawn")
    with (out / "same.jsonl").open("a") as rows, ProcessPoolExecutor(processes, context) as pool:

        def collect(most: int) -> None:
            while len(waiting) > most:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    row, played = waiting.pop(future)
                    try:
                        row |= future.result()
                    except Exception as error:  # noqa: BLE001 - a row of the table
                        row["error"] = f"judging: {type(error).__name__}: {error}"
                    kept.take(row, played)
                    rows.write(json.dumps(row) + "\n")
                    rows.flush()

        for number in range(start, traces):
            if time.monotonic() > until:
                break
            name, program = round_of(number)
            row = {
                "number": number,
                "setting": name,
                "streams": program.has_streams,
                "pools": any(op.name in {"capture", "pool"} for op in program.ops),
                "limit": program.limit,
                "changed": program.changes_settings,
            }
            try:
                if not playing.is_empty():
                    raise RuntimeError("the allocator did not get empty")  # noqa: TRY301 - the row says it
                if name != current:
                    set_at_run_time(run_time_text(SETTINGS[name]))
                    current = name
                # As bytes: thousands of live dictionaries would slow the collector down.
                played = pickle.dumps(playing.play(program), protocol=4)
            except Exception as error:  # noqa: BLE001 - a row of the table
                row["error"] = f"playing: {type(error).__name__}: {str(error)[:300]}"
                rows.write(json.dumps(row) + "\n")
                rows.flush()
                current = None
                if playing.is_empty():
                    continue
                code = NOT_EMPTY
                break
            if program.changes_settings:
                current = None
            waiting[pool.submit(_judge, played, SETTINGS[name])] = (row, played)
            collect(MOST_AHEAD)
            if number % 200 == 199:
                print(f"{number + 1} traces played", flush=True)
        collect(0)
    kept.write()
    return code


def _judge(played: bytes, conf: str) -> dict[str, Any]:
    from .judge import judge

    return judge(pickle.loads(played), conf)  # noqa: S301 - our own


class _Kept:
    """Traces to be kept, at most `KEPT` of each setting."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "traces"
        self.folder.mkdir(exist_ok=True)
        self.best: dict[str, list[tuple[int, int, dict[str, Any], bytes]]] = {}

    def take(self, row: dict[str, Any], played: bytes) -> None:
        wrong = row.get("deviation") or row.get("settings") or row.get("error")
        kind = "changed" if row["changed"] else "deviates" if wrong else "fits"
        if kind == "fits" and (row["segments"] < 30 or row["events"] > 500):
            return
        key = kind if kind == "changed" else f"{kind}-{row['setting']}"
        best = self.best.setdefault(key, [])
        best.append((row.get("events", 0), row["number"], row, played))
        best.sort(key=lambda one: one[:2])
        del best[KEPT[kind] :]

    def write(self) -> None:
        """Write them, so that a process that comes after may write its own beside them."""
        for key, best in self.best.items():
            for _, number, row, played in best:
                path = self.folder / f"{key}-{number}.pickle.xz"
                whole = {"row": row, **pickle.loads(played)}  # noqa: S301 - our own
                path.write_bytes(lzma.compress(pickle.dumps(whole, protocol=4)))


def summary(rows: list[dict[str, Any]], seconds: float) -> str:
    """Write the table."""
    counts: dict[str, Counter[str]] = {}
    bad = []
    for row in rows:
        count = counts.setdefault("settings changed within the trace" if row["changed"] else row["setting"], Counter())
        count["traces"] += 1
        count["events"] += row.get("events", 0)
        count["segment events"] += row.get("segments", 0)
        for kind in ("streams", "pools", "limit"):
            count[f"with {kind}"] += bool(row[kind])
        count["deviations"] += row.get("deviation") is not None
        count["counters off"] += bool(row.get("wrong"))
        count["setting not taken"] += bool(row.get("settings"))
        count["errors"] += "error" in row
        if row.get("deviation") or row.get("wrong") or row.get("settings") or row.get("error"):
            bad.append(row)
    lines = [f"same setting: {len(rows)} traces in {seconds:.0f} s"]
    lines += [f"  {name}: " + ", ".join(f"{value:,} {key}" for key, value in c.items()) for name, c in counts.items()]
    lines += [json.dumps(row) for row in bad[:40]]
    plain = [row for row in rows if not row["changed"]]
    wrong = sum(bool(row.get("deviation") or row.get("error")) for row in plain)
    lines.append(f"{len(plain)} traces without a change in the middle: {wrong} deviations")
    return "\n".join(lines)
