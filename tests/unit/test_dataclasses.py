"""Frozen dataclasses of ours behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest

from gpumem_magic import _dataclasses


class Plain:
    """What both decorators are given, with names that the code of an ``__init__`` may use itself."""

    missing: int
    assign: str = "a"
    default: tuple[int, ...] = (1,)
    make: dict[str, int] = field(default_factory=dict)
    hidden: int = field(default=0, repr=False, compare=False)
    made: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.missing + 1)


def body(name: str) -> dict[str, Any]:
    own = {key: value for key, value in vars(Plain).items() if key not in {"__dict__", "__weakref__"}}
    return {**own, "__qualname__": name, "__module__": __name__}


Ours: Any = _dataclasses.dataclass(frozen=True)(type("Ours", (), body("Ours")))
Theirs: Any = dataclasses.dataclass(frozen=True)(type("Theirs", (), body("Theirs")))


@pytest.mark.parametrize("given", [{}, {"assign": "b"}, {"make": {"x": 1}, "hidden": 3}, {"default": ()}])
def test_they_hold_and_show_the_same(given):
    ours, theirs = Ours(1, **given), Theirs(1, **given)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert dataclasses.replace(ours, missing=5) == Ours(5, **given)
    assert copy.copy(ours) == ours == pickle.loads(pickle.dumps(ours))  # noqa: S301 - our own bytes
    assert ours.make is not Ours(1).make


def test_they_compare_by_the_fields_that_count():
    assert Ours(1) != Theirs(1)
    assert Ours(1) != Ours(2)
    assert Ours(1, hidden=1) == Ours(1, hidden=2)
    assert hash(Ours(1, make=())) == hash(Ours(1, make=(), hidden=2))
    with pytest.raises(TypeError, match="unhashable type: 'dict'"):
        hash(Ours(1))


def test_they_stay_as_they_are():
    ours = Ours(1)
    for name in ("missing", "hidden", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(ours, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'missing'"):
        del ours.missing
    assert ours == Ours(1)


def test_they_say_what_they_take():
    ours, theirs = (inspect.signature(kind).parameters for kind in (Ours, Theirs))
    assert [(one.name, one.annotation) for one in ours.values()] == [
        (one.name, one.annotation) for one in theirs.values()
    ]
    with pytest.raises(TypeError, match=r"Ours.__init__\(\) missing 1 required positional argument: 'missing'"):
        Ours()


def test_a_method_of_the_class_is_left_alone():
    @_dataclasses.dataclass(frozen=True)
    class Own:  # noqa: PLW1641 - that is the point
        """Two of its own."""

        value: int

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return True

    assert repr(Own(1)) == "mine"
    assert Own(1) == 3
    assert hash(Own(1)) == hash(Own(1)) != hash(Own(2))


def test_a_class_without_fields_has_one_value():
    @_dataclasses.dataclass(frozen=True)
    class Empty:
        """Nothing."""

    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())


def test_there_is_no_other_form():
    with pytest.raises(TypeError, match=r"dataclasses\.dataclass"):
        _dataclasses.dataclass(frozen=False)
