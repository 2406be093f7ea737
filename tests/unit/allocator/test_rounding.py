from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.allocator.rounding import NEVER, round_sizes, split_thresholds
from gpumem_magic.allocator.settings_model import MIB, AllocatorSettings, from_torch


def rounded(size, **settings):
    return int(round_sizes(np.array([size], dtype=np.int64), AllocatorSettings(**settings))[0])


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (2**40 + 1, 2**40 + 512)])
def test_multiples_of_512(size, block):
    assert rounded(size) == block


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (2048, 2048),  # 512 times 4 divisions: not above it, so the plain rule
        (2049, 2560),  # the step is 2048 / 4
        (4096, 4096),  # a power of two stays
        (1200 * 1024, 1280 * 1024),
        (5 * MIB + 1, 6 * MIB),
        (7 * MIB + 1, 8 * MIB),
    ],
)
def test_four_divisions_of_a_power_of_two(size, block):
    assert rounded(size, roundup_power2_divisions=(4,) * 16) == block


def test_divisions_go_by_the_size_in_mib():
    # The division of a size is that of the power of two below it; what is missing is off.
    divisions = from_torch(
        {"roundup_power2_divisions": {"1": 8, "2": 8, "64": 8, "128": 4, "256": 4, "512": 1, "32768": 1}}
    ).roundup_power2_divisions
    assert divisions == (8, 8, 0, 0, 0, 0, 8, 4, 4, 1, 0, 0, 0, 0, 0, 1)
    assert rounded(65 * MIB, roundup_power2_divisions=divisions) == 72 * MIB
    assert rounded(129 * MIB, roundup_power2_divisions=divisions) == 160 * MIB
    assert rounded(513 * MIB + 1, roundup_power2_divisions=divisions) == 513 * MIB + 512


def test_what_is_split_off():
    sizes = np.array([512, MIB, MIB + 512, 32 * MIB], dtype=np.int64)
    assert split_thresholds(sizes, AllocatorSettings()).tolist() == [512, 512, MIB + 1, MIB + 1]
    assert split_thresholds(sizes, AllocatorSettings(max_split_size=32 * MIB)).tolist() == [512, 512, MIB + 1, NEVER]
    assert split_thresholds(sizes, AllocatorSettings(expandable_segments=True)).tolist() == [512] * 4


def test_settings_of_a_snapshot():
    settings = from_torch(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, large_segment_size_mb:40,max_non_split_rounding_mb : 128",
            "max_split_size": 64 * MIB,
            "garbage_collection_threshold": 0.7,
            "expandable_segments": True,
        }
    )
    assert settings == AllocatorSettings(
        max_split_size=64 * MIB,
        max_non_split_rounding=128 * MIB,
        garbage_collection_threshold=0.7,
        expandable_segments=True,
        large_segment_size=40 * MIB,
    )


@pytest.mark.parametrize("broken", [{}, {"max_split_size": -1}, {"roundup_power2_divisions": 4, "max_split_size": "x"}])
def test_what_is_missing_is_torchs_default(broken):
    assert from_torch(broken) == AllocatorSettings()
