"""Reading the user's source a second time, without the warnings that Python gave the first time."""

from __future__ import annotations

import ast
import re
import warnings
from typing import NamedTuple

__all__ = ["Binding", "binding", "parse_quietly"]

# The first of several lines, which alone is no Python: `model = Model(`.
_BEGUN = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]+)?=(?!=)")


class Binding(NamedTuple):
    """A line that binds one name; `is_from_itself` where the new value is made from the old one."""

    name: str
    is_from_itself: bool


def binding(source: str) -> Binding | None:
    """Return which name a line of source binds, or None when it does not bind one; it may be an unfinished line."""
    try:
        body = parse_quietly(source).body
    except (SyntaxError, ValueError):
        match = _BEGUN.match(source)
        if match is None:
            return None
        return Binding(match[1], len(re.findall(rf"\b{match[1]}\b", source)) > 1)
    statement = body[0] if len(body) == 1 else None
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return None
    if not isinstance(target, ast.Name):
        return None
    used = any(isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(value))
    return Binding(target.id, used)


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
