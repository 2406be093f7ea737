"""What grew as plain values, for the view: its section shows each leak with the numbers that prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem_magic.analysis.leaks.model import Growth, Leak
    from gpumem_magic.analysis.model import Group

__all__ = ["plain"]

# Bars of a small chart.
_MOST_BARS = 200


def plain(growth: Growth | None) -> dict[str, object] | None:
    """Return what grew on a device as JSON takes it, sizes in bytes; None when there is nothing to tell.

    Parameters
    ----------
    growth
        What was found, or None where nobody looked.
    """
    if growth is None or not (growth.leaks or growth.small or growth.once):
        return None
    return {
        "iterations": growth.iterations,
        "leaks": [_leak(leak) for leak in growth.leaks],
        "small": [_leak(leak) for leak in growth.small],
        "once": [
            {"what": once.what, "sentence": once.sentence, "bytes": once.bytes, "line": _place(once.line)}
            for once in growth.once
        ],
    }


def _place(group: Group) -> dict[str, object]:
    return {"label": group.label, "source": group.source, "cell": group.cell, "line": group.line}


def _leak(leak: Leak) -> dict[str, object]:
    left, together = _bars(leak)
    return {
        "kind": leak.kind,
        "sentence": leak.sentence,
        "remedy": leak.remedy,
        "bytes": leak.bytes,
        "bytesPerIteration": leak.bytes_per_iteration,
        "iterations": leak.iterations,
        "grown": leak.grown,
        "every": leak.every,
        "loop": None if leak.loop is None else _place(leak.loop),
        "lines": [
            {
                **_place(line.group),
                "bytesPerIteration": line.bytes_per_iteration,
                "bytes": line.bytes,
                "blocks": line.blocks,
            }
            for line in leak.lines
        ],
        "keepers": [
            {
                "path": keeper.path,
                "root": keeper.root,
                "kind": keeper.kind,
                "bytes": keeper.bytes,
                "graphNodes": keeper.graph_nodes,
                "line": None if keeper.line is None else _place(keeper.line),
            }
            for keeper in leak.keepers
        ],
        "left": left,
        "leftPer": together,
    }


def _bars(leak: Leak) -> tuple[list[int], int]:
    """Put neighbours together until a small chart has room for them; return these, and how many each one is of."""
    left = leak.left
    together = -(-len(left) // _MOST_BARS) or 1
    # Sizes of one and the same tensor do not add up.
    join = max if leak.kind == "regrown" else sum
    return [join(left[at : at + together]) for at in range(0, len(left), together)], together
