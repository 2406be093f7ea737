"""What is alive is found whatever the collector did since the last look, most of the time by seeing what is new."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from by_hand.ways import WAYS, choose_way

from gpumem_magic.holders import census as under_test
from gpumem_magic.holders.census import Census
from gpumem_magic.holders.kinds import tracked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Module:
    pass


class Optimizer:
    pass


class Tensor:
    pass


class Part(Module):
    pass


class Slotted(Tensor):
    __slots__ = ()


TORCH: Any = SimpleNamespace(module_type=Module, optimizer_type=Optimizer, tensor_type=Tensor)
KINDS: tuple[Callable[[], Any], ...] = (Module, Part, Optimizer, Tensor, Slotted)


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_way(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def collector_off() -> Iterator[None]:
    gc.disable()
    gc.freeze()  # what is not the test's own
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def full_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often all objects were looked at."""
    looks: list[int] = []

    def counted(kinds: Iterable[type]) -> list[Any]:
        looks.append(1)
        return tracked(kinds)

    monkeypatch.setattr(under_test, "tracked", counted)
    return looks


def told(census: Census) -> list[list[int]]:
    return [sorted(map(id, found)) for found in census.alive(TORCH)]


def true() -> list[list[int]]:
    objects = gc.get_objects()
    kinds = ({Module, Part}, {Optimizer}, {Tensor, Slotted})
    return [sorted(id(one) for one in objects if type(one) in kind) for kind in kinds]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_right_whatever_is_made_dropped_and_collected(seed: int, full_looks: list[int]) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable programs
    census, kept = Census(), [kind() for kind in KINDS for _ in range(3)]
    happens: list[Callable[[], object]] = [
        lambda: kept.append(chance.choice(KINDS)()),
        lambda: kept.append(chance.choice(KINDS)()),
        lambda: kept.pop(chance.randrange(len(kept))) if kept else None,
        lambda: setattr(kept[-1], "itself", kept[-1]) if kept else None,  # dies in a collection only
        lambda: gc.collect(0),
        lambda: gc.collect(1),
        lambda: gc.collect(2),
    ]
    for _ in range(60):
        for _ in range(chance.randrange(4)):
            chance.choice(happens)()
        assert told(census) == true()
    assert 1 < len(full_looks) < 55


def test_the_second_look_sees_only_what_is_new(full_looks: list[int]) -> None:
    census, old = Census(), Module()
    assert told(census) == true()
    new = Part()
    assert set(map(id, census.alive(TORCH)[0])) >= {id(old), id(new)}
    assert len(full_looks) == 1


def test_objects_that_were_frozen_meanwhile_are_found(full_looks: list[int]) -> None:
    census, kept = Census(), [Module()]
    assert told(census) == true()
    kept.append(Part())
    gc.freeze()
    gc.unfreeze()
    assert told(census) == true()
    assert len(full_looks) == 2


def test_objects_that_come_back_after_a_look_at_what_was_not_frozen_are_found() -> None:
    census, kept = Census(), [Module()]
    gc.freeze()
    kept.append(Part())
    assert told(census) == true()
    gc.unfreeze()
    assert told(census) == true()
    assert {id(one) for one in kept} <= set(told(census)[0])


def test_it_keeps_nothing_alive() -> None:
    census = Census()
    module = Module()
    gone = id(module)
    census.alive(TORCH)
    del module
    assert gone not in map(id, census.alive(TORCH)[0])


def test_a_look_leaves_nothing_to_the_collector() -> None:
    census, new = Census(), []
    for _ in range(3):
        gc.collect(0)
        new.append(Module())
        found = census.alive(TORCH)
        del found
        gone = weakref.ref(new[-1])
        del new[-1]
        assert gone() is None


def test_objects_without_weak_references_are_looked_for_each_time(full_looks: list[int]) -> None:
    class Bare:
        __slots__ = ("own",)

    torch: Any = SimpleNamespace(module_type=Bare, optimizer_type=Optimizer, tensor_type=Tensor)
    one, census = Bare(), Census()
    for _ in range(3):
        assert [id(found) for found in census.alive(torch)[0]] == [id(one)]
    assert len(full_looks) == 3


def test_very_many_objects_are_not_remembered(full_looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_MOST_KNOWN", 5)
    census, kept = Census(), [Tensor() for _ in range(10)]
    for _ in range(2):
        assert told(census) == true()
    assert len(full_looks) == 2
    del kept
