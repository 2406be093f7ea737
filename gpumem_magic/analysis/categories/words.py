"""What memory was for, in a line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_share
from gpumem_magic.analysis.categories.build import category_rows
from gpumem_magic.analysis.categories.model import (
    ACTIVATION,
    BUFFER,
    GRADIENT,
    INPUT,
    LABELS,
    NEEDS_312,
    OPTIMIZER,
    PARAMETER,
    UNKNOWN,
    WORKSPACE,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.categories.model import Categories, CategoryRow
    from gpumem_magic.analysis.model import Timeline

__all__ = ["categories_text", "text_at_event"]

# A moment that holds nothing of these is told by its lines alone.
_TELLING = frozenset({PARAMETER, BUFFER, OPTIMIZER, GRADIENT, ACTIVATION, INPUT, WORKSPACE})


def categories_text(categories: Categories, rows: Sequence[CategoryRow]) -> str | None:
    """Say what memory was for, largest first; None where that is not known or says nothing.

    "(inferred)" stands behind what was not seen by storage, with its share where only a part was not.
    """
    if not any(row.category in _TELLING for row in rows):
        return None
    total = sum(row.bytes for row in rows)
    parts = []
    for row in rows:
        text = f"{LABELS[row.category]} {format_share(row.bytes, total)}"
        if row.category == UNKNOWN and categories.reason == NEEDS_312:
            text += " (inside functions, Python 3.12 tells more)"
        if row.inferred == row.bytes:
            text += " (inferred)"
        elif row.inferred * 100 >= total:
            text += f" ({format_share(row.inferred, total)} inferred)"
        parts.append(text)
    return ", ".join(parts)


def text_at_event(categories: Categories, timeline: Timeline, event: int) -> str | None:
    """Say what was allocated just before an event of the device was for.

    Parameters
    ----------
    categories, timeline
        Of one device.
    event
        Index of the event in the trace.
    """
    change = int(np.searchsorted(timeline.event, event, "left")) - 1
    return categories_text(categories, category_rows(categories, timeline, timeline.alive(change)))
