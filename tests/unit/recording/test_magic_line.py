from __future__ import annotations

import pytest

pytest.importorskip("IPython")

from gpumem_magic.magics.arguments import find_magic_line, split_statement, without_comment
from gpumem_magic.magics.code import Body


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%%gpumem\nx", (0, "")),
        ("%%gpumem --label a  \nx", (0, "--label a")),
        ("%%gpumem\t--quiet\r\nx", (0, "--quiet")),
        ("# title\n\n  # more\n%%gpumem\nx", (3, "")),
        ("x = 1\n%%gpumem\nx", None),
        ("%%gpumem?\n", None),
        ("%%gpumemx\nx", None),
        ("%%gpumem_auto on\nx", None),
        ("%gpumem x", None),
        ("%%time\n%%gpumem\nx", None),
        ("", None),
    ],
)
def test_where_the_magic_stands(cell, expected):
    assert find_magic_line(cell.splitlines(keepends=True)) == expected


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("--label a # why", "--label a"),
        ("# all of it", ""),
        ("--label 'a # b' --quiet", "--label 'a # b' --quiet"),
        ("--label c#4", "--label c#4"),
        ("", ""),
    ],
)
def test_trailing_comments_are_dropped(line, kept):
    assert without_comment(line) == kept


@pytest.mark.parametrize(
    ("line", "options", "statement"),
    [
        ("y = model(x)", "", "y = model(x)"),
        ("--device 0 y = model(x)  # now", "--device 0", "y = model(x)  # now"),
        ("--quiet --label 'two words' f('--x')", "--quiet --label 'two words'", "f('--x')"),
        ("--device=1 -x", "--device=1", "-x"),
        ("-- --x", "", "--x"),
        ("--quiet", "--quiet", ""),
        ("", "", ""),
    ],
)
def test_options_end_where_the_statement_begins(line, options, statement):
    assert split_statement(line) == (options, statement)


@pytest.mark.parametrize(
    ("text", "cells", "offset"),
    [
        ("x = 1\n", ["%%time\n%%gpumem\nx = 1"], 2),
        ("\n\nx = 1", ["%%time\n%%gpumem\n\n\nx = 1\n"], 4),
        ("x\n", ["elsewhere"], 0),
        ("\nx\n", [], 1),
        ("x", ["y = 'x'\nx2"], 0),
        ("x = 1\n", ["%%capture\n%%gpumem\nx = 1", "%%gpumem\nx = 1"], 2),
        ("x = 1\n", ["elsewhere", "%%gpumem\nx = 1"], 1),
    ],
)
def test_a_body_is_found_in_its_cell(text, cells, offset):
    assert Body.of(text, cells).offset == offset
