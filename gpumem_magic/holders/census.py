"""Which modules, optimizers and tensors are alive.

Only Python's collector knows all objects, and a notebook's process has 350,000 of them: 15 to 35 ms to look through, at
the end of each measured cell. What was alive at the last look is known, though, as weak references, and what is new
since then is in the collector's young generations, some thousand objects, unless these were collected meanwhile.
Whether they were is told by a list that was made before the last look: generations only ever become older as a whole,
so that nothing made after it can be in an older one than the list itself. What was frozen is in no generation, and
comes back into the oldest one.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.kinds import family, of_kinds, tracked

if TYPE_CHECKING:
    from gpumem_magic.holders.tensors import Torch

__all__ = ["Census", "census"]

# Since 3.14 the second generation is the old one.
_IS_OLD_IN_PARTS = sys.version_info >= (3, 14)
_MOST_KNOWN = 20_000  # 100 bytes each
_Found = tuple[list[Any], list[Any], list[Any]]


class Census:
    """Counts what is alive, again and again. Keeps nothing alive; the collector must not run meanwhile."""

    def __init__(self) -> None:
        self._first_later: list[object] | None = None  # older than all that the next look has to find
        self._known: tuple[list[weakref.ref[Any]], ...] = ((), (), ())  # type: ignore[assignment]
        self._frozen = 0
        self._lock = threading.Lock()

    def alive(self, torch: Torch) -> _Found:
        """Return the modules, optimizers and tensors that Python's collector tracks, the newest first."""
        families = (torch.module_type, torch.optimizer_type, torch.tensor_type)
        wanted = [(kind, index) for index, root in enumerate(families) for kind in family(root)]
        if not self._lock.acquire(blocking=False):
            return _everything(wanted)
        try:
            first_later: list[object] = []
            young = self._young()
            found = _everything(wanted) if young is None else _chosen(young, wanted)
            if young is not None:
                for new, known in zip(found, self._known, strict=True):
                    seen = set(map(id, new))
                    new += [value for ref in known if (value := ref()) is not None and id(value) not in seen]
            self._first_later = None
            self._known = ([], [], [])
            if sum(map(len, found)) <= _MOST_KNOWN:
                try:
                    self._known = tuple(list(map(weakref.ref, values)) for values in found)
                except TypeError:  # of a class without weak references
                    return found
                self._first_later, self._frozen = first_later, gc.get_freeze_count()
            return found
        finally:
            self._lock.release()

    def _young(self) -> tuple[list[Any], ...] | None:
        """Return all objects that are new since the last look, and others; None when they cannot be told.

        A list of objects must never be put into one that was made before it, and which it therefore holds.
        """
        if self._first_later is None or gc.get_freeze_count() != self._frozen:
            return None
        youngest = gc.get_objects(0)
        if id(self._first_later) in map(id, youngest):
            return (youngest,)
        if _IS_OLD_IN_PARTS:
            return None
        young = gc.get_objects(1)
        return (youngest, young) if id(self._first_later) in map(id, young) else None


def _everything(wanted: list[tuple[type, int]]) -> _Found:
    return _chosen((tracked(kind for kind, _ in wanted),), wanted)


def _chosen(lists: tuple[list[Any], ...], wanted: list[tuple[type, int]]) -> _Found:
    found: _Found = ([], [], [])
    which = {id(kind): index for kind, index in wanted}
    for objects in lists:
        for value in of_kinds(objects, (kind for kind, _ in wanted)):
            found[which[id(type(value))]].append(value)
    return found


census = Census()
