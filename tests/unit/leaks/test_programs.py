"""Loops put together at random, whose growth is known: a leak is found to the byte, and nothing else is called one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

KIB, MIB = 1 << 10, 1 << 20
# What each iteration needs and gives back, far above what leaks.
TRANSIENT = 8 * MIB


class Turn(NamedTuple):
    """One iteration: which of how many, and what decides by chance."""

    number: int
    of: int
    dice: random.Random


def temporary(run, name, habit, _turn):
    run.alloc(name, habit.size).free(name)


def variable(run, name, habit, turn):
    """Bind a name anew, to batches of any length."""
    run.alloc(name, habit.size + 512 * turn.dice.randrange(64))


def previous(run, name, habit, turn):
    """Keep the one before it as well."""
    run.alloc(f"{name}.{turn.number}", habit.size).free(f"{name}.{turn.number - 2}")


def state(run, name, habit, turn):
    """Take something at one of the first turns."""
    temporary(run, "t", habit, turn)
    if turn.number == habit.period % 3:
        run.alloc(name, habit.size)


def cache(run, name, habit, turn):
    """Fill up in the first quarter, and then no more."""
    temporary(run, "t", habit, turn)
    if turn.number < turn.of // 4:
        run.alloc(f"{name}.{turn.number}", habit.size)


def window(run, name, habit, turn):
    """Keep the latest few."""
    size = habit.size + 512 * turn.dice.randrange(64)
    run.alloc(f"{name}.{turn.number}", size).free(f"{name}.{turn.number - habit.period - 1}")


def best(run, name, habit, turn, places=1):
    """Keep the best so far, which come when they come."""
    run.alloc(f"{name}.{turn.number}", habit.size)
    record = run.records.setdefault(name, [])
    record.append((turn.dice.random(), turn.number))
    record.sort(reverse=True)
    for _, dropped in record[places:]:
        run.free(f"{name}.{dropped}")
    del record[places:]


def podium(run, name, habit, turn):
    best(run, name, habit, turn, places=3)


def accumulated(run, name, habit, turn):
    """Keep until it is told to forget, every few iterations."""
    if turn.number % (habit.period + 1) == 0:
        for other in [key for key in run.blocks if key.startswith(f"{name}.")]:
            run.free(other)
    run.alloc(f"{name}.{turn.number}", habit.size)


def leak(run, name, habit, turn):
    temporary(run, "t", habit, turn)
    if turn.number % habit.period == 0:
        run.alloc(f"{name}.{turn.number}", habit.size)


CLEAN = (temporary, variable, previous, state, cache, window, best, podium, accumulated)


class Habit(NamedTuple):
    """What one line does in each iteration."""

    act: Callable[..., None]
    size: int
    period: int = 1


def program(script, habits, turns, seed=0, *, has_functions=True):
    """Run a loop with one habit a line, and a big temporary on a line of its own."""
    source = "for x in loader:\n    y = big(x)\n" + "".join(f"    f{n}(y)\n" for n in range(len(habits)))
    run = script(source, has_functions=has_functions)
    run.records = {}
    dice = random.Random(seed)  # noqa: S311 - a test that can be repeated
    for turn in range(turns):
        run.at(1).at(2).alloc("big", TRANSIENT).free("big")
        for number, habit in enumerate(habits):
            run.at(3 + number)
            habit.act(run, f"{habit.act.__name__}{number}", habit, Turn(turn, turns, dice))
    return run.at(1)


clean = st.lists(
    st.builds(
        Habit,
        st.sampled_from(CLEAN),
        st.integers(1, 64).map(lambda n: n * 8 * KIB),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=5,
)
many = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@many
@given(clean, st.integers(24, 60), st.integers(0, 1 << 30), st.booleans())
def test_what_does_not_grow_is_never_called_a_leak(script, habits, turns, seed, has_functions):
    growth = program(script, habits, turns, seed, has_functions=has_functions).growth()
    assert growth.leaks == growth.small == ()


@many
@given(
    clean,
    st.integers(24, 60),
    st.integers(0, 1 << 30),
    st.booleans(),
    st.builds(Habit, st.just(leak), st.integers(64, 512).map(lambda n: n * 8 * KIB), st.integers(1, 6)),
)
def test_a_leak_among_them_is_found_to_the_byte(script, habits, turns, seed, has_functions, leaking):  # noqa: PLR0917
    habits, (_, size, period) = [*habits, leaking], leaking
    growth = program(script, habits, turns, seed, has_functions=has_functions).growth()
    times = len(range(0, turns, period))
    (found,) = growth.leaks
    assert growth.small == ()
    assert (found.iterations, found.grown, found.every) == (turns, times, period)
    assert (found.bytes_per_iteration, found.bytes) == (size, size * times)
    assert [(line.group.label, line.blocks) for line in found.lines] == [(f"line {2 + len(habits)}", times)]
    assert found.left == tuple(0 if turn % period else size for turn in range(turns))
    ordinal = {1: "each", 2: "every 2nd", 3: "every 3rd"}.get(period, f"every {period}th")
    assert f"more {ordinal} iteration, {times} times: " in found.sentence


@pytest.mark.parametrize("habit", CLEAN)
def test_each_habit_alone(script, habit):
    for period in range(1, 7):
        for seed in range(20):
            growth = program(script, [Habit(habit, 64 * KIB, period)], 40, seed).growth()
            assert growth.leaks == growth.small == (), (period, seed)


def test_what_is_bounded_is_told_as_what_it_is(script):
    (kept,) = program(script, [Habit(window, MIB, 4)], 40).growth().once
    assert (kept.what, kept.span) == ("window", 5)
    assert "of 5 iterations and never of more" in kept.sentence
    (kept,) = program(script, [Habit(cache, MIB)], 40).growth().once
    assert (kept.what, kept.span, kept.bytes) == ("warm-up", 10, 10 * MIB)
    assert "10.0 MiB at line 3 `f0(y)` in the first 10 iterations, not again" in kept.sentence


def test_what_came_with_the_first_iteration_is_no_window_of_the_last_few_small_things(script):
    run = script("for i in range(n):\n    loss = step(); losses.append(loss)\n")
    for turn in range(20):
        run.at(1).at(2).free("gradient").free(f"loss {turn - 4}").alloc(f"loss {turn}", 512).alloc("gradient", MIB)
        if not turn:
            run.alloc("state", 2 * MIB)
    (kept,) = run.growth().once
    assert (kept.what, kept.span, kept.bytes) == ("warm-up", 1, 2 * MIB)
