"""Requests whose failure a library answers with something smaller.

cuDNN asks for a workspace, and when the allocator refuses it tries another algorithm: dozens of failed requests, and
the program runs on. Such a request is freed by the very next event, and a convolution asks for it. Large temporaries
of other operations are freed as quickly, so without a sign of a convolution nothing is concluded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.trace.frames import is_native

if TYPE_CHECKING:
    from gpumem_magic.allocator.history import History
    from gpumem_magic.trace.model import Frame, StackTable

__all__ = ["requests_with_fallback"]

_CONVOLUTION = re.compile(
    r"[/\\]torch[/\\]nn[/\\](?:modules|quantized|intrinsic)[/\\].*conv|cudnn|convolution", re.IGNORECASE
)


def requests_with_fallback(history: History, stacks: StackTable) -> frozenset[int]:
    """Return the numbers of lifetimes that look like cuDNN workspaces.

    Where autograd's thread left no Python stack, a convolution anywhere in the recording is the sign.
    """
    asks = [any(_is_convolution(frame) for frame in stacks.resolve(number)) for number in range(len(stacks.stacks))]
    if not any(asks):
        return frozenset()
    is_bare = [all(is_native(frame.filename) for frame in stacks.resolve(number)) for number in range(len(asks))]
    possible = np.array(asks, dtype=bool) | np.array(is_bare, dtype=bool)
    lives = history.lifetimes
    brief = (lives.alloc_event >= 0) & (lives.free_event == lives.alloc_event + 1)
    return frozenset(np.flatnonzero(brief & possible[lives.stack]).tolist())


def _is_convolution(frame: Frame) -> bool:
    return _CONVOLUTION.search(frame.filename) is not None or _CONVOLUTION.search(frame.name) is not None
