"""What memory was for: parameters, gradients, activations and the rest, and the module that it belongs to.

What was seen by storage is exact. What was gone before anybody looked is inferred from phase, line and size, and is
counted apart everywhere.
"""

from __future__ import annotations

from gpumem_magic.analysis.categories.build import categorise
from gpumem_magic.analysis.categories.model import KINDS, LABELS, BackwardRow, Categories, CategoryRow, ModuleRow

__all__ = ["KINDS", "LABELS", "BackwardRow", "Categories", "CategoryRow", "ModuleRow", "categorise"]
