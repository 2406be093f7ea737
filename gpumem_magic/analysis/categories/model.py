"""What memory was for, as the report shows it. Plain and immutable; sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ACTIVATION",
    "BEFORE",
    "BUFFER",
    "GRADIENT",
    "INPUT",
    "KINDS",
    "LABELS",
    "NEEDS_312",
    "OPTIMIZER",
    "OTHER",
    "PARAMETER",
    "TEMPORARY",
    "UNKNOWN",
    "WORKSPACE",
    "WORKSPACE_SIZES",
    "BackwardRow",
    "Categories",
    "CategoryRow",
    "ModuleRow",
]

#: Bytes of the workspaces of cuBLAS (per handle and stream) and cuBLASLt: 32 MiB on Hopper, 8.125 MiB elsewhere; 1 MiB
#: for cuBLASLt. Found in recordings of an H200, and in torch's defaults (CUDABlas, getChosenWorkspaceSize).
WORKSPACE_SIZES = (33_554_432, 8_519_680, 1_048_576)

# Stable names, in the order of the bands: what stays longest lies lowest.
KINDS = (
    "parameter",
    "buffer",
    "optimizer",
    "gradient",
    "activation",
    "input",
    "temporary",
    "workspace",
    "other",
    "before",
    "unknown",
)
(
    PARAMETER,
    BUFFER,
    OPTIMIZER,
    GRADIENT,
    ACTIVATION,
    INPUT,
    TEMPORARY,
    WORKSPACE,
    OTHER,
    BEFORE,
    UNKNOWN,
) = range(len(KINDS))
LABELS = (
    "parameters",
    "buffers",
    "optimizer state",
    "gradients",
    "activations",
    "inputs",
    "temporaries",
    "workspaces",
    "other tensors",
    "from before",
    "unknown",
)

NEEDS_312 = "module paths need Python 3.12"


class CategoryRow(NamedTuple):
    """Bytes of one category (index into `KINDS`) in `blocks` allocations, of which `inferred` were not seen."""

    category: int
    bytes: int
    blocks: int
    inferred: int


class ModuleRow(NamedTuple):
    """Bytes of one module (index into `Categories.module_names`), and of each category in it, largest first."""

    module: int
    bytes: int
    blocks: int
    inferred: int
    by_category: tuple[tuple[int, int], ...]


class BackwardRow(NamedTuple):
    """Bytes that ``backward`` allocated for what a line's forward had made; `group` as in `Row`. All inferred."""

    group: int
    bytes: int
    blocks: int


@dataclass(frozen=True, eq=False)
class Categories:
    """What each lifetime of a device was for.

    Attributes
    ----------
    category
        Index into `KINDS` per lifetime, uint8, shape ``(lifetimes,)``.
    inferred
        Whether that follows from phase, line and size, in place of having been seen by storage; bool.
    module
        Index into `module_names` per lifetime, int32; 0 for none.
    module_names
        Paths, ``model.layers[3].mlp``; the first is empty.
    forward
        Per lifetime that ``backward`` allocated: the group of the line whose forward it belongs to, else -1; int32.
    peak, end
        Rows at the allocated peak and at the end, largest first; they add up to the headline's bytes.
    modules
        Rows at the peak, largest first, of what belongs to a module.
    backward
        Rows at the peak, largest first.
    reason
        Why module paths are missing, or None.
    """

    category: NDArray[np.uint8]
    inferred: NDArray[np.bool_]
    module: NDArray[np.int32]
    module_names: tuple[str, ...]
    forward: NDArray[np.int32]
    peak: tuple[CategoryRow, ...]
    end: tuple[CategoryRow, ...]
    modules: tuple[ModuleRow, ...]
    backward: tuple[BackwardRow, ...]
    reason: str | None = None

    def of(self, lifetimes: NDArray[np.bool_]) -> Categories:
        """Return the columns of some lifetimes, with the rows of all."""
        return replace(
            self,
            category=self.category[lifetimes],
            inferred=self.inferred[lifetimes],
            module=self.module[lifetimes],
            forward=self.forward[lifetimes],
        )

    def share_without_owner(self) -> float:
        """Return the part of the peak's bytes whose purpose is not known, 0 to 1."""
        total = sum(row.bytes for row in self.peak)
        return sum(row.bytes for row in self.peak if row.category == UNKNOWN) / total if total else 0.0
