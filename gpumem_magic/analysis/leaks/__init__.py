"""What grows with every iteration of a loop, and what only looks so. Pure.

model     verdicts
loops     a cell's loops, and when each iteration began, by the line marks
evidence  survivors by iteration, and what they prove
period    repetition without lines
lives     what was allocated, as columns
find      one device
keepers   what keeps a leak alive, from a scan for holders
words     the same in words
remedies  what to do about it
plain     the same as plain values, for the view
check     whether a promise to leak nothing holds
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._lazy import names_from

if TYPE_CHECKING:
    from gpumem_magic.analysis.leaks.find import Scene, find_growth
    from gpumem_magic.analysis.leaks.keepers import name_keepers, with_keepers, with_leaks
    from gpumem_magic.analysis.leaks.model import Growth, Keeper, Leak, LeakLine, Once
    from gpumem_magic.analysis.leaks.words import headline
else:
    __getattr__ = names_from(
        __name__,
        {
            "find": "Scene find_growth",
            "keepers": "name_keepers with_keepers with_leaks",
            "model": "Growth Keeper Leak LeakLine Once",
            "words": "headline",
        },
    )

__all__ = [
    "Growth",
    "Keeper",
    "Leak",
    "LeakLine",
    "Once",
    "Scene",
    "find_growth",
    "headline",
    "name_keepers",
    "with_keepers",
    "with_leaks",
]
