"""Where a capture emptied the cache, when that left no event."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.allocator.captures import has_captures, with_calls_where_quiet
from gpumem_magic.allocator.program import Op, Program
from gpumem_magic.allocator.settings_model import MIB

STREAM = 0x5580
# 0: the default stream's; 1, 2: a generator's state, on the capture's stream; 3: the graph's.
REQUESTED = (20 * MIB, 8, 8, 4 * MIB)
GROUPS = (((0, 0), 0), ((0, 0), STREAM), ((1, 0), STREAM))
GROUP = (0, 1, 1, 2)

BEFORE, FREE, STATE, STATES, CALL = (Op.ALLOC, 0), (Op.FREE, 0), (Op.ALLOC, 1), (Op.ALLOC, 2), (Op.EMPTY_CACHE, 0)
CAPTURE = ((Op.HIDDEN_EMPTY_CACHE, 0), (Op.BEGIN_CAPTURE, 0), (Op.ALLOC, 3), (Op.END_CAPTURE, 0))


def program(*steps):
    codes, arguments = zip(*steps, strict=True)
    return Program(
        codes=np.array(codes, np.uint8),
        arguments=np.array(arguments, np.int32),
        events=np.arange(len(codes), dtype=np.int32),
        requested=np.array(REQUESTED, np.int64),
        group=np.array(GROUP, np.int32),
        groups=GROUPS,
    )


def settled(*steps, quiet=()):
    """Return what comes of a program, and check that nothing else changes; `quiet`: before which steps, None: all."""
    given = program(*steps)
    assert has_captures(given)
    marks = np.zeros(len(steps), bool)
    marks[list(range(len(steps)) if quiet is None else quiet)] = True
    found = with_calls_where_quiet(given, marks)
    assert np.all(np.diff(found.events) >= 0)
    hidden = int(Op.HIDDEN_EMPTY_CACHE)
    assert [one for one in found.steps() if one[0] != hidden] == [one for one in given.steps() if one[0] != hidden]
    return [Op(code).name for code, _ in found.steps()].index("HIDDEN_EMPTY_CACHE") if hidden in found.codes else None


def test_a_quiet_call_stays():
    assert settled(BEFORE, FREE, *CAPTURE, quiet=[0, 3]) == 2


def test_it_comes_before_the_random_numbers_and_before_what_is_freed_in_the_capture():
    # Freed after it, the block is given back by it only where it comes too late.
    assert settled(BEFORE, STATE, STATES, FREE, *CAPTURE, quiet=[0, 1, 2, 3]) == 1
    assert settled(BEFORE, STATE, FREE, STATES, *CAPTURE, quiet=None) == 1


def test_it_is_looked_for_backwards_until_it_would_leave_no_event():
    assert settled(BEFORE, FREE, *CAPTURE, quiet=[0, 1]) == 1
    assert settled(BEFORE, FREE, *CAPTURE) is None


@pytest.mark.parametrize("between", [(), (FREE,), (STATE, STATES), (STATE, STATES, FREE), (FREE, STATE, STATES)])
def test_a_call_that_shows_is_the_captures_own(between):
    assert settled(BEFORE, CALL, *between, *CAPTURE, quiet=None) is None


def test_a_larger_request_is_no_generators_state():
    assert settled(CALL, BEFORE, *CAPTURE, quiet=None) == 2


def test_without_a_capture_nothing_is_looked_for():
    assert not has_captures(program(BEFORE, FREE))
