"""Addresses in ranges, without leaving 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["within"]


def within(addresses: NDArray[np.uint64], start: int, size: int) -> NDArray[np.bool_]:
    """Mark the addresses in [start, start + size), also where the end passes 2**64."""
    low = np.uint64(start)
    inside: NDArray[np.bool_] = (addresses >= low) & (addresses - low < np.uint64(size))
    return inside
