"""The part that knows torch: which objects are tensors, what they hold, their storages. torch is never imported here.

Every access is guarded: other people's objects may be dead proxies, fake or functional tensors without storage.
"""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.holders.edges import ancestors, own_attributes
from gpumem_magic.holders.kinds import KindTable, family, tracked

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

__all__ = ["StorageKey", "Torch", "form", "live_tensors", "loaded_torch"]

# Tensors of these layouts have no storage of their own: their memory is that of inner tensors.
_INNER = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# What torch raises for tensors without a storage of their own: sparse, fake, functional, meta.
_NO_STORAGE = (RuntimeError, NotImplementedError, AttributeError, TypeError, ReferenceError, ValueError)


class StorageKey(NamedTuple):
    """Identity and size of a storage."""

    device: str
    address: int
    size: int


def loaded_torch() -> Torch | None:
    """Return what is needed of torch if the process has imported it, else None."""
    module = sys.modules.get("torch")
    if module is None or not hasattr(module, "Tensor"):
        return None
    return Torch(module)


class Torch:
    """torch as the holders need it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.tensor_type: Any = module.Tensor
        self.parameter_type: type = module.nn.Parameter
        self.module_type: type = module.nn.Module
        self.optimizer_type: type = module.optim.Optimizer
        self._strided = module.strided
        # `UntypedStorage` holds memory without being a tensor.
        self.storage_type: Any = getattr(module, "UntypedStorage", None)
        # What autograd keeps of a tensor, where Python code holds such a thing itself (checkpoints, torch 2.13).
        self.saved_type: Any = getattr(getattr(getattr(module, "_C", None), "_autograd", None), "SavedTensor", None)
        # The C++ side of a scripted or traced module, which has the tensors.
        self.script_type: Any = getattr(getattr(module, "_C", None), "ScriptModule", None)
        self._is_tensor = KindTable[bool]()
        self._parts: dict[int, tuple[object, dict[str, Any]]] = {}

    def is_tensor(self, kind: type) -> bool:
        """Tell whether objects of type `kind` are tensors; no object's own code runs."""
        known = self._is_tensor.get(kind)
        if known is None:
            known = self._is_tensor.put(kind, type.__subclasscheck__(self.tensor_type, kind))
        return known

    def undisturbed(self) -> AbstractContextManager[object]:
        """Read tensors of the user's own classes without running their ``__torch_function__``."""
        disable = getattr(getattr(self.module, "_C", None), "DisableTorchFunctionSubclass", None)
        found: AbstractContextManager[object] = nullcontext() if disable is None else disable()
        return found

    def own(self) -> list[object]:
        """Return what this object keeps of others: no holders."""
        found: list[object] = [self._parts, self.__dict__]
        for entry in self._parts.values():
            found += (entry, entry[1])
        return found

    def read(self, tensor: object, name: str) -> Any:
        """Return an attribute as the base class has it, None where it has none: a subclass may have its own."""
        try:
            return getattr(self.tensor_type, name).__get__(tensor)
        except _NO_STORAGE:
            return None

    def holds_memory(self, kind: type) -> bool:
        """Tell whether objects of type `kind` are tensors, or storages without one."""
        return self.is_tensor(kind) or kind is self.storage_type

    def parts(self, tensor: Any) -> dict[str, Any]:
        """Return the inner tensors of a sparse tensor by the method that gives them; empty for all others."""
        layout = self.read(tensor, "layout")
        if layout is self._strided or layout is None:
            return {}
        known = self._parts.get(id(tensor))
        if known is None:
            found = {}
            for name in _INNER.get(str(layout), ()):
                try:
                    found[name] = getattr(self.tensor_type, name)(tensor)
                except _NO_STORAGE:
                    continue
            # Each call makes new objects, which would have other identities; the tensor is kept so that its id is its.
            known = self._parts[id(tensor)] = tensor, found
        return known[1]

    def storage(self, tensor: Any) -> StorageKey | None:
        """Return the storage of `tensor` (or of a storage itself), or None when it has none of its own."""
        try:
            # The base class's methods: a subclass may intercept its own.
            is_storage = type(tensor) is self.storage_type
            storage = tensor if is_storage else self.tensor_type.untyped_storage(tensor)
            device = str(storage.device)
            # The compiler's fake tensors say "meta", and asking them for an address warns.
            if device == "meta":
                return None
            size = int(storage.nbytes())
            address = int(storage.data_ptr())
        except _NO_STORAGE:
            return None
        if size == 0 or address == 0:
            return None
        return StorageKey("cpu" if device.startswith("cpu") else device, address, size)

    def referents(self, tensor: Any) -> list[object]:
        """Return what a tensor holds: gradient, attributes, hooks; not its graph, nor the base of a view.

        A view shares its base's storage, so the base would add nothing but a longer path.
        """
        found = [item for item in gc.get_referents(tensor) if not self.is_node(item)]
        found += self.parts(tensor).values()
        gradient = self.gradient(tensor)
        return found if gradient is None else [*found, gradient]

    def scripted(self, module: Any) -> dict[str, Any]:
        """Return the parameters and buffers of a scripted module's C++ side and of those in it, by name."""
        native: Any = getattr(self.module, "_C", None)
        found: dict[str, Any] = {}
        pending = [("", module)]
        try:
            while pending:
                prefix, one = pending.pop()
                for names in (native.ParameterDict, native.BufferDict):
                    found.update((f"{prefix}{name}", value) for name, value in names(one).items())
                pending += [(f"{prefix}{name}.", below) for name, below in native.ModuleDict(one).items()]
        except (AttributeError, RuntimeError):  # an older torch, or a module that is only half made
            pass
        return found

    @staticmethod
    def saved(value: Any) -> list[object]:
        """Return what a saved tensor holds, unpacked by no hook: the tensor or what a hook packed, and the hook."""
        try:
            found = [value.data, getattr(value, "unpack_hook", None)]
        except (AttributeError, RuntimeError):  # freed by backward, or an older torch
            return []
        return [item for item in found if item is not None]

    def size(self, tensor: Any) -> int:
        """Return the bytes of a tensor's storage, 0 when it has none of its own."""
        key = self.storage(tensor)
        return 0 if key is None else key.size

    def is_shared(self, tensor: Any) -> bool:
        """Tell whether a tensor's storage, or such a storage, lies in memory that processes share."""
        try:
            storage = tensor if type(tensor) is self.storage_type else self.tensor_type.untyped_storage(tensor)
            return bool(storage.is_shared())
        except _NO_STORAGE:
            return False

    def gradient(self, tensor: Any) -> object | None:
        """Return the gradient of a tensor that may have one, or None."""
        # Reading .grad of a non-leaf that does not retain it warns.
        is_kept = self.read(tensor, "is_leaf") or self.read(tensor, "retains_grad")
        found: object | None = self.read(tensor, "grad") if is_kept else None
        return found

    def describe(self, parent: Any, child: object) -> str | None:
        """Name the edge from a tensor to its gradient, its hooks or its inner tensors; None for every other edge.

        Also from a scripted module to its tensors.
        """
        if self.script_type is not None and type(parent) is self.script_type:
            return next((f".{name}" for name, part in self.scripted(parent).items() if part is child), None)
        if not self.is_tensor(type(parent)):
            return None
        if self.gradient(parent) is child:
            return ".grad"
        for name in _HOOKS:
            if self.read(parent, name) is child:
                return f".{name}"
        return next((f".{name}()" for name, part in self.parts(parent).items() if part is child), None)

    @staticmethod
    def is_node(value: object) -> bool:
        """Tell whether `value` is a node of the autograd graph."""
        return any("next_functions" in own_attributes(owner) for owner in ancestors(type(value)))

    def grad_fn(self, tensor: Any) -> object | None:
        """Return the tensor's graph node, or None."""
        node: object | None = self.read(tensor, "grad_fn")
        return node


def live_tensors(torch: Torch) -> list[object]:
    """Return every tensor that Python's collector tracks, inner ones of sparse tensors and bare storages included."""
    found = tracked((*family(torch.tensor_type), torch.storage_type))
    for tensor in found[:]:
        if torch.is_tensor(type(tensor)):
            found += torch.parts(tensor).values()
    return found


def form(torch: Torch, values: Iterable[Any], size: int) -> tuple[tuple[int, ...], str]:
    """Return shape and type of the largest tensor among those that share a storage of `size` bytes."""
    best: tuple[int, tuple[int, ...], str] = (-1, (size,), "bytes without a tensor")
    for value in values:
        if not torch.is_tensor(type(value)):
            continue
        kind = str(torch.read(value, "dtype")).removeprefix("torch.")
        try:
            shape = tuple(int(length) for length in torch.read(value, "shape"))
            count = int(torch.tensor_type.numel(value))
        except _NO_STORAGE:  # nested tensors have no sizes
            shape, count = (), 0
        if count > best[0]:
            best = count, shape, kind
    return best[1], best[2]
