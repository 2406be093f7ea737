"""All stacks of torch's calls as a tree, and what each module in it is called.

A module is found by its identity, and named by its path below the nearest caller that holds it. Modules that are made
while the cell runs, ``nn.ReLU()(x)``, share nodes once there are many, so that a loop of millions fills no memory; what
a new module costs is a few µs, where a search of the whole model for each would be a hundred and more.
"""

from __future__ import annotations

import itertools
import weakref
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.module_paths import Parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["MAX_NODES", "CallTree", "Node"]

MAX_NODES = 65_536
# Modules that no caller holds have a node each, so that one of them can still be told its variable's name; of one
# class and under one caller, more than this many share those whose module is gone.
_STRANGERS = 16
# Reading a model anew, for a module that was not in it, may take this much of the time.
_FIRST_SECONDS = 0.001
_SHARE = 0.002
_NONE: dict[Any, Any] = {}  # of the many nodes that nothing is called from


class Node:
    """A call and its callers.

    A module is named by `tail`, its path below the module of `origin`; `origin` is the node itself where no caller's
    module holds it.

    Attributes
    ----------
    below
        The caller's node; None for the root.
    code
        What runs: the end of this code object ends the call.
    kin
        Calls from here: nodes by the identity of a living module or of a code object, and by what they are called.
    parts
        What the module's own modules are called, as far as that was asked for.
    strangers
        By class name, how many nodes from here are of modules that no caller holds, and those whose module is gone.
    """

    __slots__ = (
        "below", "code", "is_shared", "kin", "kind", "number", "origin", "parts", "ref", "strangers", "tail",
        "type_name",
    )  # fmt: skip

    def __init__(self, number: int, below: Node | None, code: CodeType | None, kind: str, type_name: str = "") -> None:
        self.number = number
        self.below = below
        self.code = code
        self.kind = kind
        self.type_name = type_name
        self.origin = self
        self.tail = ""
        self.is_shared = False
        self.ref: _Ref | None = None
        self.kin: dict[Any, Node] = _NONE
        self.parts: Parts | None = None
        self.strangers: dict[str, tuple[int, list[Node]]] | None = None


class _Ref(weakref.ref[Any]):
    """A module, and where its node is to be found: what makes the identity of a module that is gone mean nothing."""

    __slots__ = ("key", "node")

    key: int
    node: Node


def _let_go(ref: weakref.ref[Any]) -> None:
    """Forget a module that is gone. Its identity is not another's before this returns."""
    node: Node = ref.node  # type: ignore[attr-defined]
    below = node.below or node
    if below.kin.get(ref.key) is node:  # type: ignore[attr-defined]
        del below.kin[ref.key]  # type: ignore[attr-defined]
    if node.ref is ref and node.origin is node and below.strangers is not None:
        below.strangers[node.type_name][1].append(node)


class CallTree:
    """Makes and names nodes.

    Attributes
    ----------
    root
        No call is under way.
    is_full
        Some calls have no node of their own: they count as their caller's.
    """

    def __init__(self) -> None:
        self.root = Node(0, None, None, "")
        self.is_full = False
        # Without a lock, which a finalizer that calls a module, or a fork, could find taken: threads that meet here
        # make two nodes of one meaning, never two of one number.
        self._numbers = itertools.count(1)
        self._nodes = {0: self.root}
        self._began = perf_counter()
        self._spent = 0.0

    def of_kind(self, top: Node, code: CodeType, kind: str) -> Node:
        """Return the node of a call that is no module's."""
        node = top.kin.get(id(code))
        return node if node is not None else self._add(top, code, kind, kind, id(code))

    def of_module(self, top: Node, code: CodeType, module: Any) -> Node:
        """Return the node of a module that `Node.kin` does not have."""
        type_name = type(module).__name__
        caller: Node | None = top
        path = None
        while caller is not None:
            if caller.ref is not None and (parent := caller.ref()) is not None:
                path = self._path(caller, parent, module)
                if path is not None:
                    break
            caller = caller.below
        if caller is None or path is None:
            node = self._stranger(top, code, type_name)
        else:
            origin, tail = caller.origin, caller.tail + path
            meaning = (origin.number, tail, type_name)
            node = top.kin.get(meaning) or self._add(top, code, "module", type_name, meaning)
            node.origin, node.tail = origin, tail
        if node.number == top.number:
            return node  # no room: forgotten when it ends, it must be in no cycle, with its module as with itself
        node.parts = None
        node.ref = ref = _Ref(module, _let_go)
        ref.key, ref.node = id(module), node
        if top.kin is _NONE:
            top.kin = {}
        top.kin[id(module)] = node
        return node

    def _stranger(self, top: Node, code: CodeType, type_name: str) -> Node:
        if top.strangers is None:
            top.strangers = {}
        count, free = top.strangers.get(type_name) or (0, [])
        if count >= _STRANGERS and free:
            node = free.pop()
            node.is_shared = True
            return node
        top.strangers[type_name] = (count + 1, free)
        return self._add(top, code, "module", type_name)

    def _add(self, top: Node, code: CodeType, kind: str, type_name: str, key: Any = None) -> Node:
        if len(self._nodes) >= MAX_NODES:
            self.is_full = True
            node = Node(top.number, top, code, kind, type_name)
            node.origin = top.origin
            return node
        number = next(self._numbers)
        node = self._nodes[number] = Node(number, top, code, kind, type_name)
        if key is not None:
            if top.kin is _NONE:
                top.kin = {}
            top.kin[key] = node
        return node

    # Names

    def _path(self, caller: Node, parent: Any, module: Any) -> str | None:
        parts = caller.parts
        if parts is None:
            parts = caller.parts = Parts(parent)
        path = parts.path(module)
        if path is None and parts.is_read:
            # It may have joined the model since then. Its own modules are few; all of them are looked through again as
            # far as that is affordable.
            path = Parts(parent).path(module, levels=1)
            now = perf_counter()
            if path is None and self._spent <= _FIRST_SECONDS + _SHARE * (now - self._began):
                parts = caller.parts = Parts(parent)
                path = parts.path(module)
                self._spent += perf_counter() - now
        return path

    def named(self, name_of: Callable[[object], str | None]) -> list[tuple[tuple[str, str, str], ...]]:
        """Return each node's stack, innermost first, with the notebook's names at the beginning of paths.

        Parameters
        ----------
        name_of
            How the notebook calls a module that no other one holds; None when it has no name for it.
        """
        origins: dict[int, str] = {}
        # Once, as another thread may be in the middle of adding one.
        numbers = sorted(self._nodes)
        stacks: list[tuple[tuple[str, str, str], ...]] = [()] * (numbers[-1] + 1)
        for number in numbers[1:]:
            node = self._nodes[number]
            name = node.kind
            if node.kind == "module":
                origin = node.origin
                if origin.number not in origins:
                    module = origin.ref() if origin.ref is not None and not origin.is_shared else None
                    known = None if module is None else name_of(module)
                    origins[origin.number] = known or origin.type_name
                name = origins[origin.number] + node.tail
            below = stacks[node.below.number] if node.below is not None else ()
            stacks[number] = ((node.kind, name, node.type_name), *below)
        return stacks
