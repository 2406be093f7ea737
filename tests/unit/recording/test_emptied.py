"""Calls of ``empty_cache`` are seen at the one function that they end in, which is put back."""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace

from gpumem_magic.recording import emptied
from gpumem_magic.recording.emptied import EmptyCalls


def module():
    """torch with a GPU, as far as this is concerned: there is none here."""
    made: list[tuple[object, ...]] = []

    def original(*arguments):
        made.append(arguments)
        return "done"

    def of_accelerator(*arguments):
        made.append(arguments)

    functions = SimpleNamespace(_cuda_emptyCache=original, _accelerator_emptyCache=of_accelerator)
    return SimpleNamespace(_C=functions), original, made


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


def test_the_way_through_torch_accelerator_is_seen_too():
    torch, original, made = module()
    other = torch._C._accelerator_emptyCache
    calls = EmptyCalls(torch)
    calls.start()
    torch._C._accelerator_emptyCache()
    torch._C._cuda_emptyCache()
    assert len(calls.stop() or ()) == len(made) == 2
    assert (torch._C._cuda_emptyCache, torch._C._accelerator_emptyCache) == (original, other)


def test_a_measurement_ends_without_an_error_when_the_module_was_loaded_again_meanwhile():
    torch, _, made = module()
    calls = emptied.EmptyCalls(torch)
    calls.start()
    importlib.reload(emptied)
    assert calls.stop() is None
    torch._C._cuda_emptyCache(3)
    assert made == [(3,)]
    again = emptied.EmptyCalls(torch)
    again.start()
    torch._C._cuda_emptyCache()
    assert len(again.stop() or ()) == 1


def test_what_stands_there_is_pickled_by_the_name_of_what_it_stands_for():
    torch, original, _ = module()
    calls = EmptyCalls(torch)
    calls.start()
    ours = torch._C._cuda_emptyCache
    assert ours is not original
    assert (ours.__module__, ours.__qualname__) == (original.__module__, original.__qualname__)
    calls.stop()
