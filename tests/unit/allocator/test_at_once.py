"""Following all events at once, or in turn with frees matched before, gives what one by one gives, or declines."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpumem_magic.allocator.follow import Follower
from gpumem_magic.allocator.history import sums_at
from gpumem_magic.allocator.replay import history
from gpumem_magic.trace.model import Action
from gpumem_magic.trace.reader import read_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import DeviceTrace

RECORDINGS = sorted((Path(__file__).parents[2] / "data" / "recordings").glob("*.pickle.xz"))


def _noted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[bool]:
    answers: list[bool] = []
    original = getattr(Follower, name)

    def noted(self: Follower, *arguments: object) -> bool:
        answers.append(original(self, *arguments))
        return answers[-1]

    monkeypatch.setattr(Follower, name, noted)
    return answers


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect whether the events were followed at once."""
    return _noted(monkeypatch, "follow_at_once")


@pytest.fixture
def taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect whether the events were followed in turn."""
    return _noted(monkeypatch, "follow_in_turn")


def one_by_one(device: DeviceTrace, settings: Mapping[str, object]) -> History:
    """Replay by the loop that plays any recording."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Follower, "follow_in_turn", lambda *_: False)
        return history(device, settings)


def without_first(device: DeviceTrace, count: int) -> DeviceTrace:
    """Return the device as a ring that overflowed would show it."""
    events = replace(device.events, **{f.name: getattr(device.events, f.name)[count:] for f in fields(device.events)})
    return replace(device, events=events)


def assert_equal(one: History, other: History) -> None:
    """Compare everything that a history holds."""
    for name in ("allocated", "active", "requested", "reserved"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for column in fields(one.lifetimes):
        mine, its = getattr(one.lifetimes, column.name), getattr(other.lifetimes, column.name)
        assert mine.dtype == its.dtype
        assert np.array_equal(mine, its), column.name
    assert (one.exact, one.warnings, one.first_deviation) == (other.exact, other.warnings, other.first_deviation)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".pickle")[0])
def test_the_same_as_one_by_one(path: Path, accepted: list[bool], taken_in_turn: list[bool]) -> None:
    """Whole recordings are plain; those that begin anywhere come out the same either way."""
    trace = read_trace(path)
    for device in trace.devices:
        for count in (0, 1, 2, 3, 50, len(device.events) // 2, len(device.events) - 5):
            cut = without_first(device, count)
            expected = one_by_one(cut, trace.settings)
            assert_equal(history(cut, trace.settings, from_torch=True), expected)
            assert accepted[-1] or count
            assert_equal(history(cut, trace.settings), expected)
            assert taken_in_turn[-1] or count


def test_most_overflowed_recordings_are_plain(accepted: list[bool]) -> None:
    """A block that was there before and of unsure size is no obstacle by itself."""
    for path in RECORDINGS:
        trace = read_trace(path)
        for device in trace.devices:
            history(without_first(device, len(device.events) // 3), trace.settings, from_torch=True)
    assert np.mean(accepted) > 0.8


def _changed(device: DeviceTrace, index: int, **columns: int) -> DeviceTrace:
    events = device.events
    new: Mapping[str, np.ndarray] = {name: getattr(events, name).copy() for name in columns}
    for name, value in columns.items():
        new[name][index] = value
    return replace(device, events=replace(events, **new))


def test_contradictions_are_followed_one_by_one(accepted: list[bool], taken_in_turn: list[bool]) -> None:
    """A block allocated twice, a free that is gone, and an address of nothing give the careful replay's answer."""
    trace = read_trace(next(path for path in RECORDINGS if path.name.startswith("mlp_train.c0")))
    (device,) = trace.devices
    events = device.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    freed = np.flatnonzero(events.action == Action.FREE_REQUESTED)
    for broken in (
        _changed(device, int(allocs[200]), addr=int(events.addr[allocs[199]])),
        _changed(device, int(freed[100]) + 1, action=int(Action.SNAPSHOT)),
        _changed(device, int(allocs[300]), addr=int(events.addr[allocs[300]]) + 3),
        _changed(device, int(freed[5]), addr=2**47),
    ):
        expected = one_by_one(broken, trace.settings)
        assert expected.first_deviation is not None
        assert_equal(history(broken, trace.settings, from_torch=True), expected)
        assert_equal(history(broken, trace.settings), expected)
    assert not any(accepted)
    assert not any(taken_in_turn)


def test_blocks_that_overlap_are_followed_one_by_one(taken_in_turn: list[bool]) -> None:
    """Allocated, asked free and freed in turns, but where another block is: only a file can say so."""
    trace = read_trace(next(path for path in RECORDINGS if path.name.startswith("mlp_train.c0")))
    (device,) = trace.devices
    events = device.events
    address = int(events.addr[np.flatnonzero((events.action == Action.ALLOC) & (events.size > 4096))[40]])
    moved = events.addr.copy()
    moved[moved == address] += 512
    broken = replace(device, events=replace(events, addr=moved))
    expected = one_by_one(broken, trace.settings)
    assert expected.first_deviation is not None
    assert_equal(history(broken, trace.settings), expected)
    assert not any(taken_in_turn)


def test_no_events() -> None:
    """A device that only holds segments has nothing to follow."""
    trace = read_trace(next(path for path in RECORDINGS if path.name.startswith("mlp_train.c0")))
    (device,) = trace.devices
    empty = without_first(device, len(device.events))
    assert_equal(history(empty, trace.settings, from_torch=True), one_by_one(empty, trace.settings))
    assert_equal(history(empty, trace.settings), one_by_one(empty, trace.settings))


def test_sums_of_several_at_one_index() -> None:
    """One a place is written, several are added up."""
    sizes = np.array([5, 7, 0, 9], np.int64)
    assert sums_at(np.array([3, 0, 1, 2]), sizes, 5).tolist() == [7, 0, 9, 5, 0]
    assert sums_at(np.array([3, 0, 3, 3]), sizes, 5).tolist() == [7, 0, 0, 14, 0]
    assert sums_at(np.zeros(0, np.int64), sizes[:0], 2).tolist() == [0, 0]
