"""Whose memory it is: every allocation gets one owner, a line of code where that is known, else a reason.

In a notebook the owner is the line of *this* cell that was running, as the reader sees it. Where one line of the cell
owns most of the peak because it calls functions from other cells, it is split by the lines of those cells. In a file
the owner is the innermost frame of the stack that is not library code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.model import Group, Row
from gpumem_magic.analysis.place import STATEMENT
from gpumem_magic.trace.frames import function_name, is_notebook_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import DeviceAnalysis
    from gpumem_magic.recording.model import Cell
    from gpumem_magic.trace.model import Frame, StackTable

__all__ = ["ROUNDING", "GroupBook", "Owner", "PlaceNamer", "alike", "colored", "rows", "stacks_recorded"]

ROUNDING = "rounding and unsplit remainders"
NO_STACK = "backward thread or C++"
NO_STACKS_AT_ALL = "the recording holds no stacks"

Place = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Owner:
    """What makes two allocations belong together. Equal owners share a group."""

    kind: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    reason: str | None = None
    cell: str | None = None


@dataclass
class GroupBook:
    """Groups of one device in order of first use."""

    groups: list[Group] = field(default_factory=list)
    _index: dict[Owner, int] = field(default_factory=dict)

    def number(self, owner: Owner, group: Group) -> int:
        """Return the number of `owner`'s group, which is `group` when it is new."""
        index = self._index.get(owner)
        if index is None:
            index = self._index[owner] = len(self.groups)
            self.groups.append(group)
        return index


class PlaceNamer:
    """Turns a place in code into an owner and a group, with the source line beside its number.

    Parameters
    ----------
    cell
        The cell that ran, or None for a file.
    """

    def __init__(self, cell: Cell | None) -> None:
        self._cell = cell
        self._own = frozenset(cell.filenames) if cell is not None else frozenset()
        self._is_statement = cell is not None and cell.is_statement
        self._lines: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        if cell is not None:
            for name in cell.filenames:
                self._lines[name] = cell.source.splitlines()
            for name, (count, source) in cell.others.items():
                if name not in self._own:
                    self._lines[name] = source.splitlines()
                    self._names[name] = f"In [{count}]" if count is not None else "another cell"

    def in_notebook(self, filename: str) -> bool:
        """Return whether a file name belongs to this cell or to another known one."""
        return filename in self._lines

    def pick(self, place: Place, *, deep: bool) -> tuple[str, int, str] | None:
        """Choose a line of a line stack (innermost first): this cell's innermost, or with `deep` the innermost."""
        known = [frame for frame in place if frame[0] in self._lines] or list(place)
        if not known:
            return None
        if not deep:
            known = [frame for frame in known if frame[0] in self._own] or known
        return known[0]

    def source(self, filename: str, line: int) -> str | None:
        """Return a line's text, stripped, or None."""
        lines = self._lines.get(filename)
        if lines is None or not 0 < line <= len(lines):
            return None
        return lines[line - 1].strip() or None

    def line(self, filename: str, line: int, function: str, last: int | None = None) -> tuple[Owner, Group]:
        """Name a line of the notebook, or of a file (then in the manner of `frame`).

        With a `last` line other than `line` it is one of these lines: they ran too often to be told apart.
        """
        if filename not in self._lines:
            return self.frame(filename, line, function)
        cell = self._names.get(filename)
        many = last is not None and last != line
        label = f"lines {line} to {last}" if many else f"line {line}"
        if cell is not None:
            label = f"{cell} {label}"
        elif self._is_statement:
            # It has one line, which is not the first one of the notebook's cell.
            label = STATEMENT
        group = Group("line", label, self.source(filename, line), cell, filename, line, function)
        return Owner("line", filename, line, f"to {last}" if many else None), group

    def frame(self, filename: str, line: int, function: str) -> tuple[Owner, Group]:
        """Name a frame of a recorded stack."""
        short = filename.replace("\\", "/").rsplit("/", 1)[-1]
        if is_notebook_cell(filename):
            # The hash of the cell's text is all that a snapshot knows of it.
            where = f"cell {short.removesuffix('.py').lstrip('-')[-6:]} line {line}"
        else:
            where = f"{short}:{line}" if line else short
        # "<module>" says nothing beside a file's name.
        label = where if function_name(function) in {"<module>", ""} else f"{where} {function}"
        group = Group("frame", label, self.source(filename, line), None, filename, line or None, function)
        return Owner("frame", filename, line, function), group

    def before(self, frames: Sequence[Frame]) -> tuple[Owner, Group]:
        """Name what was there before: by the cell that made it when a stack tells."""
        if self._cell is None:
            return Owner("before"), Group("before", "before the recording")
        for frame in frames:
            if frame.filename in self._own:
                # The file name of a cell is a hash of its text.
                return Owner("before", cell="this"), Group("before", "an earlier run of this cell", cell="this cell")
            if frame.filename in self._names:
                cell = self._names[frame.filename]
                return Owner("before", cell=cell), Group("before", f"{cell}, before this cell", cell=cell)
        return Owner("before"), Group("before", "before the cell")

    def unknown(self, reason: str, label: str = "line unknown") -> tuple[Owner, Group]:
        """Name what has no known owner; a reason that begins with the label is not said twice."""
        reason = reason.removeprefix(f"{label}: ")
        return Owner("unknown", reason=reason, function=label), Group("unknown", label, reason=reason)


