"""What the "What if" tab says of a cell, against the same cell run under the other setting in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
