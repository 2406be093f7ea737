"""What survivors by iteration prove."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.analysis.leaks.evidence import Shape, judge, regrown
from gpumem_magic.analysis.leaks.period import repetitions


def ask(ends, iterations=None, sizes=None):
    """`ends`: per allocation (iteration made, iteration freed or -1)."""
    made, freed = (np.array(column, np.int64) for column in zip(*ends, strict=True))
    size = np.full(len(made), 1024, np.int64) if sizes is None else np.array(sizes, np.int64)
    return judge(made, freed, size, iterations or int(made.max()) + 1)


def test_every_iteration_left_something():
    found = ask([(n, -1) for n in range(6)])
    assert (found.shape, found.grown, found.typical, found.once) == (Shape.GROWTH, 6, 1024, 0)


@pytest.mark.parametrize("iterations", [1, 2, 3, 10, 100])
def test_the_last_iterations_variables_are_no_leak(iterations):
    ends = [(n, n + 1) for n in range(iterations - 1)] + [(iterations - 1, -1)]
    assert ask(ends).shape is Shape.NOTHING
    if iterations > 2:
        # `previous = current` keeps two.
        ends = [(n, n + 2) for n in range(iterations - 2)] + [(iterations - 2, -1), (iterations - 1, -1)]
        assert ask(ends).shape is Shape.NOTHING


def test_two_periods_are_no_evidence():
    assert ask([(0, -1), (1, -1)]).shape is Shape.NOTHING
    assert ask([(0, -1), (1, -1), (2, -1)]).shape is Shape.GROWTH
    # Three that differ are no period.
    assert ask([(0, -1), (1, -1), (2, -1)], sizes=[9, 10, 4000]).shape is Shape.NOTHING


def test_what_came_once_is_not_growth():
    found = ask([(0, -1), *((n, n) for n in range(1, 20))])
    assert (found.shape, found.once) == (Shape.ONCE, 1024)
    # State at the first step of an accumulation, then the last iteration's own.
    assert ask([(1, -1), *((n, n) for n in range(2, 19)), (19, -1)]).shape is Shape.ONCE


def test_a_cache_that_fills_and_stops_is_warm_up():
    assert ask([*((n, -1) for n in range(8)), *((n, n) for n in range(8, 100))]).shape is Shape.ONCE


def test_a_window_is_bounded():
    ends = [(n, n + 5) for n in range(45)] + [(n, -1) for n in range(45, 50)]
    assert ask(ends).shape is Shape.WINDOW


def test_growth_that_begins_late_is_growth():
    ends = [(n, n) for n in range(50)] + [(n, -1) for n in range(50, 100)]
    assert (ask(ends).shape, ask(ends).grown) == (Shape.GROWTH, 50)


def test_every_tenth_iteration_is_growth():
    ends = [(n, -1 if n % 10 == 0 else n) for n in range(100)]
    found = ask(ends)
    assert (found.shape, found.grown) == (Shape.GROWTH, 10)


def test_the_first_iteration_counts_apart():
    sizes = [9000, 100, 100, 100, 100]
    found = ask([(n, -1) for n in range(5)], sizes=sizes)
    assert (found.typical, found.once) == (100, 8900)


def test_sizes_may_vary_from_batch_to_batch():
    sizes = np.random.default_rng(0).integers(100, 9000, 40)
    assert ask([(n, -1) for n in range(40)], sizes=sizes).grown == 40
    ends = [(n, n + 1) for n in range(39)] + [(39, -1)]
    assert ask(ends, sizes=sizes).shape is Shape.NOTHING


def larger(sizes, freed=None):
    count = len(sizes)
    ended = np.array([*range(1, count), -1] if freed is None else freed, np.int64)
    return regrown(np.arange(count), ended, np.array(sizes, np.int64), count)


def test_a_tensor_that_is_made_anew_larger_each_time():
    assert larger([1000 * n for n in range(1, 11)]) == (9, 1000, 10_000)
    # Sorted batches grow too, but not by the same; and what is dropped at the end is no growth.
    assert larger([10, 30, 31, 500, 501, 502, 900, 2000]) is None
    assert larger([1000 * n for n in range(1, 11)], [*range(1, 10), 10]) is None
    assert larger([1000] * 10) is None


def test_a_period_in_sizes_alone():
    step = [100, 200, 300, 400, 500, 600, 700, 64]
    kept = [False] * 7 + [True]
    requested, stayed = np.array(step * 9, np.int64), np.array(kept * 9)
    found = repetitions(np.concatenate([[7, 8, 9], requested]), np.concatenate([[True, True, False], stayed]))
    assert found is not None
    assert (found.length, found.periods) == (8, 9)
    # Equal layers of one forward pass keep most of what they allocate; four steps are too few.
    assert repetitions(requested, ~stayed) is None
    assert repetitions(requested[:32], stayed[:32]) is None
    # Code that is known to loop needs less.
    found = repetitions(requested[:32], stayed[:32], is_loop=True)
    assert found is not None
    assert found.periods == 4
    assert repetitions(np.array([5, 7, 9], np.int64), np.ones(3, bool), is_loop=True) is None
