"""Who keeps a tensor alive, and how to let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._lazy import names_from

if TYPE_CHECKING:
    from gpumem_magic.holders.bounds import with_bounds
    from gpumem_magic.holders.copies import Duplicate, duplicate_text, duplicates
    from gpumem_magic.holders.forecast import FirstStep, ToldSteps, first_step_text, first_steps
    from gpumem_magic.holders.model import Bound, Category, Holder, HolderKind, HolderScan, LiveModel, Storage
    from gpumem_magic.holders.models import count_models
    from gpumem_magic.holders.release import Freed, kept_by_outputs, release_text
    from gpumem_magic.holders.scan import who_holds
    from gpumem_magic.holders.text import describe_scan
    from gpumem_magic.holders.witness import StorageWitness
else:
    __getattr__ = names_from(
        __name__,
        {
            "bounds": "with_bounds",
            "copies": "Duplicate duplicate_text duplicates",
            "forecast": "FirstStep ToldSteps first_step_text first_steps",
            "model": "Bound Category Holder HolderKind HolderScan LiveModel Storage",
            "models": "count_models",
            "release": "Freed kept_by_outputs release_text",
            "scan": "who_holds",
            "text": "describe_scan",
            "witness": "StorageWitness",
        },
    )

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
    "release_text",
    "who_holds",
    "with_bounds",
]
