"""The collector is held off where it would only be in the way, and left as the user has it."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from gpumem_magic.trace.collector import no_full_collection, paused_collector

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    usual = gc.get_threshold()
    yield
    gc.set_threshold(*usual)


def test_a_pause_ends_as_it_began() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="has no full collections at once")
def test_new_objects_set_off_no_full_collection() -> None:
    full = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            full.append(1)

    gc.set_threshold(5, 1, 1)
    gc.callbacks.append(note)
    try:
        with no_full_collection():
            full.clear()
            kept = [[index] for index in range(200_000)]
            assert full == []
        kept += [[index] for index in range(200_000)]
        assert full
    finally:
        gc.callbacks.remove(note)
    assert gc.get_threshold() == (5, 1, 1)


def test_what_the_user_sets_meanwhile_stays() -> None:
    with no_full_collection():
        gc.set_threshold(700, 10, 7)
    assert gc.get_threshold() == (700, 10, 7)


def test_two_threads_leave_what_was_there() -> None:
    usual = gc.get_threshold()
    first, second = no_full_collection(), no_full_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == usual
