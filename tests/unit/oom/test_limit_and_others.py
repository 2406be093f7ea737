"""What stands in the way from outside: a limit, other processes, memory outside torch."""

from __future__ import annotations

from by_hand.oom import GIB, MIB, Heap, cell, reading

from gpumem_magic.analysis.oom import Cause
from gpumem_magic.recording.model import (
    Failure,
    ProcessMemory,
)


def test_the_limit_of_this_process():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    heap.oom(16 * MIB, 70 * GIB)
    found = cell(heap, after=reading(heap, limit=GIB))
    assert found.oom.cause is Cause.LIMIT
    assert "the limit of this process, 1.00 GiB, (memory fraction) stopped it while the card had 70.0 GiB free" in (
        found.oom.sentence
    )
    # 1.016 GiB of 80: two decimals, upwards.
    assert found.oom.suggestions[0] == (
        "raise the limit: torch.cuda.set_per_process_memory_fraction(0.02) lets this request pass"
    )


def test_other_processes_are_named():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    heap.oom(4 * GIB, 2 * GIB)
    failure = Failure("", processes=(ProcessMemory("cuda:0", 41, 76 * GIB, "python", is_self=False),))
    found = cell(heap, after=reading(heap, others=76 * GIB + GIB // 2), failure=failure)
    assert found.oom.cause is Cause.OTHERS
    assert "other processes hold 76.5 GiB of the card's 80.0 GiB (PID 41 python: 76.0 GiB)" in found.oom.sentence
    assert found.oom.suggestions[0].startswith("stop or wait for PID 41 (python)")


def test_memory_outside_torch():
    heap = Heap()
    heap.segment(1 << 40, 10 * GIB)
    heap.alloc(1 << 40, 10 * GIB, 2)
    heap.oom(4 * GIB, GIB)
    found = cell(heap, after=reading(heap, outside=69 * GIB))
    assert found.oom.cause is Cause.OUTSIDE
    assert "69.0 GiB of this process lies outside torch" in found.oom.sentence
