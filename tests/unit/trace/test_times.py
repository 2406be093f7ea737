"""Times in order, merged with other times."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.trace.times import first_not_before


@pytest.mark.parametrize("count", [0, 1, 5, 1024, 3000, 40_000])
@pytest.mark.parametrize("width", [3, 500, 10**9])
def test_moments_are_found_among_times_as_searchsorted_finds_them(count, width):
    # Few or many, far apart or many in one microsecond, also before the first time and behind the last.
    random = np.random.default_rng(count + width)
    start = 1_796_000_000_000_000
    times = np.sort(random.integers(start, start + width, 7000))
    moments = np.sort(random.integers(start - 2, start + width + 2, count))
    assert np.array_equal(first_not_before(times, moments), np.searchsorted(times, moments))
    assert np.array_equal(first_not_before(times[:0], moments), np.zeros(count))
