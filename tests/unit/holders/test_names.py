"""Which names a cell mentions, as IPython's history has its text."""

from __future__ import annotations

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from gpumem_magic.holders.names import mentioned


@pytest.mark.parametrize("above", ["", "%%time\n", "%%time\n%%gpumem\n", "%%time\n\n%%capture out\n%%gpumem --top 3\n"])
def test_names_count_below_any_number_of_cell_magics(above):
    text = TransformerManager().transform_cell(f"{above}x = make(y)\n")
    assert {"x", "make", "y"} <= set(mentioned(text))
    assert "time" not in set(mentioned(text))


def test_a_remainder_is_no_magic():
    text = TransformerManager().transform_cell("%%time\nx = a \\\n  % b\n")
    assert {"x", "a", "b"} <= set(mentioned(text))
