"""The part that knows torch: which objects are tensors, what they hold, their storages. torch is never imported here.

Every access is guarded: other people's objects may be dead proxies, fake or functional tensors without storage.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, NamedTuple

__all__ = ["StorageKey", "Torch", "live_tensors", "loaded_torch"]

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
        self._is_tensor: dict[type, bool] = {}

    def is_tensor(self, kind: type) -> bool:
        """Tell whether objects of type `kind` are tensors; no object's own code runs."""
        known = self._is_tensor.get(kind)
        if known is None:
            known = self._is_tensor[kind] = self.tensor_type in type.mro(kind) if kind is not type else False
        return known

    def storage(self, tensor: Any) -> StorageKey | None:
        """Return the storage of `tensor`, or None when it has none of its own."""
        try:
            # The base class's methods: a subclass may intercept its own.
            storage = self.tensor_type.untyped_storage(tensor)
            size = int(storage.nbytes())
            address = int(storage.data_ptr())
            device = str(storage.device)
        except _NO_STORAGE:
            return None
        if size == 0 or address == 0 or device == "meta":
            return None
        return StorageKey("cpu" if device.startswith("cpu") else device, address, size)

    def referents(self, tensor: Any) -> list[object]:
        """Return what a tensor holds: gradient, attributes, hooks; not its graph, nor the base of a view.

        A view shares its base's storage, so the base would add nothing but a longer path.
        """
        found = [item for item in gc.get_referents(tensor) if not self.is_node(item)]
        gradient = self.gradient(tensor)
        return found if gradient is None else [*found, gradient]

    def size(self, tensor: Any) -> int:
        """Return the bytes of a tensor's storage, 0 when it has none of its own."""
        key = self.storage(tensor)
        return 0 if key is None else key.size

    def gradient(self, tensor: Any) -> object | None:
        """Return the gradient of a tensor that may have one, or None."""
        try:
            # Reading .grad of a non-leaf that does not retain it warns.
            return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        except _NO_STORAGE:
            return None

    def describe(self, parent: Any, child: object) -> str | None:
        """Name the edge from a tensor to its gradient; None for every other edge."""
        if self.is_tensor(type(parent)) and self.gradient(parent) is child:
            return ".grad"
        return None

    @staticmethod
    def is_node(value: object) -> bool:
        """Tell whether `value` is a node of the autograd graph."""
        return hasattr(type(value), "next_functions")

    def grad_fn(self, tensor: Any) -> object | None:
        """Return the tensor's graph node, or None."""
        try:
            node: object | None = tensor.grad_fn
        except _NO_STORAGE:
            return None
        return node


def live_tensors(torch: Torch) -> list[object]:
    """Return every tensor that Python's collector tracks."""
    return [value for value in gc.get_objects() if torch.is_tensor(type(value))]
