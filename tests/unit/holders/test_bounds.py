"""Which containers on a tensor's path take only so much."""

from __future__ import annotations

import functools
from collections import deque
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.holders import Bound, who_holds, with_bounds  # noqa: E402


class Agent:
    def __init__(self, most):
        self.memory = deque([{"obs": torch.ones(8)}], maxlen=most)

    def __getattr__(self, name):
        raise RuntimeError("the user's own code ran")


def bounds(**names):
    return with_bounds(who_holds(SimpleNamespace(user_ns=names), quick=True, budget=60), names).bounds


def test_a_deque_with_an_end():
    assert bounds(x=deque([torch.ones(8)] * 3, maxlen=9)) == {"x": Bound(3, 9)}
    assert bounds(x=deque([torch.ones(8)])) == {}
    assert bounds(x=[torch.ones(8)]) == {}
    assert bounds() == {}


def test_one_in_attributes_keys_and_lists():
    nested = {"a": [0, deque([torch.ones(8)], maxlen=4)]}
    assert bounds(agent=Agent(7), nested=nested) == {"agent.memory": Bound(1, 7), "nested['a'][1]": Bound(1, 4)}


def test_a_functools_cache_with_a_size():
    def make():
        return torch.ones(8)

    bounded, endless = functools.lru_cache(maxsize=5)(make), functools.lru_cache(maxsize=None)(make)
    bounded(), endless()
    assert bounds(bounded=bounded, endless=endless) == {"bounded": Bound(1, 5)}


def test_no_code_of_a_users_class_is_asked_what_it_is():
    def loud(_self):
        raise RuntimeError("the user's own code ran")

    kind = type("Loud", (Agent,), {"__class__": property(loud)})
    assert bounds(loud=kind(7)) == {"loud.memory": Bound(1, 7)}
