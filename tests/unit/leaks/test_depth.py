"""What grows in a loop and is no leak: a model's depth, and sizes that only follow the data."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.analysis.leaks.find import Scene
from gpumem_magic.analysis.leaks.loops import Loop, adds_to_itself
from gpumem_magic.recording.model import Calls


@pytest.mark.parametrize(
    ("line", "adds"),
    [
        ("cache = torch.cat([cache, key], dim=2)", True),
        ("self.cache = torch.cat([self.cache, key])", True),
        ("state['k'] = torch.cat((state['k'], k))", True),
        ("total += loss", True),
        ("x = batch(rows=128 * step)", False),
        ("y = net(x); x = y * 2", False),
        ("cache = torch.cat([", True),
        ("x = make(", False),
        ("history.append(x)", True),
        ("", False),
    ],
)
def test_a_line_that_makes_something_out_of_itself(line, adds):
    assert adds_to_itself(line) is adds


def calls(*stacks):
    """One mark each 10 µs; "" for none under way."""
    kinds = [stack for stack in dict.fromkeys(stacks) if stack]
    return Calls(
        np.arange(len(stacks), dtype=np.int64) * 10,
        np.ones(len(stacks), np.int64),
        np.array([kinds.index(stack) if stack else -1 for stack in stacks], np.int32),
        tuple(tuple((kind, kind, "") for kind in stack.split("/")) for stack in kinds),
    )


def scene(seen):
    return Scene(None, None, lambda *_: None, seen)  # type: ignore[arg-type]


def loop(scope):
    return Loop("cell", scope, 1, 2, 2, 3)


def test_a_loop_inside_a_modules_call_is_the_models_depth():
    inside = scene(calls("", "module", "module/module", "module", ""))
    starts = np.array([12, 24, 35], np.int64)
    assert inside.is_depth(loop("run_layers"), starts)
    # The cell's own loop is never inside of a call, whatever its microseconds say.
    assert not inside.is_depth(loop("<module>"), starts)
    assert not inside.is_depth(loop("train"), np.array([2, 45, 50], np.int64))
    assert not scene(calls("backward", "step")).is_depth(loop("train"), starts)


def test_where_calls_are_unknown_the_functions_name_decides():
    starts = np.array([1, 2, 3], np.int64)
    assert scene(None).is_depth(loop("forward"), starts)
    assert not scene(None).is_depth(loop("train"), starts)
