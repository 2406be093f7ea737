"""Columns of one value."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.trace.constant import constant, is_constant, joined, taken


def test_a_constant_reads_like_a_column():
    column = constant(-1, 5, np.int32)
    assert is_constant(column)
    assert column.dtype == np.int32
    assert column.tolist() == [-1] * 5
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    assert constant(3, 0, np.int64).tolist() == []


def test_what_is_taken_of_a_constant_is_one():
    index = np.array([4, 0, 0])
    assert is_constant(taken(constant(7, 5, np.int64), index))
    assert taken(constant(7, 5, np.int64), index).tolist() == [7, 7, 7]
    assert taken(constant(7, 0, np.int64), index[:0]).tolist() == []
    assert taken(np.arange(5), index).tolist() == [4, 0, 0]
    assert is_constant(taken(constant(7, 5, np.int64), slice(1, None)))


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        (([], 7, [7]), True),
        (([7, 7], 7, []), True),
        (([0], 7, []), False),
        (([], 7, [7, 8]), False),
    ],
)
def test_constants_that_are_joined_stay_one_where_all_agree(parts, kept):
    first, value, last = parts
    column = joined(np.array(first, np.int64), constant(value, 4, np.int64), np.array(last, np.int64))
    assert column.tolist() == [*first, *[value] * 4, *last]
    assert is_constant(column) is kept


def test_ordinary_columns_are_joined():
    assert joined(np.array([1]), np.array([], np.int64), np.array([2, 3])).tolist() == [1, 2, 3]
    assert joined(np.array([], np.int64), np.array([], np.int64)).tolist() == []
