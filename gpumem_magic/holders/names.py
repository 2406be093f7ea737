"""Which variables a piece of code uses, directly or through the notebook's own functions and classes."""

from __future__ import annotations

import ast
import re
import types
from typing import TYPE_CHECKING

from gpumem_magic._parsing import parse_quietly
from gpumem_magic.holders.edges import own_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["mentioned", "names_in_use"]

# Magics at the head of another one's body, which IPython has not transformed.
_MAGICS_ABOVE = re.compile(r"\A(?:\s*%%.*(?:\n|\Z))+")


def mentioned(source: str) -> Iterator[str]:
    """Yield the names in a cell's transformed text, also in the body that a cell magic gets."""
    try:
        tree = parse_quietly(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "run_cell_magic":
            body = node.args[-1] if node.args else None
            if isinstance(body, ast.Constant) and isinstance(body.value, str) and "run_cell_magic" not in body.value:
                yield from mentioned(_MAGICS_ABOVE.sub("", body.value))


def names_in_use(source: str, namespace: Mapping[str, object]) -> frozenset[str]:
    """Return the variables that code may use.

    Parameters
    ----------
    source
        The code, as Python.
    namespace
        The notebook's variables. Functions and classes among them that live in it are followed.
    """
    found: set[str] = set()
    pending = list(mentioned(source))
    while pending:
        name = pending.pop()
        if name in found or name not in namespace:
            continue
        found.add(name)
        value = namespace[name]
        # Never isinstance(): it asks the object's own __class__, which may run its code or be a dead proxy.
        is_class = issubclass(type(value), type)
        functions = [value, *own_attributes(value).values()] if is_class else [value]  # type: ignore[arg-type]
        for function in functions:
            if type(function) is types.FunctionType and function.__globals__ is namespace:
                pending += _names(function.__code__)
    return frozenset(found)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
