"""The notebook's memory as a ledger: one entry a measured run of a cell, and what of it is alive now.

model    entries and rows
blocks   which blocks of which device are alive, by the entry that made them
intake   a recording and its analysis, as an entry
ledger   the book itself, bounded
text     how it is printed

Pure: numpy in, dataclasses out.
"""

from __future__ import annotations

from gpumem_magic.ledger.intake import read_entry
from gpumem_magic.ledger.ledger import Ledger
from gpumem_magic.ledger.model import AliveDevice, AliveRow, Entry, EntryDevice, LiveBlocks, Tensors
from gpumem_magic.ledger.text import ledger_text, summary_line

__all__ = [
    "AliveDevice",
    "AliveRow",
    "Entry",
    "EntryDevice",
    "Ledger",
    "LiveBlocks",
    "Tensors",
    "ledger_text",
    "read_entry",
    "summary_line",
]
