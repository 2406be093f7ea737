"""What torch's allocator holds at this moment, block by block. Nothing is recorded or initialised for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.cuda import snapshot
from gpumem_magic.recording.imports import finished_torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["allocated_blocks"]


def allocated_blocks() -> dict[str, tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Return addresses and bytes of all allocated blocks, by device (``"cuda:0"``).

    Their sum is ``torch.cuda.memory_allocated``. Empty while CUDA is not in use, and where the allocator keeps no list
    (cudaMallocAsync, a pluggable one).
    """
    torch = finished_torch()
    if torch is None or not torch.cuda.is_initialized():
        return {}
    try:
        segments = snapshot(torch)["segments"]
    except RuntimeError:
        return {}
    return _by_device(segments)


def _by_device(segments: list[dict[str, Any]]) -> dict[str, tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    import numpy as np

    found: dict[str, tuple[list[int], list[int]]] = {}
    for segment in segments:
        addresses, sizes = found.setdefault(f"cuda:{segment['device']}", ([], []))
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                addresses.append(block.get("address", address))
                sizes.append(block["size"])
            address += block["size"]
    return {
        key: (np.array(addresses, np.uint64), np.array(sizes, np.int64)) for key, (addresses, sizes) in found.items()
    }
