"""Fail a cell that ran to its end: the error output, and the status by which Run All and nbclient stop."""

from __future__ import annotations

from typing import Any

__all__ = ["fail_cell"]


def fail_cell(shell: Any, result: Any, error: BaseException) -> None:
    """Make `error` the cell's own, with a traceback of one line, unless the cell has failed already.

    Parameters
    ----------
    shell
        The running IPython shell.
    result
        IPython's result of the cell, as ``post_run_cell`` gets it.
    error
        Why it fails.
    """
    if result is None or result.error_before_exec is not None or result.error_in_exec is not None:
        return
    kind = type(error)
    # What a kernel answers to the front end is what it showed last.
    shell._showtraceback(kind, error, [f"{kind.__name__}: {error}"])  # noqa: SLF001 - IPython's own hook for kernels
    result.error_in_exec = error
