"""What a recording means: timeline, peak, owners, the sentence. Pure: no torch, IPython, NVML or clock."""

from __future__ import annotations

from gpumem_magic.analysis.build import analyse, analyse_trace
from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Group, Headline, Lane, Marker, Row, Timeline

__all__ = [
    "Analysis",
    "DeviceAnalysis",
    "Group",
    "Headline",
    "Lane",
    "Marker",
    "Row",
    "Timeline",
    "analyse",
    "analyse_trace",
]
