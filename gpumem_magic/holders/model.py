"""What a scan for holders found: plain values, no tensor, frame or module kept."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import weakref
    from collections.abc import Mapping

__all__ = ["Bound", "Category", "Holder", "HolderKind", "HolderScan", "LiveModel", "Storage"]


class HolderKind(enum.Enum):
    """What kind of thing keeps memory alive, in the order of how much a user can do about it."""

    VARIABLE = "variable"
    OUTPUT = "output history"
    LAST_ERROR = "last error"
    HANDLED_THEN = "error that was being handled"
    HANDLED_ERROR = "error being handled"
    DEBUGGER = "debugger"
    RUNNING = "running code"
    GRAPH = "autograd graph"
    COMPILE_CACHE = "compile cache"
    MODULE = "imported module"
    CYCLE = "reference cycle"
    GRAPH_CYCLE = "cycle through the autograd graph"
    OUTSIDE = "C code"
    UNKNOWN = "no Python holder found"


class Category(enum.Enum):
    """What a tensor is for, as far as its holder tells."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer state"
    ACTIVATION = "activation"
    OTHER = "tensor"


@dataclass(frozen=True)
class Holder:
    """One way to reach a storage.

    `path` is what a user could type or recognise: ``trainer.model.layers[3].weight``, ``Out[7]``,
    ``last error: ValueError in train(), local `acts```. `root` is its beginning alone.
    """

    kind: HolderKind
    path: str
    root: str


@dataclass(frozen=True)
class Storage:
    """One live tensor storage.

    Attributes
    ----------
    device
        ``"cuda:0"``, ``"cpu"``.
    address
        Device address of its first byte.
    size
        Bytes of the storage, counted once however many tensors share it.
    tensors
        Python tensors that share it.
    shape, dtype
        Of the largest of these tensors.
    category
        What it is for.
    holders
        Ways to reach it, the most useful first; never empty.
    graph_nodes
        Autograd nodes between the holder and this storage, 0 when it is held directly.
    shared
        It lies in memory that processes share: a loader's workers hand their batches over in it.
    """

    device: str
    address: int
    size: int
    tensors: int
    shape: tuple[int, ...]
    dtype: str
    category: Category
    holders: tuple[Holder, ...]
    graph_nodes: int = 0
    shared: bool = False


class LiveModel(NamedTuple):
    """A module that is no part of another one: its class, its storages by (device, address), and their bytes."""

    name: str
    storages: frozenset[tuple[str, int]]
    bytes: int


class Bound(NamedTuple):
    """A container that takes `most` items, and has `items` now."""

    items: int
    most: int


@dataclass(frozen=True)
class HolderScan:
    """The outcome of one scan.

    Attributes
    ----------
    storages
        Largest first.
    objects
        Python objects visited.
    seconds
        How long it took.
    cut
        Why it ended early, or None when it is complete.
    graphs
        Root path → autograd nodes that it keeps alive, for roots that keep more than a handful.
    witnesses
        A weak reference to one tensor of each storage, by (device, address).
    idle
        Variables that the code in question does not use, directly or through a function of the notebook, and no recent
        cell did: name → when it was used last, in words. A storage that a variable in use reaches too is never held by
        one of these.
    bounds
        Path → a container on holders' paths that takes only so much.
    foreign
        Address → path of another library's object, for those over memory that no tensor of Python's has.
    models
        Modules that are no part of another one; empty in a quick scan.
    former
        (Device, address) → class, for what objects keep whose class has been defined again since.
    hooks
        Path and hooks of each module that has hooks and keeps tensors as plain attributes.
    """

    storages: tuple[Storage, ...]
    objects: int
    seconds: float
    cut: str | None
    graphs: tuple[tuple[str, int], ...] = ()
    witnesses: Mapping[tuple[str, int], weakref.ref[Any]] = field(default_factory=dict, repr=False, compare=False)
    idle: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    foreign: Mapping[int, str] = field(default_factory=dict)
    models: tuple[LiveModel, ...] = ()
    former: Mapping[tuple[str, int], str] = field(default_factory=dict)
    hooks: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_cut(self) -> bool:
        """True when it ended early though there are tensors to look at."""
        return self.cut is not None and self.objects > 0

    def total(self, device: str | None = None) -> int:
        """Sum the bytes of all storages, of one device when named."""
        return sum(storage.size for storage in self.storages if device is None or storage.device == device)
