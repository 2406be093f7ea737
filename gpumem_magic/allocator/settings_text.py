"""From a settings string to what a replay needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._errors import BadUsageError
from gpumem_magic.allocator.conf import check
from gpumem_magic.allocator.conf.environment import NEWEST
from gpumem_magic.allocator.settings_model import MIB, AllocatorSettings, divisions_by_interval

if TYPE_CHECKING:
    from gpumem_magic.allocator.conf import TorchVersion

__all__ = ["SUGGESTED", "parse_question", "parse_settings"]

#: What people try, with the values that articles name. The garbage collector acts under a limit only.
SUGGESTED = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "expandable_segments:True,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
)

# Options that change where blocks go or when a request fails, and that the model does not know: option → what to do.
_NOT_MODELLED = {
    "per_process_memory_fraction": "give the limit itself, with --cap-gib",
    "throw_on_cudamalloc_oom": "it makes requests fail that a freed cache would have served",
    "graph_capture_record_stream_reuse": "it changes what a captured graph reuses",
}

# Numbers as good as infinite, with which sums still fit into 64 bits.
_MOST = 1 << 50


def parse_question(text: str, version: TorchVersion = NEWEST) -> AllocatorSettings:
    """Read a setting that somebody asks about; see `parse_settings`.

    Raises
    ------
    BadUsageError
        Also for an option whose effect is not replayed, so that the answer is not that of the others alone.
    """
    settings = parse_settings(text, version)
    options = check(text, version).settings
    for name, instead in _NOT_MODELLED.items():
        value = options.get(name, False)
        if value is True or (isinstance(value, float) and value < 1.0):
            raise BadUsageError(f"{text!r}: {name} is not replayed: {instead}")
    return settings


def parse_settings(text: str, version: TorchVersion = NEWEST) -> AllocatorSettings:
    """Read a ``PYTORCH_CUDA_ALLOC_CONF`` string as torch would.

    A pair that must not meet is read all the same: what it does can be replayed.

    Raises
    ------
    BadUsageError
        With the first problem and the corrected string, or when the string switches to another allocator.
    """
    checked = check(text, version)
    if len(checked.problems) > len(checked.dropped):
        problem = checked.problems[0]
        instead = f"Write {checked.corrected!r}" if checked.corrected else "Leave it out"
        raise BadUsageError(f"{text!r}: {problem.message}. {instead}")
    options = {**checked.settings, **checked.dropped}
    if options.get("backend", "native") != "native":
        raise BadUsageError(f"{text!r}: only torch's native allocator can be replayed, not {options['backend']}")
    plain = AllocatorSettings()
    max_split = options.get("max_split_size_mb")
    threshold = options.get("garbage_collection_threshold")
    divisions = options.get("roundup_power2_divisions")
    return AllocatorSettings(
        max_split_size=_mib(max_split, 0) if isinstance(max_split, int) else None,
        max_non_split_rounding=_mib(options.get("max_non_split_rounding_mb"), plain.max_non_split_rounding),
        roundup_power2_divisions=(
            (min(divisions, _MOST),) * len(plain.roundup_power2_divisions)
            if isinstance(divisions, int)
            else tuple(min(one, _MOST) for one in divisions_by_interval(divisions))
        ),
        garbage_collection_threshold=float(threshold) if isinstance(threshold, (int, float)) else 0.0,
        expandable_segments=options.get("expandable_segments") is True,
        large_segment_size=_mib(options.get("large_segment_size_mb"), plain.large_segment_size),
    )


def _mib(value: object, default: int) -> int:
    return min(value * MIB, _MOST) if isinstance(value, int) else default
