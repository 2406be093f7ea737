"""Which allocator settings torch really uses in this process, asked without initialising anything."""

from __future__ import annotations

import sys
from typing import NamedTuple

__all__ = ["InForce", "settings_in_force"]


class InForce(NamedTuple):
    """The settings string in force (None: not known yet), and why it is not known or what can still change it."""

    text: str | None
    reason: str


def settings_in_force() -> InForce:
    """Return the settings string that torch's CUDA allocator took.

    torch reads the variable when CUDA is first used (the backend while it is imported), and never again; asking it
    earlier would be that first use, so it is not asked.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return InForce(None, "torch is not imported yet: what the environment says now will count")
    if not torch.cuda.is_initialized():
        return InForce(None, "CUDA is not in use yet: the environment still counts (the backend is fixed already)")
    if getattr(torch._C, "_cuda_isHistoryEnabled", bool)():
        return InForce(None, "a memory history is being recorded, so torch cannot be asked cheaply")
    try:
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
    except (RuntimeError, KeyError) as error:
        return InForce(None, f"torch does not tell: {str(error).splitlines()[0]}")
    # The key keeps this name whichever variable was read.
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    if not isinstance(text, str):
        return InForce(None, "this torch does not tell its settings string")
    return InForce(text, "torch read it when CUDA was first used; a change needs a kernel restart")
