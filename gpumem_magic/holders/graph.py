"""What the autograd graph behind a tensor keeps alive: nodes, and the tensors that they saved for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.holders.kinds import KindTable

if TYPE_CHECKING:
    from gpumem_magic.holders.budget import Budget
    from gpumem_magic.holders.tensors import Torch

__all__ = ["GraphWalk", "Packed", "Saved"]


_SIMPLE = frozenset(map(id, (bool, int, float, complex, str, bytes, type(None))))


class Saved(NamedTuple):
    """A tensor that a node keeps, how it is called there, and how many nodes were passed to get to it."""

    tensor: object
    name: str
    nodes: int


class Packed(NamedTuple):
    """What a node keeps that is no tensor and may hold some: what a pack hook made, a hook, an attribute of ``ctx``."""

    value: object
    name: str


class GraphWalk:
    """Walk graphs once, however many tensors share them.

    Saved tensors are read through ``SavedTensor.data``, which unpacks nothing: the unpack hook of a checkpoint would
    run its forward again. torch versions without it show nodes, but not what they saved.
    """

    def __init__(self, torch: Torch, budget: Budget) -> None:
        self.cut = False
        self.packed: list[Packed] = []
        self._torch = torch
        self._budget = budget
        self._seen: dict[int, object] = {}
        # Where graphs of their own begin that a ctx keeps with a tensor.
        self._inner: list[object] = []
        self._saved_names = KindTable[tuple[str, ...]]()

    def behind(self, tensor: object) -> tuple[list[Saved], int]:
        """Return what the graph of `tensor` saved, and its number of nodes that were not met before."""
        start = self._torch.grad_fn(tensor)
        saved: list[Saved] = []
        count = 0
        pending = [] if start is None else [start]
        while pending:
            node: Any = pending.pop()
            if id(node) in self._seen:
                continue
            # Kept, so that the id stays this node's.
            self._seen[id(node)] = node
            count += 1
            if count % 256 == 0 and self._budget.is_spent():
                self.cut = True
                break
            saved += self._saved_by(node, count)
            pending += [child for child, _ in node.next_functions if child is not None]
            pending += self._inner
            self._inner.clear()
        return saved, count

    def _names(self, node: object) -> tuple[str, ...]:
        kind = type(node)
        names = self._saved_names.get(kind)
        if names is None:
            names = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
            self._saved_names.put(kind, names)
        return names

    def _saved_by(self, node: Any, count: int) -> list[Saved]:
        found: list[Saved] = []
        kind = type(node).__name__
        for name in self._names(node):
            try:
                raw = getattr(node, name)
            except RuntimeError:
                continue  # freed by backward: nothing is held any more
            for item in raw if isinstance(raw, (list, tuple)) else (raw,):
                value = getattr(item, "data", None)
                text = f"{kind}.{name.removeprefix('_raw_')}"
                if value is not None and self._torch.is_tensor(type(value)):
                    found.append(Saved(value, text, count))
                elif value is not None:
                    self.packed.append(Packed(value, f"{text}, packed by a hook"))
                    # What it will be made from again: of a checkpoint, its inputs. (Not in older torch versions.)
                    hook = getattr(item, "unpack_hook", None)
                    self.packed += [] if hook is None else [Packed(hook, f"{text}, for its unpack hook")]
        # A custom Function's ctx: what forward() stored as plain attributes lives as long as the graph.
        attributes = getattr(node, "__dict__", None)
        for name, value in list(attributes.items()) if type(attributes) is dict else ():
            if self._torch.is_tensor(type(value)):
                found.append(Saved(value, f"{kind} attribute `{name}`", count))
                inner = self._torch.grad_fn(value)
                self._inner += [] if inner is None else [inner]
            elif id(type(value)) not in _SIMPLE:
                self.packed.append(Packed(value, f"{kind} attribute `{name}`"))
        variable = getattr(node, "variable", None)  # AccumulateGrad
        if variable is not None:
            found.append(Saved(variable, f"{kind}.variable", count))
        return found
