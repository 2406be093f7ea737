"""Verdicts about the request itself and about what is really needed."""

from __future__ import annotations

from by_hand.oom import GIB, MIB, Heap, cell, full_card, reading

from gpumem_magic.analysis.oom import Cause


def test_the_request_alone():
    heap = Heap()
    heap.segment(1 << 40, 2 * MIB)
    heap.alloc(1 << 40, MIB, 2)
    heap.oom(77 * GIB, 38 * GIB)
    found = cell(heap, after=reading(heap, total=39 * GIB))
    assert found.oom.cause is Cause.REQUEST
    assert found.sentence.startswith(
        "Out of memory at line 4 `c = torch.empty(n)`: it asked for 77.0 GiB in one piece, more than the whole card "
        "holds (39.0 GiB); no allocator setting can help. Peak "
    )
    assert not any("expandable" in line for line in found.oom.suggestions)


def test_true_demand_names_the_line_that_holds_most():
    heap = full_card()
    found = cell(heap, after=reading(heap))
    assert found.oom.cause is Cause.DEMAND
    assert found.oom.sentence == (
        "Out of memory at line 4 `c = torch.empty(n)`: it asked for 2.00 GiB, and live tensors really hold 79.0 GiB of "
        "the card's 80.0 GiB, 76% of it from line 2 `a = make()`."
    )
    assert found.oom.suggestions[0].startswith("begin with line 2 `a = make()`, which holds 60.0 GiB")
    assert "no allocator setting helps" in found.oom.suggestions[-1]


def test_a_context_is_no_finding():
    heap = full_card()
    assert cell(heap, after=reading(heap, outside=GIB // 2)).oom.cause is Cause.DEMAND
