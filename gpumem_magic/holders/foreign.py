"""Other libraries' objects over a tensor's memory: NumPy arrays and memory views, DLPack capsules, CuPy's arrays.

They hold memory without holding a tensor: by the object that they were made from, or by nothing but the address.
Nothing of these libraries is imported, and of their objects only what is known to be harmless is asked.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from gpumem_magic.holders.edges import ancestors, module_name, own_attributes, type_name
from gpumem_magic.holders.kinds import KindTable

__all__ = ["Foreign"]

_CAPSULE = "PyCapsule"
# Fields before the tensor in `DLManagedTensorVersioned`: version (two 32-bit), context, deleter, flags (64-bit).
_VERSIONED_OFFSET = 8 + 2 * ctypes.sizeof(ctypes.c_void_p) + 8
# Libraries whose arrays have `__cuda_array_interface__` as a plain property.
_ON_GPU = frozenset({"cupy", "numba", "rmm", "cudf", "pycuda", "warp"})
_INTERFACE = "__cuda_array_interface__"
# Elements of an array of objects that are looked at.
_MOST_ELEMENTS = 100_000


class Foreign:
    """Knows NumPy, if it is loaded."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._array: Any = getattr(numpy, "ndarray", None)
        self._kinds = KindTable[str]()

    def name(self, kind: type) -> str:
        """Return what objects of type `kind` are called when they may lie over a tensor's memory, else ``""``."""
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds.put(kind, self._name(kind))
        return known

    def _name(self, kind: type) -> str:
        if self._array is not None and issubclass(kind, self._array):
            return "NumPy array"
        if type_name(kind) == _CAPSULE and module_name(kind) == "builtins":
            return "DLPack capsule"
        library = module_name(kind).partition(".")[0]
        # What such a property of anybody else's would do is not known.
        if library in _ON_GPU and any(_INTERFACE in own_attributes(owner) for owner in ancestors(kind)):
            return f"{library} array"
        return ""

    def referents(self, value: Any) -> list[object]:
        """Return what an array holds: the object whose memory it shows, or its elements."""
        if self._array is None or not issubclass(type(value), self._array):
            return []
        base = self._array.base.__get__(value)
        found = [] if base is None else [base]
        if self._array.dtype.__get__(value).hasobject and self._array.size.__get__(value) <= _MOST_ELEMENTS:
            found += self._elements(value)
        return found

    def _elements(self, value: Any) -> list[object]:
        """Return the elements of an array of objects; making another array of it would run its class's own code."""
        return list(self._array.flat.__get__(value))

    def describe(self, parent: Any, child: object) -> str | None:
        """Name the edge from an array; None for every other edge."""
        if self._array is None or not issubclass(type(parent), self._array):
            return None
        if self._array.base.__get__(parent) is child:
            return ".base"
        flat = self._elements(parent) if self._array.dtype.__get__(parent).hasobject else []
        return next((f".flat[{index}]" for index, value in enumerate(flat) if value is child), None)

    def is_borrowed(self, value: Any) -> bool:
        """Tell whether an object shows memory to which no reference leads, as an array that came through DLPack."""
        while self._array is not None and issubclass(type(value), self._array):
            base = self._array.base.__get__(value)
            if base is None:
                return False
            value = base
        return bool(self.name(type(value)))

    def address(self, value: Any) -> int | None:
        """Return the address of the memory that an object of `name` shows, None where it does not tell."""
        kind = self.name(type(value))
        try:
            if kind == "NumPy array":
                return int(self._array.__array_interface__.__get__(value)["data"][0])
            if kind == "DLPack capsule":
                return _in_capsule(value)
            return int(getattr(value, _INTERFACE)["data"][0]) if kind else None
        except Exception:  # noqa: BLE001 - another library's object; it then has no address
            return None


def _in_capsule(capsule: object) -> int | None:
    """Read the address out of a capsule that nobody has taken over yet (``dlpack.h``; a taken one is renamed)."""
    api = ctypes.pythonapi
    is_valid, pointer = api.PyCapsule_IsValid, api.PyCapsule_GetPointer
    is_valid.argtypes = pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    pointer.restype = ctypes.c_void_p
    for name, offset in ((b"dltensor", 0), (b"dltensor_versioned", _VERSIONED_OFFSET)):
        if is_valid(capsule, name):
            tensor = pointer(capsule, name) + offset
            # `DLTensor` begins with the address and ends with an offset in bytes, which torch leaves at zero.
            return ctypes.c_void_p.from_address(tensor).value
    return None
