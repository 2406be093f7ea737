"""What runs of the same cell leave behind, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.analysis.leaks.evidence import LEAST_ITERATIONS, blocks_to_count
from gpumem_magic.analysis.leaks.model import Leak, LeakLine
from gpumem_magic.analysis.leaks.words import leak_sentence
from gpumem_magic.analysis.model import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpumem_magic.book.blocks import BlockTable

__all__ = ["rerun_leak"]

_MOST_ADDRESSES = 4096
_UNKNOWN = Group("unknown", "lines that are not known")


def rerun_leak(
    device: str, table: BlockTable, counted: NDArray[np.bool_], runs: Sequence[int], lines: Sequence[Group]
) -> Leak | None:
    """Judge what is alive of the runs of one cell.

    The newest run's own variables are alive, and often the last one's, in names that were bound anew. So the verdict
    asks, line by line, for memory of the last three runs at least.

    Parameters
    ----------
    device
        torch's notation.
    table
        The device's blocks.
    counted
        Which of them are known to be alive.
    runs
        Numbers of the cell's entries, oldest first.
    lines
        What `BlockTable.line` counts.
    """
    if len(runs) < LEAST_ITERATIONS:
        return None
    mine = np.flatnonzero(counted & np.isin(table.owner, runs))
    run = np.searchsorted(np.array(runs), table.owner[mine])
    rows: list[LeakLine] = []
    kept: list[NDArray[np.int64]] = []
    each = np.zeros(len(runs), np.int64)
    oldest = len(runs)
    for number in np.unique(table.line[mine]).tolist():
        own = table.line[mine] == number
        left = np.bincount(run[own], table.size[mine[own]], len(runs)).astype(np.int64)
        if not left[-LEAST_ITERATIONS:].all():
            continue
        # Back to the first run of the unbroken series.
        gone = np.flatnonzero(left == 0)
        first = int(gone[-1]) + 1 if len(gone) else 0
        oldest = min(oldest, first)
        series = np.flatnonzero(own & (run >= first))
        # The newest run's own variables are no growth.
        counts = blocks_to_count(table.size[mine[series]], run[series] - first + 1, np.insert(left[first:], 0, 0))
        series = series[counts]
        left = np.bincount(run[series], table.size[mine[series]], len(runs)).astype(np.int64)
        each += left
        which = mine[series]
        kept.append(which)
        line = lines[number] if number >= 0 else _UNKNOWN
        rows.append(LeakLine(line, int(np.median(left[first:])), int(left.sum()), len(which)))
    if not rows:
        return None
    rows.sort(key=lambda row: -row.bytes)
    which = np.concatenate(kept)
    which = which[np.argsort(-table.size[which], kind="stable")[:_MOST_ADDRESSES]]
    leak = Leak(
        kind="reruns",
        device=device,
        loop=None,
        iterations=len(runs),
        grown=len(runs) - oldest,
        bytes_per_iteration=sum(row.bytes_per_iteration for row in rows),
        bytes=sum(row.bytes for row in rows),
        lines=tuple(rows),
        addresses=table.address[which],
        left=tuple(each.tolist()),
    )
    return leak_sentence(leak)
