"""What the "What if" tab says of a cell, against the same cell run under the other setting in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Lengths that vary, so that the default allocator keeps what it cannot use again.
_CELL = """
def steps():
    kept = []
    for n in range(1, 60):
        x = torch.empty((37 * n % 97 + 3) << 20, dtype=torch.uint8, device="cuda")
        y = torch.empty((53 * n % 89 + 5) << 20, dtype=torch.uint8, device="cuda")
        if n % 6 == 0:
            kept.append(torch.empty(3 << 20, dtype=torch.uint8, device="cuda"))
        del x, y
    return kept
"""
_RUN = """
import json, sys, torch, gpumem_magic
exec(sys.argv[1])
if sys.argv[2] == "warm":
    before = torch.empty(70 << 20, dtype=torch.uint8, device="cuda")
with gpumem_magic.record(label="cell") as r:
    kept = steps()
found = {"peak": torch.cuda.max_memory_reserved()}
if sys.argv[3] == "ask":
    (answer,) = r.report.explored().answers.values()
    found["rows"] = {row.conf: [row.low, row.expected, row.high, row.inert] for row in answer.rows}
    found["exact"] = answer.facts.deviation is None
    state = r.report.devices[0].memory
    found["returnable"] = state.at(len(state.device.events) - 1).fragmentation().returnable
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    found["given_back"] = reserved - torch.cuda.memory_reserved()
print("FOUND " + json.dumps(found))
"""


def _run(conf: str, start: str, ask: str) -> dict[str, object]:
    base = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, _CELL, start, ask],
        env=base | {"PYTORCH_CUDA_ALLOC_CONF": conf},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            found: dict[str, object] = json.loads(line.removeprefix("FOUND "))
            return found
    raise AssertionError(done.stderr[-2000:])


def _check(start: str, share: float) -> str:
    asked = _run("", start, "ask")
    rows = asked["rows"]
    assert isinstance(rows, dict)
    assert asked["returnable"] == asked["given_back"], asked
    lines = [f"model exact: {asked['exact']}, empty_cache() gave back {asked['given_back']:,} as the map said"]
    for conf, (low, expected, high, inert) in rows.items():
        if inert is not None:
            continue
        true = _run(conf, start, "run")["peak"]
        assert isinstance(true, int)
        lines.append(f"{conf or '(defaults)'}: said {expected:,} [{low:,}, {high:,}], was {true:,}")
        if abs(expected - true) > share * true:
            raise AssertionError("\n".join(lines))
    return "; ".join(lines)


def check_whatif_of_a_first_cell() -> str:
    """From an empty allocator every setting's peak is as said."""
    return _check("cold", 0.0)


def check_whatif_of_a_cell_with_memory_before_it() -> str:
    """With memory from before it is within 1 %."""
    return _check("warm", 0.01)


_CALLS = """
import json, torch, gpumem_magic
torch.empty(1, device="cuda")
torch.cuda.empty_cache()
with gpumem_magic.record(label="cell") as r:
    held = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
    torch.cuda.empty_cache()  # gives nothing back, and leaves no event
    del held[1]
    torch.cuda.empty_cache()  # gives one segment back
    torch.cuda.empty_cache()  # nothing again
memory = r.report.devices[0].memory
freed = sum(int(action) == 4 for action in memory.device.events.action)
blocks = [int((memory.device.events.action[:call] == 0).sum()) for call in memory.calls or ()]
order = [int((memory.device.events.action[:call] == 1).sum()) for call in memory.calls or ()]
print("FOUND " + json.dumps([memory.emptied, freed, blocks, order]))
"""


def check_unseen_calls_are_counted() -> str:
    """torch's counters tell of calls of empty_cache that leave no event."""
    done = subprocess.run([sys.executable, "-c", _CALLS], capture_output=True, text=True, check=False, timeout=60)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stderr[-2000:]
    calls, freed, allocated, asked_back = json.loads(found[0].removeprefix("FOUND "))
    assert (calls, freed) == (3, 1), (calls, freed)
    # Each is known to come after three allocations, and the last two after the free.
    assert (allocated, asked_back) == ([3, 3, 3], [0, 1, 1]), (allocated, asked_back)
    return f"{calls} calls of empty_cache counted and placed, {freed} left an event"


_SAVED = """
import json, random, sys, torch, gpumem_magic
torch.empty(1, device="cuda")
torch.cuda.empty_cache()
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(3 * 2**30 / total)
draw = random.Random(5)

def steps():
    held = []
    for step in range(400):
        if step % 17 == 0:
            torch.cuda.empty_cache()  # every other one finds nothing to give back
        if held and (draw.random() < 0.45 or len(held) > 30):
            held.pop(draw.randrange(len(held)))
        else:
            size = draw.choice([draw.randint(1, 900) << 10, draw.randint(1, 40) << 20])
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return held

torch.cuda.reset_peak_memory_stats()
with gpumem_magic.record(label="cell") as r:
    kept = steps()
found = {"peak": torch.cuda.max_memory_reserved(), "limit": int(3 * 2**30 / total * total)}
if len(sys.argv) > 1:
    found["path"] = str(r.report.save(sys.argv[1]))
    found["calls"] = len(r.report.devices[0].memory.calls or ())
    found["seen"] = sum(int(action) == 4 for action in r.report.devices[0].memory.device.events.action)
print("FOUND " + json.dumps(found))
"""


def check_whatif_of_a_saved_snapshot() -> str:
    """A snapshot that a cell wrote keeps what torch's has no place for: each call of empty_cache, and the limit."""

    def run(conf: str, *arguments: str) -> dict[str, object]:
        base = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
        done = subprocess.run(
            [sys.executable, "-c", _SAVED, *arguments],
            env=base | {"PYTORCH_CUDA_ALLOC_CONF": conf},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        assert lines, done.stderr[-2000:]
        found: dict[str, object] = json.loads(lines[0].removeprefix("FOUND "))
        return found

    confs = ["expandable_segments:True", "max_split_size_mb:32,garbage_collection_threshold:0.1"]
    with tempfile.TemporaryDirectory() as folder:
        wrote = run("", str(Path(folder) / "cell.pickle"))
        command = [sys.executable, "-m", "gpumem_magic", "whatif", str(wrote["path"]), "--json"]
        asked = subprocess.run(
            [*command, *(part for conf in confs for part in ("--conf", conf))],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    told = json.loads(asked.stdout)
    assert told["calls_known"], told["warnings"]
    assert told["cap_bytes"] == wrote["limit"], (told["cap_bytes"], wrote["limit"])
    assert wrote["calls"] == 24, wrote
    lines = []
    for result in told["results"]:
        true, peak = run(result["conf"])["peak"], result["reserved_peak"]
        lines.append(f"{result['conf']}: said {peak['expected']:,}, was {true:,}")
        assert peak["expected"] == true, lines
        assert "unseen calls" not in result["doubts"], result
    return f"{wrote['calls']} calls, {wrote['seen']} segments given back; " + "; ".join(lines)
