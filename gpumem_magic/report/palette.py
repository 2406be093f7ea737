"""Colours of the static picture: the view's light theme (``labextension/src/view/draw/palette.ts``).

One line of code has one colour in the widget, in the HTML report and in the PNG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Group

__all__ = [
    "BACKGROUND",
    "BEFORE",
    "DANGER",
    "FOREGROUND",
    "GRID",
    "LINES",
    "MUTED",
    "OTHER",
    "SPIKES",
    "group_color",
]

BACKGROUND = "#ffffff"
FOREGROUND = "#1b1f24"
MUTED = "#5b6470"
GRID = "#e6e8eb"
DANGER = "#b3121d"
BEFORE = "#c6cad0"
OTHER = "#6d747d"
# What rose and fell between two columns of the picture.
SPIKES = "#b9bec6"
LINES = {
    "reserved": "#1b1f24",
    "device used": "#5b6470",
    "process used": "#0b62d6",
    "host used": "#5b6470",
    "pinned host": "#1a7f37",
    "limit": "#b3121d",
}

_UNKNOWN = "#8f969f"
_BEFORE = (BEFORE, "#b3b8c0", "#d5d8dc")
_SLOTS = (
    "#3698f9",
    "#e69228",
    "#1dbe84",
    "#cd61b6",
    "#7757e9",
    "#dd4b20",
    "#2a37c0",
    "#853f13",
    "#4f7b76",
    "#852b74",
)


def group_color(group: Group, nth_before: int = 0) -> str:
    """Return the fill of a group's band; bands of what was there before differ by `nth_before`."""
    if group.kind in {"line", "frame"}:
        return _SLOTS[group.color % len(_SLOTS)]
    if group.kind == "before":
        return _BEFORE[nth_before % len(_BEFORE)]
    return _UNKNOWN
