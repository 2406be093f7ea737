"""Out of memory, explained: the cause that the evidence shows, its numbers, and the smallest change that fits."""

from __future__ import annotations

from gpumem_magic.analysis.oom.message import OomMessage, ProcessUse, parse_message
from gpumem_magic.analysis.oom.sizes import Size

__all__ = ["OomMessage", "ProcessUse", "Size", "parse_message"]
