"""Run a piece of a cell as the cell itself would have run it: for nested use, where IPython hands us text."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError

from gpumem_magic.magics.cells import running_number

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

__all__ = ["Body", "Compiled", "compile_body"]

_NO_AWAIT = (
    "'await' works under %%gpumem only where %%gpumem is the cell's first line: "
    "move it above the other magic (as a statement: use a cell of its own)"
)


class Body(NamedTuple):
    """Text to run.

    Attributes
    ----------
    text
        As it was handed to the magic.
    shown
        The whole cell (or statement) as the user typed it.
    offset
        Lines of `shown` above the first line of `text` that is not blank (IPython drops those above), so that line
        numbers agree with the cell.
    is_statement
        Whether it is one statement that a line magic got.
    """

    text: str
    shown: str
    offset: int
    is_statement: bool = False

    @classmethod
    def of(cls, text: str, cells: Iterable[str]) -> Body:
        """Find `text` at the end of the first of `cells` that has it there, where other magics' lines stand above."""
        for cell in cells:
            above, found, rest = cell.rpartition(text.strip("\n"))
            if found and not rest.strip() and (not above or above.endswith("\n")):
                return cls(text, cell, above.count("\n"))
        return cls(text, text, len(text) - len(text.lstrip("\n")))


class Compiled(NamedTuple):
    """A body, compiled: everything but the last expression, the last expression, and their file name."""

    statements: CodeType
    value: CodeType | None
    filename: str

    def run(self, shell: Any, local_ns: dict[str, Any] | None) -> Any:
        """Run in the user's namespace and return the last expression's value."""
        __tracebackhide__ = True
        names = (shell.user_ns,) if local_ns is None or local_ns is shell.user_ns else (shell.user_ns, local_ns)
        exec(self.statements, *names)  # noqa: S102 - running the user's code is the job
        return None if self.value is None else eval(self.value, *names)  # noqa: S307


def compile_body(shell: Any, body: Body, *, of_no_cell: bool = False) -> Compiled:
    """Compile a body under a file name that IPython's tracebacks know as this cell.

    Parameters
    ----------
    shell
        The running IPython shell.
    body
        What to compile.
    of_no_cell
        Its lines are none of the cell's that the user sees: what they allocate counts as the line that runs them.

    Raises
    ------
    UsageError
        When the body awaits, which only a cell's first level can.
    SyntaxError
        From the user's code.
    """
    padded = "\n" * body.offset + shell.transform_cell(body.text)
    filename = shell.compile.cache(padded, 0 if of_no_cell else running_number(shell), raw_code=padded)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(padded, filename, "exec", ast.PyCF_ONLY_AST | flags | shell.compile.flags, dont_inherit=True)
    tree = shell.transform_ast(tree)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    flags |= shell.compile.flags
    statements = compile(tree, filename, "exec", flags, dont_inherit=True)
    value = None if last is None else compile(ast.Expression(last.value), filename, "eval", flags, dont_inherit=True)
    for code in (statements, value):
        if code is not None and code.co_flags & inspect.CO_COROUTINE:
            raise UsageError(_NO_AWAIT)
    return Compiled(statements, value, filename)
