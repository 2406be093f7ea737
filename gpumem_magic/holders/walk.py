"""Breadth-first walk over Python references, from named roots, within a time budget.

It follows what the garbage collector sees (``gc.get_referents``), so that no code of the objects runs, and stays out
of what every object reaches anyway: modules, library classes, function globals.
"""

from __future__ import annotations

import contextvars
import gc
import types
from collections import deque
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.edges import describe_chain, key_text, own_attributes
from gpumem_magic.holders.foreign import Foreign
from gpumem_magic.holders.kinds import KindTable
from gpumem_magic.holders.suspended import locals_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumem_magic.holders.budget import Budget
    from gpumem_magic.holders.roots import Root
    from gpumem_magic.holders.tensors import Torch

__all__ = ["Walk"]

# Objects of these types hold nothing of interest. `type` itself is looked at apart.
_LEAVES = frozenset(
    id(kind)
    for kind in (
        *(str, bytes, bytearray, int, float, complex, bool, range, slice),
        *(type(None), type(Ellipsis), type(NotImplemented)),
        *(types.CodeType, types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
        # Every task and timer has one, and each shows all context variables: they are roots of their own.
        contextvars.Context,
    )
)
_LEAF, _PLAIN, _MAPPING, _CODE, _MEMORY, _FOREIGN, _SAVED, _SCRIPT = range(8)
_SEEN = frozenset({_MEMORY, _FOREIGN})
_CHECK_CLOCK_EVERY = 512
# Of one object's children, before the clock is looked at: some 5 ms.
_LONGEST = 10_000
# Of a path; what a person reads is shorter.
_MOST_LINKS = 40
# Looking for a child in a longer list costs more than an index of it, when it holds many.
_LONG = 32


class Walk:
    """What is reachable from the roots given so far, and how.

    Parameters
    ----------
    budget
        When the walk stops.
    tensors
        Knows torch: which types are tensors, and what a tensor holds beyond what the garbage collector sees.
    """

    def __init__(self, budget: Budget, tensors: Torch) -> None:
        self.cut = False
        self.visited: dict[int, object] = {}
        self.tensors: list[object] = []
        self.foreign: list[object] = []
        self.roots_of: dict[int, list[Root]] = {}
        self._budget = budget
        self._tensors = tensors
        self._foreign = Foreign()
        self._parent: dict[int, int] = {}
        self._top: dict[int, int] = {}
        self._stop: set[int] = set()
        self._sorts = KindTable[int]()
        self._keys: deque[tuple[object, object]] = deque()
        self._paths: dict[int, tuple[Root, str]] = {}
        self._positions: dict[int, dict[int, str]] = {}

    def keep_out(self, values: Iterable[object]) -> None:
        """Never enter these objects (namespaces themselves, our own structures)."""
        self._stop.update(map(id, values))

    def let_in(self, values: Iterable[object]) -> None:
        """Enter these objects from now on."""
        self._stop.difference_update(map(id, values))

    def run(self, roots: Iterable[Root]) -> None:
        """Visit everything that is reachable from `roots` and was not reached before."""
        queue: deque[object] = deque()
        for root in roots:
            value = root.value
            key = id(value)
            if self._sort(type(value)) == _LEAF or key in self._stop:
                continue
            self.roots_of.setdefault(key, []).append(root)
            if key not in self.visited:
                self.visited[key] = value
                self._top[key] = key
                self._see(value)
                queue.append(value)
        # An optimizer reaches every parameter by a shorter, less telling path than the model does: it comes last.
        last: deque[object] = deque()
        self._keys.clear()
        sorts, visited, stop, parents, tops = self._sorts.by_id, self.visited, self._stop, self._parent, self._top
        count = 0
        while queue or last or self._take_key(queue):
            count += 1
            if count % _CHECK_CLOCK_EVERY == 0 and self._budget.is_spent():
                self.cut = True
                return
            holder = queue.popleft() if queue else last.popleft()
            if queue and issubclass(type(holder), self._tensors.optimizer_type):
                last.append(holder)
                continue
            number = id(holder)
            top = tops[number]
            below = self._referents(holder)
            children = below if len(below) <= _LONGEST else self._in_parts(below)
            for child in children:
                sort = sorts.get(id(type(child)))
                if sort is None:
                    sort = self._sort(type(child))
                key = id(child)
                if sort == _LEAF or key in visited or key in stop:
                    continue
                visited[key] = child
                parents[key] = number
                tops[key] = top
                if sort in _SEEN:
                    self._see(child)
                queue.append(child)

    def _in_parts(self, children: list[object]) -> Iterator[object]:
        """Yield what one object holds as long as there is time: a list may have a million items."""
        for first in range(0, len(children), _LONGEST):
            if self._budget.is_spent():
                self.cut = True
                return
            yield from children[first : first + _LONGEST]

    def _sort(self, kind: type) -> int:
        """Tell how objects of type `kind` are followed; asked once for each type."""
        known = self._sorts.get(kind)
        if known is None:
            if id(kind) in _LEAVES:
                known = _LEAF
            elif self._tensors.holds_memory(kind):
                known = _MEMORY
            elif kind is self._tensors.saved_type:
                known = _SAVED
            elif kind is self._tensors.script_type:
                known = _SCRIPT
            elif self._foreign.name(kind):
                known = _FOREIGN
            elif kind is types.FunctionType or kind is types.FrameType or issubclass(kind, type):
                known = _CODE
            else:
                known = _MAPPING if issubclass(kind, dict) else _PLAIN
            self._sorts.put(kind, known)
        return known

    def _take_key(self, queue: deque[object]) -> bool:
        """Queue a tensor that is a key of a dict, when nothing else is left: every other path tells more."""
        while self._keys:
            mapping, key = self._keys.popleft()
            if id(key) not in self.visited:
                self.visited[id(key)] = key
                self._parent[id(key)] = id(mapping)
                self._top[id(key)] = self._top[id(mapping)]
                self._see(key)
                queue.append(key)
                return True
        return False

    def _see(self, value: object) -> None:
        sort = self._sort(type(value))
        if sort == _MEMORY:
            self.tensors.append(value)
        elif sort == _FOREIGN:
            self.foreign.append(value)

    def _referents(self, holder: Any) -> list[object]:
        sort = self._sort(type(holder))
        if sort == _MAPPING and self._has_tensor_keys(holder):
            self._keys.extend((holder, key) for key in dict.keys(holder))
            return list(dict.values(holder))
        if sort in {_PLAIN, _MAPPING}:
            return gc.get_referents(holder)
        if sort == _CODE:
            return _of_code(holder)
        if sort == _FOREIGN:
            return self._foreign.referents(holder)
        if sort == _SAVED:
            return self._tensors.saved(holder)
        if sort == _SCRIPT:
            return list(self._tensors.scripted(holder).values())
        return self._tensors.referents(holder) if self._tensors.is_tensor(type(holder)) else []

    def path_to(self, value: object) -> tuple[Root, str] | None:
        """Return the root and the path that reach `value`, or None when it was not reached."""
        known = self._paths.get(id(value))
        if known is not None or id(value) not in self.visited:
            return known
        chain = [value, *self.parents(value)][::-1]
        top = self._top[id(value)]
        root = self.roots_of[top][0]
        # A linked list's path is as long as the list.
        label = root.label if id(chain[0]) == top else f"{root.label} …"
        found = self._paths[id(value)] = root, describe_chain(label, chain, self._describe)
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
        if (type(parent) is list or type(parent) is tuple) and len(parent) > _LONG:
            return self._position(parent, child)
        if type(parent) is dict and len(parent) > _LONG and not self._has_tensor_keys(parent):
            return self._position(parent, child)
        if issubclass(type(parent), dict):
            for key, value in list(dict.items(parent)):
                # An optimizer's state is keyed by the parameter itself: its own path says which.
                if value is child and self._tensors.is_tensor(type(key)):
                    reached = self.path_to(key)
                    return f"[{reached[1]}]" if reached is not None else None
        return self._tensors.describe(parent, child) or self._foreign.describe(parent, child)

    def _has_tensor_keys(self, mapping: dict[Any, Any]) -> bool:
        return self._tensors.is_tensor(type(next(dict.__iter__(mapping), None)))

    def shown_by(self) -> list[tuple[int, Root, str]]:
        """Return the address, root and path of each object of another library that may lie over a tensor's memory."""
        found = []
        for value in self.foreign:
            address, reached = self._foreign.address(value), self.path_to(value)
            if address and reached is not None:
                found.append((address, reached[0], f"{reached[1]} ({self._foreign.name(type(value))})"))
        return found

    def shows_borrowed(self) -> bool:
        """Tell whether one of these objects may lie over memory whose tensor no path leads to."""
        return any(self._foreign.is_borrowed(value) and self._foreign.address(value) for value in self.foreign)

    def is_kept_out(self, value: object) -> bool:
        """Tell whether the walk never enters an object that is alive all the same."""
        return id(value) in self._stop

    def parents(self, value: object) -> list[object]:
        """Return the objects between a root and `value`, nearest first; of a long way the nearest ones alone."""
        found: list[object] = []
        key = id(value)
        while key in self._parent and len(found) < _MOST_LINKS:
            key = self._parent[key]
            found.append(self.visited[key])
        return found


def _of_code(holder: Any) -> list[object]:
    """Return what a function, class or frame holds, without what every one of them reaches."""
    if type(holder) is types.FunctionType:
        # Not the globals: every function of a notebook reaches every variable through them.
        return [*(holder.__closure__ or ()), holder.__defaults__, holder.__kwdefaults__, holder.__dict__]
    if type(holder) is types.FrameType:
        return [] if holder.f_code.co_name == "<module>" else [value for _, value in locals_of(holder)]
    # Library classes hold code; a class of the notebook may hold a cache.
    own = own_attributes(holder)
    return list(own.values()) if own.get("__module__") == "__main__" else []
