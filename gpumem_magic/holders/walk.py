"""Breadth-first walk over Python references, from named roots, within a time budget.

It follows what the garbage collector sees (``gc.get_referents``), so that no code of the objects runs, and stays out
of what every object reaches anyway: modules, library classes, function globals.
"""

from __future__ import annotations

import gc
import time
import types
from collections import deque
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.edges import describe_chain, key_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumem_magic.holders.roots import Root
    from gpumem_magic.holders.tensors import Torch

__all__ = ["Walk"]

# Objects of these types hold nothing of interest. `type` itself is looked at apart.
_LEAVES = frozenset(
    {
        *(str, bytes, bytearray, int, float, complex, bool, range, slice),
        *(type(None), type(Ellipsis), type(NotImplemented)),
        *(types.CodeType, types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    }
)
_CHECK_CLOCK_EVERY = 512
# Looking for a child in a longer list costs more than an index of it, when it holds many.
_LONG = 32


class Walk:
    """What is reachable from the roots given so far, and how.

    Parameters
    ----------
    deadline
        ``time.monotonic()`` at which the walk stops.
    tensors
        Knows torch: which types are tensors, and what a tensor holds beyond what the garbage collector sees.
    """

    def __init__(self, deadline: float, tensors: Torch) -> None:
        self.cut = False
        self.visited: dict[int, object] = {}
        self.tensors: list[object] = []
        self.roots_of: dict[int, list[Root]] = {}
        self._deadline = deadline
        self._tensors = tensors
        self._parent: dict[int, int] = {}
        self._stop: set[int] = set()
        self._paths: dict[int, tuple[Root, str]] = {}
        self._positions: dict[int, dict[int, str]] = {}

    def keep_out(self, values: Iterable[object]) -> None:
        """Never enter these objects (namespaces themselves, our own structures)."""
        self._stop.update(map(id, values))

    def run(self, roots: Iterable[Root]) -> None:
        """Visit everything that is reachable from `roots` and was not reached before."""
        queue: deque[object] = deque()
        for root in roots:
            value = root.value
            key = id(value)
            if type(value) in _LEAVES or key in self._stop:
                continue
            self.roots_of.setdefault(key, []).append(root)
            if key not in self.visited:
                self.visited[key] = value
                self._see(value)
                queue.append(value)
        # An optimizer reaches every parameter by a shorter, less telling path than the model does: it comes last.
        last: deque[object] = deque()
        count = 0
        while queue or last:
            count += 1
            if count % _CHECK_CLOCK_EVERY == 0 and time.monotonic() > self._deadline:
                self.cut = True
                return
            holder = queue.popleft() if queue else last.popleft()
            if queue and issubclass(type(holder), self._tensors.optimizer_type):
                last.append(holder)
                continue
            for child in self._referents(holder):
                key = id(child)
                if type(child) in _LEAVES or key in self.visited or key in self._stop:
                    continue
                self.visited[key] = child
                self._parent[key] = id(holder)
                self._see(child)
                queue.append(child)

    def _see(self, value: object) -> None:
        if self._tensors.is_tensor(type(value)):
            self.tensors.append(value)

    def _referents(self, holder: Any) -> list[object]:
        kind = type(holder)
        if self._tensors.is_tensor(kind):
            return self._tensors.referents(holder)
        if kind is types.FunctionType:
            # Not the globals: every function of a notebook reaches every variable through them.
            return [*(holder.__closure__ or ()), holder.__defaults__, holder.__kwdefaults__, holder.__dict__]
        if issubclass(kind, type):
            # Library classes hold code; a class of the notebook may hold a cache.
            return list(vars(holder).values()) if holder.__module__ == "__main__" else []
        if kind is types.FrameType:
            return [] if holder.f_code.co_name == "<module>" else list(holder.f_locals.values())
        return gc.get_referents(holder)

    def path_to(self, value: object) -> tuple[Root, str] | None:
        """Return the root and the path that reach `value`, or None when it was not reached."""
        known = self._paths.get(id(value))
        if known is not None or id(value) not in self.visited:
            return known
        chain = [value, *self.parents(value)][::-1]
        root = self.roots_of[id(chain[0])][0]
        found = self._paths[id(value)] = root, describe_chain(root.label, chain, self._describe)
        return found

    def _position(self, parent: Any, child: object) -> str | None:
        """Return where in a long list, tuple or dict a child is, by an index that is made once."""
        known = self._positions.get(id(parent))
        if known is None:
            pairs = dict.items(parent) if type(parent) is dict else enumerate(parent)
            # The first one counts, as in a search.
            known = self._positions[id(parent)] = {id(item): key_text(key) for key, item in reversed(list(pairs))}
        text = known.get(id(child))
        return None if text is None else f"[{text}]"

    def _describe(self, parent: Any, child: object) -> str | None:
        if type(parent) in {list, tuple} and len(parent) > _LONG:
            return self._position(parent, child)
        if type(parent) is dict and len(parent) > _LONG and not self._has_tensor_keys(parent):
            return self._position(parent, child)
        if issubclass(type(parent), dict):
            for key, value in list(dict.items(parent)):
                # An optimizer's state is keyed by the parameter itself: its own path says which.
                if value is child and self._tensors.is_tensor(type(key)):
                    reached = self.path_to(key)
                    return f"[{reached[1]}]" if reached is not None else None
        return self._tensors.describe(parent, child)

    def _has_tensor_keys(self, mapping: dict[Any, Any]) -> bool:
        return self._tensors.is_tensor(type(next(iter(mapping), None)))

    def parents(self, value: object) -> list[object]:
        """Return the objects between a root and `value`, nearest first."""
        found = []
        key = id(value)
        while key in self._parent:
            key = self._parent[key]
            found.append(self.visited[key])
        return found
