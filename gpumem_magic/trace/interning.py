"""Intern stacks: by object identity first, because torch shares the lists and dicts, by content second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.trace.model import Frame, StackTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["StackInterner", "text_of"]

_PLAIN = frozenset((str, int))
_UNLIKE_ALL = object()


def text_of(value: object) -> str:
    """Return what ought to be text, "" where it is not: the words for a hostile file's lists could fill the memory."""
    return value if isinstance(value, str) else ""


class StackInterner:
    """Give equal stacks the same small number.

    A recording of 598,190 events held 398,808 stack lists of 54 frame dicts, and 35 different stacks. Identities are
    compared, so the objects must all be there before the first is interned, and no new ones may come.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._frame_by_id: dict[int, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}
        self._stack_by_frame_ids: dict[tuple[int, ...], int] = {(): 0}
        # By number, a list of frames that has it; and the number that came after each one the last time.
        self._like: list[object] = [()]
        self._after: dict[int, int] = {}
        self._last = 0

    def stack(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        """Return the number of one stack (0 for None and for an empty one)."""
        if not frames:
            return 0
        key = tuple(map(id, frames))
        number = self._stack_by_frame_ids.get(key)
        return self._add(key, frames) if number is None else number

    def column(self, stacks: Sequence[Sequence[Mapping[str, Any]] | None]) -> NDArray[np.int32]:
        """Return the numbers of stacks, each a list of frames or nothing, shape ``(n,)``.

        A program repeats itself: four of five stacks follow the one that they followed the last time, and to see that a
        list is equal to another one, of the same objects, takes a third of looking it up.
        """
        like, after, last = self._like, self._after, self._last
        numbers: list[int] = []
        add = numbers.append
        for frames in stacks:
            if not frames:
                add(0)
                continue
            number = after.get(last, 0)
            if like[number] != frames:
                number = after[last] = self.stack(frames)
            last = number
            add(number)
        self._last = last
        return np.fromiter(numbers, np.int32, len(numbers))

    def table(self) -> StackTable:
        """Return what was interned so far."""
        return StackTable(frames=tuple(self._frames), stacks=tuple(self._stacks))

    def _add(self, key: tuple[int, ...], frames: Sequence[Mapping[str, Any]]) -> int:
        numbers = tuple([self._frame(frame) for frame in frames])
        number = self._stacks.setdefault(numbers, len(self._stacks))
        if number == len(self._like):
            # Values of plain types are compared at once; a hostile file may hold some that would take for ever.
            is_plain = all(type(value) in _PLAIN for frame in frames for value in frame.values())
            self._like.append(frames if is_plain else _UNLIKE_ALL)
        self._stack_by_frame_ids[key] = number
        return number

    def _frame(self, frame: Mapping[str, Any]) -> int:
        number = self._frame_by_id.get(id(frame))
        if number is None:
            line = frame.get("line", 0)
            filename, name = text_of(frame.get("filename")), text_of(frame.get("name"))
            value = Frame(filename, line if isinstance(line, int) else 0, name)
            number = self._frames.setdefault(value, len(self._frames))
            self._frame_by_id[id(frame)] = number
        return number
