"""What stands in the way from outside: a limit, other processes, memory outside torch."""

from __future__ import annotations

import dataclasses

import pytest
from by_hand.oom import DEFAULTS, GIB, MIB, Heap, cell, reading

from gpumem_magic.analysis import analyse_trace
from gpumem_magic.analysis.oom import Cause
from gpumem_magic.recording.model import (
    Failure,
    ProcessMemory,
)
from gpumem_magic.trace.model import StackTable, Trace


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


def test_processes_that_the_notebook_started_are_told_from_strangers():
    heap = Heap()
    heap.segment(1 << 40, 60 * GIB)
    heap.alloc(1 << 40, 60 * GIB, 2)
    heap.oom(12 * GIB, 6 * GIB)
    workers = [ProcessMemory("cuda:0", 50 + n, 520 * MIB, "python", is_self=False, is_child=True) for n in range(24)]
    stranger = ProcessMemory("cuda:0", 41, 900 * MIB, "python", is_self=False)
    failure = Failure("", processes=(*workers, stranger))
    found = cell(heap, after=reading(heap, others=12 * GIB + GIB // 2), failure=failure)
    assert found.oom.cause is Cause.OTHERS
    told = "24 processes that this notebook started: 12.2 GiB, 520 MiB at most each"
    assert f"other processes hold 13.5 GiB of the card's 80.0 GiB ({told})" in found.oom.sentence
    assert f"of that {told}" in found.oom.numbers
    assert found.oom.suggestions[0].startswith("end the processes that this notebook started, or keep CUDA out of them")


def test_memory_outside_torch():
    heap = Heap()
    heap.segment(1 << 40, 10 * GIB)
    heap.alloc(1 << 40, 10 * GIB, 2)
    heap.oom(4 * GIB, GIB)
    found = cell(heap, after=reading(heap, outside=69 * GIB))
    assert found.oom.cause is Cause.OUTSIDE
    assert "69.0 GiB of this process lies outside torch" in found.oom.sentence


def squeezed(left, *, wanted=4 * GIB):
    """Torch had 40 GiB, gave 30 of them back, asks for more and finds `left` bytes."""
    heap = Heap()
    for number in (1, 2, 3, 4):
        heap.segment(number << 40, 10 * GIB)
        heap.alloc(number << 40, 10 * GIB, number)
    for number in (2, 3, 4):
        heap.free(number << 40)
        heap.release(number << 40)
    heap.oom(wanted, left)
    return heap


def verdict_of_file(heap):
    return analyse_trace(Trace((heap.device(),), StackTable(), (), DEFAULTS)).oom


def test_a_file_shows_that_something_else_took_what_torch_had_had():
    found = verdict_of_file(squeezed(GIB))
    assert found.cause is Cause.OTHERS
    assert found.sentence == (
        "Ran out of memory: it asked for 4.00 GiB, and the card was full although torch held only 10.0 GiB of the "
        "40.0 GiB that it had here at another time: something else had taken 29.0 GiB, another process as a rule."
    )
    assert "card: free 1.00 GiB, taken by something else since torch had 40.0 GiB of it 29.0 GiB" in found.numbers
    assert not any("live tensors" in text for text in found.suggestions)


@pytest.mark.parametrize(
    ("left", "wanted"),
    [
        (20 * GIB, 4 * GIB),  # the driver had room: a memory fraction
        (GIB, 31 * GIB),  # torch never had as much as it would have had then
        (30 * GIB - 100 * MIB, 30 * GIB),  # kernels that were loaded meanwhile
    ],
)
def test_a_file_that_does_not_show_it_blames_nobody_else(left, wanted):
    assert verdict_of_file(squeezed(left, wanted=wanted)).cause is not Cause.OTHERS


def test_a_file_with_a_full_card_of_unknown_size_says_what_that_leaves_open():
    heap = Heap()
    heap.segment(1 << 40, GIB)
    heap.alloc(1 << 40, GIB, 2)
    heap.oom(4 * GIB, GIB // 2)
    found = verdict_of_file(heap)
    assert found.cause is Cause.DEMAND
    assert found.unknown[-1] == (
        "how large the card is: on one of more than 2.50 GiB, other processes or libraries hold the rest, and freeing "
        "tensors is not the cure"
    )


def test_what_was_taken_meanwhile_counts_where_the_driver_tells_too_little():
    # The neighbour is gone again when the cell has ended, and the driver lists no processes.
    heap = squeezed(GIB)
    after = dataclasses.replace(reading(heap, total=45 * GIB), process_used=None)
    found = cell(heap, after=after).oom
    assert found.cause is Cause.OTHERS
    assert "torch held only 10.0 GiB of the 40.0 GiB that it had here at another time" in found.sentence
    # This process's own libraries took it.
    own = reading(heap, total=45 * GIB, outside=32 * GIB)
    assert cell(heap, after=own).oom.cause is Cause.OUTSIDE
