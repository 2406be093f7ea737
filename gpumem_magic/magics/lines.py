"""Lines of code that other magics compiled, told as lines of the cell that the user sees."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumem_magic.recording.model import Marks
    from gpumem_magic.trace.model import StackTable

__all__ = ["MAGIC_CODE", "CellLines"]

# File names that IPython's own magics give to the code of their body, whose lines they count from its beginning.
MAGIC_CODE = frozenset({"<timed exec>", "<timed eval>", "<magic-timeit>"})


@dataclass
class CellLines:
    """How the lines of one cell were handed out.

    Attributes
    ----------
    above
        Lines of the cell above the body that another magic (``%%time``) compiles by itself; 0 without such a magic.
    bodies
        File name → lines of the cell above it, of bodies that a magic (``%%capture``) ran as cells of their own.
    """

    above: int = 0
    bodies: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether any line has another number than it seems to."""
        return bool(self.above or self.bodies)

    def _frames(self, cell: str, stack: Iterable[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
        """Give the frames of a stack, innermost first, the names and lines of the cell in file `cell`."""
        result = []
        in_body = False
        for name, line, function in reversed(list(stack)):
            if name in self.bodies:
                result.append((cell, line + self.bodies[name], function))
            elif name == cell and self.above:
                # All that IPython compiled is the magic's call.
                result.append((cell, line + self.above - 1, function))
            elif name in MAGIC_CODE and self.above and not in_body:
                in_body = True  # a %time within the body counts its lines anew
                result.append((cell, line + self.above, "<module>"))
            else:
                result.append((name, line, function))
        return result[::-1]

    def marks(self, cell: str, marks: Marks) -> Marks:
        """Return marks with the cell's lines in them."""
        places = tuple(tuple(self._frames(cell, place)) for place in marks.places)
        last_lines = tuple(
            tuple(last + now[1] - was[1] for was, now, last in zip(before, after, lasts, strict=True))
            for before, after, lasts in zip(marks.places, places, marks.last_lines, strict=False)
        )
        return replace(marks, places=places, last_lines=last_lines)

    def stacks(self, cell: str, table: StackTable) -> StackTable:
        """Return recorded stacks with the cell's lines in them."""
        frames = tuple(
            type(frame)(*self._frames(cell, [(frame.filename, frame.line, frame.name)])[0]) for frame in table.frames
        )
        return replace(table, frames=frames)
