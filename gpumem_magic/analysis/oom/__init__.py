"""Out of memory, explained: the cause that the evidence shows, its numbers, and the smallest change that fits.

message, sizes   what the error says
state            what the allocator held when it happened, from the events
settings         what the environment asks for, and what torch took
accidents        what the notebook kept without meaning to
evidence         all of that put together
verdict          which cause it shows
words, cures     the same for a reader
diagnose         the way in
"""

from __future__ import annotations

from gpumem_magic.analysis.oom.diagnose import OomVerdict, diagnose
from gpumem_magic.analysis.oom.message import OomMessage, ProcessUse, parse_message
from gpumem_magic.analysis.oom.sizes import Size
from gpumem_magic.analysis.oom.state import OomState, oom_state
from gpumem_magic.analysis.oom.verdict import Cause

__all__ = [
    "Cause",
    "OomMessage",
    "OomState",
    "OomVerdict",
    "ProcessUse",
    "Size",
    "diagnose",
    "oom_state",
    "parse_message",
]
