"""The user's source is read again without a second round of warnings."""

from __future__ import annotations

import warnings

import pytest

from gpumem_magic._parsing import parse_quietly
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
