"""Calls of ``empty_cache`` are seen at the one function that they end in, which is put back."""

from __future__ import annotations

import time
from types import SimpleNamespace

from gpumem_magic.recording.emptied import EmptyCalls


def module():
    """torch with a GPU, as far as this is concerned: there is none here."""
    made: list[tuple[object, ...]] = []

    def original(*arguments):
        made.append(arguments)
        return "done"

    return SimpleNamespace(_C=SimpleNamespace(_cuda_emptyCache=original)), original, made


def test_calls_go_through_and_their_times_are_kept():
    torch, original, made = module()
    calls = EmptyCalls(torch)
    calls.start()
    before = time.time_ns() // 1000
    # A name that was taken before is as good: it ends in the same function.
    assert torch._C._cuda_emptyCache(7) == "done"
    torch._C._cuda_emptyCache()
    after = time.time_ns() // 1000
    times = calls.stop()
    assert made == [(7,), ()]
    assert times is not None
    assert len(times) == 2
    assert before <= times[0] <= times[1] <= after
    assert torch._C._cuda_emptyCache is original
    torch._C._cuda_emptyCache()
    assert calls.stop() is None


def test_measurements_inside_each_other_see_their_own_calls_in_any_order_of_their_ends():
    torch, original, made = module()
    outer, inner = EmptyCalls(torch), EmptyCalls(torch)
    outer.start()
    torch._C._cuda_emptyCache()
    inner.start()
    torch._C._cuda_emptyCache()
    first = outer.stop()
    torch._C._cuda_emptyCache()
    second = inner.stop()
    assert first is not None
    assert second is not None
    assert (len(first), len(second), len(made)) == (2, 2, 3)
    assert torch._C._cuda_emptyCache is original


def test_what_somebody_else_put_there_stays_and_nothing_is_claimed():
    torch, _, made = module()
    calls = EmptyCalls(torch)
    calls.start()
    own = torch._C._cuda_emptyCache
    torch._C._cuda_emptyCache = other = lambda: own()  # noqa: PLW0108 - another object on purpose
    other()
    assert calls.stop() is None
    assert torch._C._cuda_emptyCache is other
    other()
    assert len(made) == 2
    # The next measurement wraps what is there now.
    again = EmptyCalls(torch)
    again.start()
    torch._C._cuda_emptyCache()
    assert len(again.stop() or ()) == 1
    assert torch._C._cuda_emptyCache is other


def test_a_torch_without_the_function_is_left_alone():
    torch = SimpleNamespace(_C=SimpleNamespace())
    calls = EmptyCalls(torch)
    calls.start()
    assert calls.stop() is None
    assert vars(torch._C) == {}
