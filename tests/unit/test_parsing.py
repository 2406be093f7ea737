"""The user's source is read again without a second round of warnings."""

from __future__ import annotations

import warnings

import pytest

from gpumem_magic._parsing import Binding, binding, parse_quietly
from gpumem_magic.analysis.leaks.loops import find_loops
from gpumem_magic.holders.names import mentioned

ODD = 'for i in items:\n    kept = find("\\d", i)\n'


@pytest.mark.parametrize("action", ["always", "error"])
def test_an_odd_escape_neither_warns_nor_hides_the_code(action):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        (loop,) = find_loops("cell", ODD)
        names = set(mentioned(ODD))
    assert (loop.header, loop.first) == (1, 2)
    assert names == {"i", "items", "kept", "find"}
    assert seen == []


def test_what_is_no_python_is_still_told():
    with pytest.raises(SyntaxError):
        parse_quietly("for")


@pytest.mark.parametrize(
    ("line", "bound"),
    [
        ("z = layer(z)", Binding("z", is_from_itself=True)),
        ("z: Tensor = layer(z)", Binding("z", is_from_itself=True)),
        ("z = w = layer(z)", Binding("z", is_from_itself=True)),
        ("model = Model()", Binding("model", is_from_itself=False)),
        # The first of several lines.
        ("model = Model(", Binding("model", is_from_itself=False)),
        ("    model: Model = Model(", Binding("model", is_from_itself=False)),
        ("z = layer(z,", Binding("z", is_from_itself=True)),
        ("z += layer(z)", None),
        ("z.data = layer(z)", None),
        ("a, b = pair", None),
        ("z: Tensor", None),
        ("model(x)", None),
        ("if z == (", None),
        ("x = 1; y = 2", None),
        ("", None),
    ],
)
def test_which_name_a_line_binds_and_whether_from_its_old_value(line, bound):
    assert binding(line) == bound
