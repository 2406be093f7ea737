"""What memory was for, in the view document: rows per category and module, and a column per lifetime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_share
from gpumem_magic.analysis.categories import KINDS, LABELS
from gpumem_magic.analysis.categories.words import categories_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gpumem_magic.analysis.categories import Categories, CategoryRow
    from gpumem_magic.analysis.model import DeviceAnalysis

__all__ = ["INFERRED", "by_category", "by_module", "category_columns", "purposes_header"]

# Of a category's byte, the bit that says "inferred".
INFERRED = 0x80
_MODULES_SHOWN = 200


def by_module(device: DeviceAnalysis, top: int = 3) -> str | None:
    """Say in one line which modules the peak belongs to, largest first; None where there is none to tell."""
    categories = device.categories
    if categories is None or len(categories.modules) < 2:
        return None
    total = sum(row.bytes for row in categories.peak)
    parts = [
        f"{categories.module_names[row.module]} {format_share(row.bytes, total)}" for row in categories.modules[:top]
    ]
    rest = categories.modules[top:]
    if rest:
        parts.append(f"{len(rest)} more {format_share(sum(row.bytes for row in rest), total)}")
    return ", ".join(parts)


def category_columns(categories: Categories) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Return, per lifetime, the category with its "inferred" bit, and the module."""
    code = categories.category | np.where(categories.inferred, np.uint8(INFERRED), np.uint8(0))
    return code.astype(np.uint8), categories.module.astype(np.uint16)


def _rows(rows: Iterable[CategoryRow]) -> list[dict[str, int]]:
    return [row._asdict() for row in rows]


def purposes_header(device: DeviceAnalysis) -> dict[str, object]:
    """Write what the header says of a device's categories."""
    categories = device.categories
    if categories is None:
        return {"categories": None}
    return {
        "categories": {
            "kinds": list(KINDS),
            "names": list(LABELS),
            "peak": _rows(categories.peak),
            "end": _rows(categories.end),
            "modules": [
                {
                    "module": row.module,
                    "bytes": row.bytes,
                    "blocks": row.blocks,
                    "inferred": row.inferred,
                    "byCategory": [list(pair) for pair in row.by_category],
                }
                for row in categories.modules[:_MODULES_SHOWN]
            ],
            "moduleNames": list(categories.module_names),
            "backward": [row._asdict() for row in categories.backward],
            "reason": categories.reason,
        }
    }


def by_category(device: DeviceAnalysis) -> str | None:
    """Say in one line what the peak was for, largest first; None where that is not known or says nothing."""
    categories = device.categories
    return None if categories is None else categories_text(categories, categories.peak)
