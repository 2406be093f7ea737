"""Allocations of CPU tensors, through torch's own profiler.

torch keeps no allocator history for the CPU. Its profiler reports every allocation and free with address and time.

What it cannot see: allocations made in other Python threads, NumPy's memory, and frees of tensors that were made while
nothing was recorded.
"""

from __future__ import annotations

from gpumem_magic.recording.cpu.source import CpuSource

__all__ = ["CpuSource"]
