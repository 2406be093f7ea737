"""Notice the moment when a cell imports torch, so that it is recorded from its first tensor on."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["ImportWatch", "finished_module", "finished_torch", "is_torch"]


def finished_module(name: str) -> ModuleType | None:
    """Return module `name` when its import is complete, else None (another thread may be in the middle of it)."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def is_torch(module: Any) -> bool:
    """Tell whether a module is PyTorch, and not a folder or file of the user's that has its name."""
    return hasattr(module, "_C") and hasattr(getattr(module, "cuda", None), "is_initialized")


def finished_torch() -> Any:
    """Return PyTorch's module when its import is complete, else None."""
    module = finished_module("torch")
    return module if is_torch(module) else None


class _Loader(Loader):
    """Runs the real loader, then tells; leaves the real loader on the module."""

    def __init__(self, loader: Any, imported: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        __tracebackhide__ = True  # an import that fails is the user's to see, without us in between
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported(module)


class ImportWatch(MetaPathFinder):
    """Calls back once when module `name` has been imported, until stopped.

    Parameters
    ----------
    name
        A top-level module.
    imported
        Called on the importing thread with the executed module. Must not raise.
    """

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported
        self._searching = False

    def start(self) -> None:
        """Begin to watch."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Leave the import system as it was."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Ask the other finders for the module's spec and put our loader around theirs."""
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            for finder in sys.meta_path:
                find_spec = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None
                if finder is not self and find_spec is not None:
                    spec = find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self._imported)
                    return spec
        finally:
            self._searching = False
        return None
