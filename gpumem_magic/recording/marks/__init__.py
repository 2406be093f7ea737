"""Which line of which notebook cell was running, and since when.

`start` watches the notebook's own code, never a library's, and needs no torch, IPython or CUDA: the caller says which
file names are cells. Python 3.12 and later tell through ``sys.monitoring``; 3.10 and 3.11 through an AST transformer
that the caller hands to the shell (`LineMarks.transformer`).

    marks = start(is_cell)          # before the cell
    ...                             # the cell runs
    columns = marks.stop()          # Marks, or None with marks.notes saying why
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from gpumem_magic.recording.marks.store import MAX_MARKS

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    from gpumem_magic.recording.model import Marks, Note

__all__ = ["LineMarks", "start"]


class LineMarks(Protocol):
    """A running watch over the notebook's lines. No method raises; failures become notes."""

    @property
    def transformer(self) -> ast.NodeTransformer | None:
        """What the shell must apply to the cell's syntax tree (Python 3.10 and 3.11); None where nothing is needed.

        Append it to ``shell.ast_transformers`` before the cell is compiled and remove it after `stop`. ``%%time`` and
        ``%%timeit`` apply the same list. Code that is compiled elsewhere passes through ``transformer.visit(tree)``.
        """

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why lines are missing or incomplete; final after `stop`."""

    def stop(self) -> Marks | None:
        """Stop watching, leave nothing hooked, and return the marks; None when there are none. A second call too."""


def start(
    is_cell: Callable[[str], bool],
    *,
    progress: Callable[[], int] | None = None,
    max_marks: int = MAX_MARKS,
) -> LineMarks:
    """Begin to watch the lines of the notebook.

    Parameters
    ----------
    is_cell
        Whether code with this file name (``co_filename``) belongs to the notebook: this cell or an earlier one. Asked
        once per file name.
    progress
        Number of allocations so far, any origin; called from any thread, at most some hundred times a second. With it,
        lines that run very often are still told apart as long as they allocate.
    max_marks
        The newest marks that are kept (12 bytes each); the number of dropped ones is in `Marks.dropped`.

    Returns
    -------
    LineMarks
        The running watch; `LineMarks.stop` ends it.
    """
    if hasattr(sys, "monitoring"):
        from gpumem_magic.recording.marks.monitoring import MonitoringMarks

        return MonitoringMarks(is_cell, progress=progress, max_marks=max_marks)
    from gpumem_magic.recording.marks.ast_marks import AstMarks

    return AstMarks(progress=progress, max_marks=max_marks)
