"""What looking for holders costs: ``python tests/benchmarks/bench_holders.py``.

The process holds 100,000 live Python objects of the notebook and 5,000 tensors, beside all that torch and its libraries
made. The goal is a second for ``%gpumem_who``. The quick scan is what every report pays for the names of what stayed.
"""

from __future__ import annotations

import gc
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

from gpumem_magic.holders import who_holds

OBJECTS, TENSORS = 100_000, 5_000
ROUNDS = 7
BUDGET = 2.0  # seconds: the default of %gpumem_who


class Record:
    """An object with attributes, as programs have them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tags = [str(number)]


def notebook() -> dict[str, Any]:
    """Make a namespace with that many objects in containers of several kinds."""
    records = {number: Record(number) for number in range(OBJECTS // 3)}  # an object, its dict or list: three each
    layers = [torch.nn.Linear(8, 8) for _ in range(TENSORS // 10)]
    kept = [torch.ones(16) for _ in range(TENSORS // 2)]
    loose = {f"t{number}": torch.ones(16) for number in range(TENSORS - TENSORS // 2 - 2 * (TENSORS // 10))}
    return {"records": records, "model": torch.nn.Sequential(*layers), "kept": kept, **loose}


def timed(label: str, shell: Any, **options: Any) -> None:
    """Print the median of some rounds, with their spread."""
    seconds, own, scan = [], [], None
    for _ in range(ROUNDS):
        began, thread = time.perf_counter(), time.thread_time()
        scan = who_holds(shell, budget=BUDGET, **options)
        seconds.append(time.perf_counter() - began)
        own.append(time.thread_time() - thread)
    assert scan is not None
    named = sum(storage.holders[0].kind.name != "UNKNOWN" for storage in scan.storages)
    print(
        f"{label:34} median {statistics.median(seconds):.3f} s, from {min(seconds):.3f} to {max(seconds):.3f} s "
        f"(on this thread's own clock {statistics.median(own):.3f} s, from {min(own):.3f}); "
        f"{scan.objects:,} objects, {named:,} of {len(scan.storages):,} storages named"
        + (f"; {scan.cut}" if scan.cut else "")
    )


def main() -> None:
    """Print all lines."""
    shell = SimpleNamespace(user_ns=notebook())
    gc.collect()
    print(f"{len(gc.get_objects()):,} objects in the process, torch {torch.__version__}")
    timed("whole scan (%gpumem_who)", shell)
    timed("quick scan (under each report)", shell, quick=True)
    gc.disable()
    for _ in range(200):
        cycle: list[Any] = [torch.ones(16)]
        cycle.append(cycle)
    timed("whole scan, 200 tensors in cycles", shell)


if __name__ == "__main__":
    main()
