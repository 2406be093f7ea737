"""Sizes that the allocator asks the driver for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.allocator.rounding import SMALL_LIMIT
from gpumem_magic.allocator.settings_model import MIB

if TYPE_CHECKING:
    from gpumem_magic.allocator.settings_model import AllocatorSettings

__all__ = ["page_size", "segment_size"]

# c10/core/AllocatorConfig.h: kSmallBuffer, kMinLargeAlloc, kRoundLarge.
_SMALL_SEGMENT = 2 * MIB
_MIN_LARGE = 10 * MIB
_LARGE_STEP = 2 * MIB


def segment_size(size: int, settings: AllocatorSettings) -> int:
    """Return the bytes of the segment that is allocated for a block of `size` bytes (``get_allocation_size``)."""
    if size <= SMALL_LIMIT:
        return _SMALL_SEGMENT
    if size < _MIN_LARGE:
        return settings.large_segment_size
    return (size + _LARGE_STEP - 1) // _LARGE_STEP * _LARGE_STEP


def page_size(settings: AllocatorSettings, *, is_small: bool) -> int:
    """Return the bytes by which an expandable segment grows."""
    return _SMALL_SEGMENT if is_small else settings.large_segment_size
