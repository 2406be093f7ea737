"""Reading the user's source a second time, without the warnings that Python gave the first time."""

from __future__ import annotations

import ast
import warnings

__all__ = ["parse_quietly"]


def parse_quietly(source: str, flags: int = 0) -> ast.Module:
    r"""Parse source that the interpreter has compiled already, or will.

    A ``"\d"`` in it would otherwise warn again below the user's cell (SyntaxWarning from Python 3.12 on), and be no
    Python at all where the user's filters turn warnings into errors.

    Parameters
    ----------
    source
        The text.
    flags
        Compiler flags besides that for a syntax tree.

    Raises
    ------
    SyntaxError, ValueError, RecursionError, MemoryError
        As ``compile`` does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = compile(source, "<cell>", "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)  # noqa: S101 (for the type checker)
    return tree
