"""What is alive of the last iteration, or run, only because it is the last one is no growth: numbers to the byte."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.analysis.leaks.evidence import blocks_to_count

KIB, MIB = 1 << 10, 1 << 20
SOURCE = "kept = []\nfor x in loader:\n    y = model(x)\n    keep(y)\n"


def loop(script, keeps, steps, *, size=MIB):
    """Run a loop whose `keeps(step)` says whether its ``y`` is put aside; the others' is bound anew."""
    run = script(SOURCE)
    run.at(1)
    for step in range(steps):
        run.at(2).at(3)
        run.alloc(f"kept{step}" if keeps(step) else "y", size)
        if keeps(step) and "y" in run.blocks:
            run.free("y")
        run.at(4)
    return run


@pytest.mark.parametrize(("steps", "times"), [(60, 6), (61, 7), (55, 6)])
def test_every_tenth_iteration_keeps_something(script, steps, times):
    (leak,) = loop(script, lambda step: step % 10 == 0, steps).growth().leaks
    assert (leak.every, leak.grown, leak.bytes) == (10, times, times * MIB)
    assert f"every 10th iteration, {times} times: {times}.00 MiB" in leak.sentence
    assert sum(leak.left) == leak.bytes


def test_two_that_kept_something_and_a_variable_are_no_evidence_of_three(script):
    assert loop(script, lambda step: step in {0, 10}, 15).growth().leaks == ()
    assert len(loop(script, lambda step: step in {0, 5, 10}, 15).growth().leaks) == 1


def test_iterations_without_a_rhythm(script):
    keeping = {1, 2, 9, 11, 12, 25, 31}
    (leak,) = loop(script, lambda step: step in keeping, 33).growth().leaks
    assert (leak.every, leak.grown, leak.bytes) == (None, 7, 7 * MIB)
    often = set(range(30)) - {3, 4, 11, 20, 21}
    (leak,) = loop(script, lambda step: step in often, 30).growth().leaks
    assert (leak.grown, leak.bytes) == (25, 25 * MIB)


def test_a_variable_beside_what_is_kept_on_the_same_line(script):
    run = script(SOURCE)
    run.at(1)
    for step in range(8):
        run.at(2).at(3).alloc(f"kept{step}", 2 * MIB).alloc("t", MIB).at(4)
    (leak,) = run.growth().leaks
    assert (leak.bytes_per_iteration, leak.bytes) == (2 * MIB, 16 * MIB)
    assert leak.left == (2 * MIB,) * 8
    assert leak.lines[0].blocks == 8


def test_batches_of_any_size_count_as_what_they_are(script):
    sizes = [MIB * (1 + step % 5) for step in range(12)]
    run = script(SOURCE)
    run.at(1)
    for step, size in enumerate(sizes):
        run.at(2).at(3).alloc(f"kept{step}", size).at(4)
    (leak,) = run.growth().leaks
    assert leak.bytes == sum(sizes)


def test_the_newest_is_left_out_first_and_no_more_than_what_is_beyond():
    size = np.array([9, 4, 4, 4, 1, 2])
    iteration = np.array([0, 1, 2, 3, 3, 3])
    left = np.bincount(iteration, size).astype(np.int64)
    assert blocks_to_count(size, iteration, left).tolist() == [True, True, True, True, False, False]
    assert blocks_to_count(size[:3], iteration[:3], left[:3]).all()
    assert blocks_to_count(size[:1], iteration[:1], left[:1]).all()
