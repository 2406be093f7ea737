"""From requested bytes to the size of a block, as ``DeviceCachingAllocator::round_size`` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.settings_model import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.allocator.settings_model import AllocatorSettings

__all__ = ["MIN_BLOCK", "NEVER", "SMALL_LIMIT", "round_sizes", "split_thresholds"]

# `kMinBlockSize` and `kSmallSize` of c10/core/AllocatorConfig.h.
MIN_BLOCK = 512
SMALL_LIMIT = MIB
# Larger than any remainder.
NEVER = 2**62


def round_sizes(requested: NDArray[np.int64], settings: AllocatorSettings) -> NDArray[np.int64]:
    """Round requests up to block sizes.

    Parameters
    ----------
    requested
        Bytes asked for, shape ``(n,)``.
    settings
        `roundup_power2_divisions` matters.

    Returns
    -------
    ndarray
        Bytes, int64, shape ``(n,)``.
    """
    rounded = np.maximum((requested + (MIN_BLOCK - 1)) // MIN_BLOCK * MIN_BLOCK, MIN_BLOCK)
    if not any(divisions > 1 for divisions in settings.roundup_power2_divisions):
        return rounded
    # float64 is exact below 2**53, and frexp takes the exponent without rounding.
    _, exponent = np.frexp(np.maximum(requested, 1).astype(np.float64))
    power = exponent.astype(np.int64) - 1
    table = np.array(settings.roundup_power2_divisions, dtype=np.int64)
    divisions = table[np.clip(power - 20, 0, len(table) - 1)]
    floor = np.left_shift(np.int64(1), power)
    step = floor // np.maximum(divisions, 1)
    with_step = np.where(step > 0, (requested + step - 1) // np.maximum(step, 1) * step, floor * 2)
    with_step = np.where(requested == floor, requested, with_step)
    return np.where((divisions > 1) & (requested > MIN_BLOCK * divisions), with_step, rounded)


def split_thresholds(rounded: NDArray[np.int64], settings: AllocatorSettings) -> NDArray[np.int64]:
    """Return the smallest remainder that is split off a block when `rounded` bytes are taken from it.

    The rule is ``DeviceCachingAllocator::should_split``; `NEVER` where nothing is split off.
    """
    if settings.expandable_segments:
        return np.full(len(rounded), MIN_BLOCK, dtype=np.int64)
    large = np.full(len(rounded), SMALL_LIMIT + 1, dtype=np.int64)
    if settings.max_split_size is not None:
        large[rounded >= settings.max_split_size] = NEVER
    return np.where(rounded <= SMALL_LIMIT, np.int64(MIN_BLOCK), large)
