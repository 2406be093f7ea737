"""A place in code in running text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import visible

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Group

__all__ = ["STATEMENT", "place_text"]

# The label of a line magic's one statement.
STATEMENT = "statement"
_SOURCE_LENGTH = 48


def _shortened(source: str) -> str:
    text = visible(" ".join(source.split()))
    # A backtick inside would end the quotation.
    text = text.replace("`", "'")
    return text if len(text) <= _SOURCE_LENGTH else text[: _SOURCE_LENGTH - 1].rstrip() + "…"


def place_text(group: Group) -> str:
    """Name a group in running text: ``line 4 `loss.backward()```, ``train.py:67 forward``, ``an unknown line``."""
    if group.kind in {"line", "frame"}:
        label = visible(group.label)
        if label == STATEMENT and group.source:
            return f"`{_shortened(group.source)}`"
        return f"{label} `{_shortened(group.source)}`" if group.source else label
    return visible(group.label)
