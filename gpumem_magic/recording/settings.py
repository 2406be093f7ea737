"""Which allocator settings torch really uses in this process, asked without initialising anything."""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

from gpumem_magic.recording.notes import one_line

__all__ = ["InForce", "cuda_is_used", "settings_in_force"]


class InForce(NamedTuple):
    """The settings string in force (None: not known), and why it is not known."""

    text: str | None
    reason: str


# A build without CUDA asserts; a function of torch's that is gone, or takes something else, is an attribute, type or
# value error; a driver that has failed is a runtime error, and a snapshot without settings a key error.
_REFUSALS = (RuntimeError, AssertionError, AttributeError, TypeError, ValueError, LookupError)


def cuda_is_used() -> bool | None:
    """Tell whether this process has initialised CUDA through torch; None while torch is not imported."""
    # A module that is still being imported has no `cuda` yet, or half of one; a stub of the user's may never have it.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda.is_initialized()) if hasattr(cuda, "is_initialized") else None


def settings_in_force() -> InForce:
    """Return the settings string that torch's CUDA allocator took.

    torch reads the variable when CUDA is first used (the backend while it is imported), and never again; asking it
    earlier would be that first use, so it is not asked.
    """
    if not cuda_is_used():
        return InForce(None, "CUDA is not in use yet")
    try:
        settings = _ask(sys.modules["torch"])
    except _REFUSALS as error:
        return InForce(None, f"torch does not tell ({one_line(error)})")
    # The key keeps this name whichever variable was read.
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    if not isinstance(text, str):
        return InForce(None, "this torch does not tell its settings string, or a recording makes asking it slow")
    return InForce(text, "")


def _ask(torch: Any) -> dict[str, Any]:
    """Read the settings out of a snapshot: without its trace where it can be left out (2.11), else if there is none."""
    found: dict[str, Any] = {}
    if "include_traces" in inspect.signature(torch.cuda.memory.memory_snapshot).parameters:
        found = torch._C._cuda_memorySnapshot((0, 0, False))["allocator_settings"]
    elif not torch._C._cuda_isHistoryEnabled():
        found = torch.cuda.memory._snapshot()["allocator_settings"]
    return found
