"""Who keeps a tensor alive, and how to let go."""

from __future__ import annotations

from gpumem_magic.holders.model import Category, Holder, HolderKind, HolderScan, Storage
from gpumem_magic.holders.release import Freed, release, release_text
from gpumem_magic.holders.scan import is_still_there, who_holds
from gpumem_magic.holders.text import describe_scan

__all__ = [
    "Category",
    "Freed",
    "Holder",
    "HolderKind",
    "HolderScan",
    "Storage",
    "describe_scan",
    "is_still_there",
    "release",
    "release_text",
    "who_holds",
]