def stacks_recorded(stack: NDArray[np.int32], table: StackTable) -> bool:
    """Return whether any of the given stacks is more than empty."""
    return bool(len(table.stacks) > 1 and np.any(stack != 0))


def rows(
    alive: NDArray[np.bool_],
    group: NDArray[np.int32],
    size: NDArray[np.int64],
    requested: NDArray[np.int64],
    blocks: NDArray[np.int32],
    *,
    rounding: int,
) -> tuple[Row, ...]:
    """Sum the living by group: requested bytes each, largest first, and one last row for rounding.

    Parameters
    ----------
    alive
        Which lifetimes count.
    group, size, requested, blocks
        Columns of the lifetimes.
    rounding
        Number of the rounding group; its row closes the sum to that of `size`. No row when nothing was rounded.
    """
    owner = group[alive]
    if not len(owner):
        return ()
    count = int(owner.max()) + 1
    sums = np.zeros(count, np.int64)
    np.add.at(sums, owner, requested[alive])
    numbers = np.bincount(owner, blocks[alive], count).astype(np.int64)
    found = np.unique(owner).tolist()
    result = sorted((Row(g, int(sums[g]), int(numbers[g])) for g in found), key=lambda row: (-row.bytes, row.group))
    rest = int(size[alive].sum()) - int(sums.sum())
    if rest:
        result.append(Row(rounding, rest, 0))
    return tuple(result)


def alike(devices: Sequence[DeviceAnalysis]) -> list[DeviceAnalysis]:
    """Give a line the same colour on every device."""
    if len(devices) < 2:
        return list(devices)
    weight: dict[Group, float] = {}
    for device in devices:
        held = {row.group: row.bytes for row in device.peak}
        for number, group in enumerate(device.groups):
            key = group._replace(color=0)
            weight[key] = weight.get(key, 0.0) + held.get(number, 0)
    slot = dict(zip(weight, colored(list(weight), list(weight.values())), strict=True))
    return [replace(d, groups=tuple(slot[group._replace(color=0)] for group in d.groups)) for d in devices]


# Slots of the palette; the largest owners get distinct ones.
_DISTINCT = 10


def colored(groups: Sequence[Group], weight: Sequence[float]) -> tuple[Group, ...]:
    """Give palette slots: the largest groups get the first ones, in the order of their place in the code.

    Order by code rather than by size keeps a line's colour from one run of a cell to the next.
    """
    code = [i for i, group in enumerate(groups) if group.kind in {"line", "frame"}]
    code.sort(key=lambda i: -weight[i])
    top = sorted(code[:_DISTINCT], key=lambda i: (groups[i].cell or "", groups[i].file or "", groups[i].line or 0, i))
    slot = {index: number for number, index in enumerate(top)}
    slot |= {index: number for number, index in enumerate(code[_DISTINCT:], _DISTINCT)}
    return tuple(group._replace(color=slot.get(i, 0)) for i, group in enumerate(groups))
