"""Recognise a storage later on, without keeping its memory.

Neither an address nor a Python object proves that a storage is still the one that was seen: both live on while
``tensor.data = …`` puts another storage, that may lie at the same place, under the same object.
"""

from __future__ import annotations

import contextlib
from typing import Any

from gpumem_magic.holders.tensors import loaded_torch

__all__ = ["StorageWitness"]


class StorageWitness:
    """A weak handle of one storage: its memory can go, and its identity is not given out again until the handle goes.

    Parameters
    ----------
    tensor
        A tensor that has a storage of its own, or such a storage.

    Raises
    ------
    ValueError
        When it has none, or torch is not imported.
    """

    __slots__ = ("_handle", "_kind")

    def __init__(self, tensor: Any) -> None:
        storage = _storage(tensor)
        if storage is None:
            raise ValueError("no tensor with a storage of its own")
        self._kind = type(storage)
        # torch keeps some 100 bytes of bookkeeping for it, as for its own StorageWeakRef.
        self._handle: int = storage._weak_ref()  # noqa: SLF001 - torch offers no other weak reference to a storage

    def __del__(self) -> None:
        # Where `__init__` raised there is no handle; at the interpreter's end torch may be gone first.
        with contextlib.suppress(AttributeError, TypeError):
            self._kind._free_weak_ref(self._handle)  # noqa: SLF001 - as above

    def is_gone(self) -> bool:
        """Tell whether nothing holds the storage any more."""
        return bool(self._kind._expired(self._handle))  # noqa: SLF001 - as above

    def is_of(self, tensor: Any) -> bool:
        """Tell whether this is the storage that `tensor` has now."""
        storage = None if self.is_gone() else _storage(tensor)
        return storage is not None and storage._cdata == self._handle  # noqa: SLF001 - as above


def _storage(tensor: Any) -> Any:
    """Return the storage of a tensor, or the bare storage that it is; None when there is none."""
    torch = loaded_torch()
    if torch is None or tensor is None:
        return None
    with torch.undisturbed():
        if torch.storage(tensor) is None:
            return None
        return tensor if type(tensor) is torch.storage_type else torch.tensor_type.untyped_storage(tensor)
