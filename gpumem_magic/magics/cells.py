"""The notebook's cells as IPython numbers and names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Cells", "running_number"]


def running_number(shell: Any) -> int:
    """Return the execution count of the cell that runs now.

    ``shell.execution_count`` is that number in IPython 7 and the next one's in IPython 8; the history has an entry for
    each cell that has begun.
    """
    history = getattr(shell.history_manager, "input_hist_raw", None)
    return max(1, len(history) - 1) if history else int(shell.execution_count)


class Cells:
    """File names of the cells' code objects, and the cells' text.

    Parameters
    ----------
    shell
        The running IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._noted: dict[str, int] = {}

    def note(self, raw_cell: str, *, nested: bool = False) -> None:
        """Remember a cell that is about to run, where IPython does not (version 7).

        One that another cell runs gets no number: it is code of the notebook, but none of its cells.
        """
        compiler = self._shell.compile
        if hasattr(compiler, "_filename_map") or not hasattr(compiler, "get_code_name"):
            return
        name = self.file_name(raw_cell)
        if name is not None:
            if nested:
                self._noted.setdefault(name, 0)
            else:
                self._noted[name] = int(self._shell.execution_count)

    def file_name(self, raw_cell: str) -> str | None:
        """Return the file name under which a cell's text is compiled now, or None."""
        get_code_name = getattr(self._shell.compile, "get_code_name", None)
        if get_code_name is None:
            return None
        try:
            name: str = get_code_name(raw_cell, self._shell.transform_cell(raw_cell), int(self._shell.execution_count))
        except SyntaxError:
            return None  # it will not run
        return name

    def numbers(self) -> Mapping[str, int]:
        """Return file name → execution count."""
        known: Mapping[str, int] = getattr(self._shell.compile, "_filename_map", self._noted)
        return known

    def others(self, but: tuple[str, ...]) -> dict[str, tuple[int | None, str]]:
        """Return file name → (execution count, text) of all cells except those named `but`."""
        history = getattr(self._shell.history_manager, "input_hist_raw", [])
        return {
            name: (number, history[number])
            for name, number in self.numbers().items()
            if name not in but and 0 < number < len(history)
        }
