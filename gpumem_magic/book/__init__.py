"""The notebook's memory as a ledger: one entry a measured run of a cell, and what of it is alive now.

model    entries and rows
blocks   which blocks of which device are alive, by the entry that made them
intake   a recording and its analysis, as an entry
reruns   what runs of the same cell leave, one after another
ledger   the book itself, bounded
text     how it is printed

Pure: numpy in, dataclasses out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._lazy import names_from

if TYPE_CHECKING:
    from gpumem_magic.book.intake import read_entry
    from gpumem_magic.book.ledger import Ledger
    from gpumem_magic.book.model import (
        AliveDevice,
        AliveRow,
        Entry,
        EntryDevice,
        LedgerView,
        LiveBlocks,
        Origin,
        Tensors,
    )
    from gpumem_magic.book.text import ledger_text, summary_line
else:
    __getattr__ = names_from(
        __name__,
        {
            "intake": "read_entry",
            "ledger": "Ledger",
            "model": "AliveDevice AliveRow Entry EntryDevice LedgerView LiveBlocks Origin Tensors",
            "text": "ledger_text summary_line",
        },
    )

__all__ = [
    "AliveDevice",
    "AliveRow",
    "Entry",
    "EntryDevice",
    "Ledger",
    "LedgerView",
    "LiveBlocks",
    "Origin",
    "Tensors",
    "ledger_text",
    "read_entry",
    "summary_line",
]
