"""The allocator settings that a replay needs, typed, in bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["KIB", "MIB", "AllocatorSettings", "Course", "divisions_by_interval", "from_torch"]

KIB = 1024
MIB = 1024 * KIB

# Boundaries of roundup_power2_divisions in MiB: "1", "2", … "32768" (`kRoundUpPowerOfTwoIntervals`).
_INTERVALS = 16
# More would divide 1 MiB, the least that is divided, below a single byte.
_MOST_DIVISIONS = MIB


@dataclass(frozen=True)
class AllocatorSettings:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` (and the API) can change about where blocks go.

    Attributes
    ----------
    max_split_size
        Blocks of at least this many bytes are not split and are used for requests of at least this size only; None is
        torch's default, no limit.
    max_non_split_rounding
        A request above `max_split_size` takes a cached block only when it wastes less than this.
    roundup_power2_divisions
        Divisions for requests of 1 MiB, 2 MiB, … 32768 MiB and up, 16 values, 0 for off.
    garbage_collection_threshold
        Share of the limit above which old cached blocks are freed, 0.0 for off.
    expandable_segments
        Whether segments grow by mapping pages.
    large_segment_size
        Size of a segment for blocks above 1 MiB and below 10 MiB, and page of expandable segments of such blocks.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_size: int = 20 * MIB


@dataclass(frozen=True)
class Course:
    """Settings that were changed while a recording ran.

    Attributes
    ----------
    first
        Those before the first event.
    changes
        (event, settings) from that event on, ascending.
    """

    first: AllocatorSettings
    changes: tuple[tuple[int, AllocatorSettings], ...] = ()

    def at(self, event: int) -> AllocatorSettings:
        """Return the settings under which event number `event` was recorded."""
        return next((after for start, after in reversed(self.changes) if start <= event), self.first)

    def stretches(self, count: int) -> Iterator[tuple[int, int, AllocatorSettings]]:
        """Yield (start, stop, settings) for `count` events: under which settings each was recorded."""
        start, settings = 0, self.first
        for event, following in self.changes:
            yield start, event, settings
            start, settings = event, following
        yield start, count, settings


def from_torch(settings: Mapping[str, object]) -> AllocatorSettings:
    """Read the ``allocator_settings`` of a snapshot.

    Two options are not in that dict (seen up to torch 2.15) and are taken from the recorded string. What is missing, of
    another type or out of torch's own bounds keeps its default.
    """
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    text = text if isinstance(text, str) else ""
    max_split = settings.get("max_split_size")
    threshold = settings.get("garbage_collection_threshold")
    return AllocatorSettings(
        max_split_size=max_split if isinstance(max_split, int) and max_split > 0 else None,
        max_non_split_rounding=_mib_option(text, "max_non_split_rounding_mb", 20),
        roundup_power2_divisions=divisions_by_interval(settings.get("roundup_power2_divisions")),
        garbage_collection_threshold=(
            float(threshold) if isinstance(threshold, (int, float)) and 0 <= threshold <= 1 else 0.0
        ),
        expandable_segments=settings.get("expandable_segments") is True,
        large_segment_size=_mib_option(text, "large_segment_size_mb", 20),
    )


def _mib_option(text: str, name: str, default: int) -> int:
    found = re.search(rf"\b{name}\s*:\s*(\d{{1,9}})", text)
    return (int(found[1]) if found else default) * MIB


def divisions_by_interval(value: object) -> tuple[int, ...]:
    """Read ``{"1": 8, "2": 8, … "32768": 1}`` (MiB → divisions); what is missing or of another type is off."""
    divisions = [0] * _INTERVALS
    if isinstance(value, dict):
        for boundary, count in value.items():
            is_count = isinstance(count, int) and 0 <= count <= _MOST_DIVISIONS
            if is_count and str(boundary).isdecimal() and int(boundary) > 0:
                index = int(boundary).bit_length() - 1
                if index < _INTERVALS:
                    divisions[index] = count
    return tuple(divisions)
