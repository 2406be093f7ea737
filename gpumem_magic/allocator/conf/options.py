"""Every option of torch's caching allocator from 2.1 to 2.15: what it takes, what it does, where it exists.

Sources: ``c10/cuda/CUDAAllocatorConfig.{h,cpp}`` and ``c10/core/AllocatorConfig.{h,cpp}`` of the releases named, and
the "Optimizing memory usage" section of torch's CUDA notes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["ALIASES", "NEVER_EXISTED", "OPTIONS", "REMOVED", "Kind", "Option"]

Version = tuple[int, int]


class Kind(enum.Enum):
    """How a value is written."""

    BOOL = "True or False"
    INT = "a whole number"
    FLOAT = "a number"
    CHOICE = "one of its names"
    DIVISIONS = "a power of two, or [256:1,512:2,>:4]"
    RESERVE = "a fraction (0.5) or a size (40G)"
    RESERVE_BY_CLASS = "[name:value,...]"


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes
    ----------
    name
        As written in the variable.
    kind
        How its value is written.
    default
        What holds when it is not given.
    meaning
        What it does, in one line.
    since
        First release (major, minor) that knows it; releases before 2.1 are not told apart.
    native
        False for the options that ``backend:cudaMallocAsync`` reads too.
    choices
        Names for `Kind.CHOICE`.
    """

    name: str
    kind: Kind
    default: str
    meaning: str
    since: Version = (2, 1)
    native: bool = True
    choices: tuple[str, ...] = ()


_ALL = (
    Option(
        "backend",
        Kind.CHOICE,
        "native",
        "which allocator; fixed while torch is imported",
        native=False,
        choices=("native", "cudaMallocAsync"),
    ),
    Option(
        "max_split_size_mb",
        Kind.INT,
        "unlimited",
        "blocks larger than this many MiB are never split; often raises reserved memory by a lot",
    ),
    Option(
        "max_non_split_rounding_mb",
        Kind.INT,
        "20",
        "how many MiB larger than the request an unsplittable block may be",
        (2, 6),
    ),
    Option(
        "roundup_power2_divisions",
        Kind.DIVISIONS,
        "0",
        "round requests up to steps of a power of two, so that blocks of similar sizes are reused",
    ),
    Option(
        "garbage_collection_threshold",
        Kind.FLOAT,
        "off",
        "free old cached segments when reserved passes this share of the memory limit; needs a memory fraction",
    ),
    Option(
        "expandable_segments",
        Kind.BOOL,
        "False",
        "grow segments page by page instead of reserving new ones; removes most fragmentation",
    ),
    Option(
        "large_segment_size_mb",
        Kind.INT,
        "20",
        "size of the segments that requests of 1 to 10 MiB share",
        (2, 11),
    ),
    Option(
        "per_process_memory_fraction",
        Kind.FLOAT,
        "1.0",
        "share of the device that this process may reserve; read when the device's allocator is created",
        (2, 10),
    ),
    Option(
        "throw_on_cudamalloc_oom",
        Kind.BOOL,
        "False",
        "raise at the first failing cudaMalloc, without freeing the cache and retrying",
        (2, 12),
    ),
    Option("release_lock_on_cudamalloc", Kind.BOOL, "False", "let other threads allocate while cudaMalloc runs"),
    Option(
        "graph_capture_record_stream_reuse",
        Kind.BOOL,
        "False",
        "reuse blocks of other streams during graph capture",
        (2, 10),
    ),
    Option(
        "pinned_use_cuda_host_register",
        Kind.BOOL,
        "False",
        "pin host memory with cudaHostRegister instead of cudaHostAlloc",
        native=False,
    ),
    Option("pinned_num_register_threads", Kind.INT, "1", "threads that map pages for cudaHostRegister", native=False),
    Option(
        "pinned_use_background_threads",
        Kind.BOOL,
        "False",
        "process pinned memory's events on a background thread",
        (2, 6),
        native=False,
    ),
    Option(
        "pinned_reserve_segment_size_mb",
        Kind.INT,
        "0",
        "MiB of pinned host memory reserved in one piece",
        (2, 10),
        native=False,
    ),
    Option(
        "pinned_max_round_threshold_mb",
        Kind.INT,
        "unlimited",
        "pinned requests above this many MiB are not rounded to a power of two",
        (2, 11),
        native=False,
    ),
    Option(
        "pinned_max_cached_size_mb",
        Kind.INT,
        "unlimited",
        "pinned blocks above this many MiB are not cached",
        (2, 11),
        native=False,
    ),
    Option(
        "pinned_free_catch_all",
        Kind.BOOL,
        "False",
        "swallow errors while pinned memory is freed",
        (2, 12),
        native=False,
    ),
    Option(
        "expandable_segments_reserve",
        Kind.RESERVE,
        "off",
        "address space reserved for each expandable segment",
        (2, 15),
    ),
    Option(
        "expandable_segments_reserve_by_class",
        Kind.RESERVE_BY_CLASS,
        "off",
        "address space reserved for expandable segments, by size class",
        (2, 15),
    ),
)

OPTIONS: dict[str, Option] = {option.name: option for option in _ALL}

# ROCm's spellings, accepted by every build.
ALIASES = {
    "release_lock_on_hipmalloc": "release_lock_on_cudamalloc",
    "pinned_use_hip_host_register": "pinned_use_cuda_host_register",
}

# Once real: name → what became of it.
REMOVED = {"roundup_bypass_threshold_mb": "it was removed before torch 2.1"}

# Copied from article to article, in no release's source: name → the real option that does what they promise, or None.
NEVER_EXISTED: dict[str, str | None] = {
    "heuristic": None,
    "nmalloc": None,
    "caching_allocator": None,
    "pooled": None,
    "expandable_segments_page_size": "expandable_segments",
}
