"""The columns of a view document: lifetimes as differences, stacks and strings numbered in order of first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.trace.frames import trim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Timeline
    from gpumem_magic.trace.model import StackTable

__all__ = ["Columns", "Interner", "kept_columns", "timeline_arrays"]

_GAP = 2**32 - 1


class Interner:
    """Strings, frames and stacks of one document, numbered in order of first use."""

    def __init__(self, table: StackTable) -> None:
        self._table = table
        self.strings: list[str] = []
        self.frames: list[tuple[int, int, int]] = []
        self.stacks: list[list[int]] = [[]]
        self._string_index: dict[str, int] = {}
        self._frame_index: dict[int, int] = {}
        self._stack_index: dict[int, int] = {0: 0}

    def string(self, text: str) -> int:
        """Return the number of a string."""
        index = self._string_index.get(text)
        if index is None:
            index = self._string_index[text] = len(self.strings)
            self.strings.append(text)
        return index

    def _frame(self, number: int) -> int:
        index = self._frame_index.get(number)
        if index is None:
            frame = self._table.frames[number]
            index = self._frame_index[number] = len(self.frames)
            self.frames.append((self.string(frame.filename), frame.line, self.string(frame.name)))
        return index

    def stack_column(self, stacks: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Renumber a column of trace stacks."""
        used, inverse = np.unique(stacks, return_inverse=True)
        numbers = np.empty(len(used), np.uint32)
        for position, number in enumerate(used.tolist()):
            index = self._stack_index.get(number)
            if index is None:
                index = self._stack_index[number] = len(self.stacks)
                frames = self._table.stacks[number]
                # A notebook's stacks end in 20 to 25 frames of its machinery.
                length = len(trim(self._table.resolve(number)))
                self.stacks.append([self._frame(frame) for frame in frames[:length]])
            numbers[position] = index
        return numbers[inverse]


@dataclass(frozen=True)
class Columns:
    """The part of a timeline that a document keeps singly."""

    time_us: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    group: NDArray[np.int32]
    stack: NDArray[np.int32]
    stream: NDArray[np.uint8]
    category: NDArray[np.uint8] | None = None
    module: NDArray[np.uint16] | None = None
    address: NDArray[np.uint64] | None = None


def kept_columns(
    timeline: Timeline,
    keep: NDArray[np.bool_] | None,
    purposes: tuple[NDArray[np.uint8], NDArray[np.uint16]] | None = None,
    address: NDArray[np.uint64] | None = None,
) -> Columns:
    """Select lifetimes, renumber the changes that they need, and fold what was there before and never left.

    `purposes` are each lifetime's category and module, where they are known, `address` where it lay (0: unknown).
    """
    start, end = timeline.start.astype(np.int64), timeline.end.astype(np.int64)
    columns = (timeline.size, timeline.requested, timeline.group, timeline.stack, timeline.stream)
    category, module = (
        purposes if purposes is not None else (np.zeros(len(start), np.uint8), np.zeros(len(start), np.uint16))
    )
    time_us = timeline.time_us
    if keep is not None:
        start, end = start[keep], end[keep]
        columns = tuple(column[keep] for column in columns)  # type: ignore[assignment]
        category, module = category[keep], module[keep]
        address = None if address is None else address[keep]
        used = np.zeros(timeline.changes, bool)
        used[start[start >= 0]] = True
        used[end[end >= 0]] = True
        number = np.cumsum(used) - 1
        time_us = time_us[used]
        start = np.where(start >= 0, number[start], -1) if len(number) else start
        end = np.where(end >= 0, number[end], -1) if len(number) else end
    size, requested, group, stack, stream = columns
    forever = (start == -1) & (end == -1)
    if np.count_nonzero(forever) > 1:
        owner = np.stack(
            [column[forever].astype(np.int32) for column in (group, stack, stream, category, module)], axis=1
        )
        owners, inverse = np.unique(owner, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        folded = [np.zeros(len(owners), np.int64) for _ in range(2)]
        np.add.at(folded[0], inverse, size[forever])
        np.add.at(folded[1], inverse, requested[forever])
        rest = ~forever
        nothing = np.full(len(owners), -1, np.int64)
        start, end = np.concatenate([nothing, start[rest]]), np.concatenate([nothing, end[rest]])
        size = np.concatenate([folded[0], size[rest]])
        requested = np.concatenate([folded[1], requested[rest]])
        group = np.concatenate([owners[:, 0].astype(np.int32), group[rest]])
        stack = np.concatenate([owners[:, 1].astype(np.int32), stack[rest]])
        stream = np.concatenate([owners[:, 2].astype(np.uint8), stream[rest]])
        category = np.concatenate([owners[:, 3].astype(np.uint8), category[rest]])
        module = np.concatenate([owners[:, 4].astype(np.uint16), module[rest]])
        address = None if address is None else np.concatenate([np.zeros(len(owners), np.uint64), address[rest]])
    return Columns(
        time_us,
        start,
        end,
        size,
        requested,
        group,
        stack,
        stream,
        None if purposes is None else category,
        None if purposes is None else module,
        address,
    )


def _gaps(columns: Columns, start_us: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
    """Return time differences that fit 32 bits, and `start` and `end` renumbered for the changes put in between."""
    gaps = np.diff(columns.time_us, prepend=start_us)
    # One less, so that what is left after the gaps put in between is 1 to `_GAP`.
    extra = np.maximum(gaps - 1, 0) // _GAP
    if not extra.any():
        return gaps.astype(np.uint32), columns.start, columns.end
    shifted = np.arange(len(gaps)) + np.cumsum(extra)
    wide = np.full(len(gaps) + int(extra.sum()), _GAP, np.int64)
    wide[shifted] = gaps - extra * _GAP
    start = np.where(columns.start >= 0, shifted[columns.start], -1)
    end = np.where(columns.end >= 0, shifted[columns.end], -1)
    return wide.astype(np.uint32), start, end


def timeline_arrays(
    columns: Columns, start_us: int, interner: Interner, prefix: str
) -> tuple[dict[str, NDArray[np.generic]], dict[str, object]]:
    """Write the arrays of a timeline under their names in the format, and the counts of its header."""
    gaps, start, end = _gaps(columns, start_us)
    preexisting = int(np.count_nonzero(start == -1))
    sizes, index = np.unique(np.concatenate([columns.size, columns.requested]), return_inverse=True)
    index = index.reshape(-1).astype(np.uint32)
    arrays: dict[str, NDArray[np.generic]] = {
        "t": gaps,
        "start": np.diff(start[preexisting:], prepend=0).astype(np.uint32),
        "span": np.where(end >= 0, end - start, 0).astype(np.uint32),
        "sizes": sizes.astype(np.float64),
        "bytes": index[: len(start)],
        "requested": index[len(start) :],
        "group": columns.group.astype(np.uint16),
        "stack": interner.stack_column(columns.stack),
        "stream": columns.stream,
    }
    if columns.category is not None and columns.module is not None:
        arrays |= {"category": columns.category, "module": columns.module}
    shape: dict[str, object] = {"changes": len(gaps), "lifetimes": len(start), "preexisting": preexisting}
    return {prefix + name: array for name, array in arrays.items()}, shape
