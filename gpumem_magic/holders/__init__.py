"""Who keeps a tensor alive, and how to let go."""

from __future__ import annotations

from gpumem_magic.holders.bounds import with_bounds
from gpumem_magic.holders.copies import Duplicate, duplicate_text, duplicates
from gpumem_magic.holders.forecast import FirstStep, ToldSteps, first_step_text, first_steps
from gpumem_magic.holders.model import Bound, Category, Holder, HolderKind, HolderScan, LiveModel, Storage
from gpumem_magic.holders.models import count_models
from gpumem_magic.holders.release import Freed, kept_by_outputs, release, release_text
from gpumem_magic.holders.scan import who_holds
from gpumem_magic.holders.text import describe_scan
from gpumem_magic.holders.witness import StorageWitness

__all__ = [
    "Bound",
    "Category",
    "Duplicate",
    "FirstStep",
    "Freed",
    "Holder",
    "HolderKind",
    "HolderScan",
    "LiveModel",
    "Storage",
    "StorageWitness",
    "ToldSteps",
    "count_models",
    "describe_scan",
    "duplicate_text",
    "duplicates",
    "first_step_text",
    "first_steps",
    "kept_by_outputs",
    "release",
    "release_text",
    "who_holds",
    "with_bounds",
]
