"""The module ``pynvml``, checked to be NVIDIA's own.

Several packages have installed a module of that name. NVIDIA's ``nvidia-ml-py`` is the live one; ``pynvml`` before 11.5
and ``nvidia-ml-py3`` are dead forks that shadow it and lack today's functions and structs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import warnings
from pathlib import Path
from typing import Any

from gpumem_magic.nvml.faults import Absence

__all__ = ["load_binding"]

# Present in NVIDIA's module from 11.515 (2022) to today's, in none of the dead forks.
_NEEDED = ("nvmlInitWithFlags", "nvmlMemory_v2", "NVMLError", "nvmlDeviceGetMemoryInfo")

_INSTALL = "pip install --force-reinstall nvidia-ml-py"


@functools.cache
def load_binding() -> Any | Absence:
    """Import ``pynvml``.

    Returns
    -------
    module or Absence
        NVIDIA's module, or why it cannot be used with the line that repairs it.
    """
    try:
        with warnings.catch_warnings():
            # The retired package `pynvml` (13.x, only a shell around NVIDIA's) warns whoever imports the module.
            warnings.simplefilter("ignore", FutureWarning)
            module = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        if error.name == "pynvml":
            return Absence(None, f"NVIDIA's Python binding is not installed; run `{_INSTALL}`.")
        return _unusable(_found_file(), f"cannot be imported ({_words(error)})")
    except Exception as error:  # noqa: BLE001 - a dead fork may fail in any way, one for Python 2 by its syntax
        return _unusable(_found_file(), f"cannot be imported ({_words(error)})")
    if all(hasattr(module, name) for name in _NEEDED):
        return module
    return _unusable(getattr(module, "__file__", None), "is not NVIDIA's")


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _unusable(where: str | None, what: str) -> Absence:
    """Name the module that stands in the way, and the line that removes it."""
    if where is None:
        return Absence(None, f"`pynvml` {what}; run `{_INSTALL}`.")
    owner = _owner_of(Path(where))
    if owner is None:
        return Absence(
            None, f"`pynvml` {what}: the file {where} shadows NVIDIA's; remove {where}, then run `{_INSTALL}`."
        )
    if owner.replace("_", "-").lower() == "nvidia-ml-py":
        return Absence(None, f"`pynvml` {what}: the package `{owner}` is too old or damaged; run `{_INSTALL}`.")
    return Absence(
        None,
        f"`pynvml` {what}: the package `{owner}` shadows NVIDIA's; run `pip uninstall -y {owner} && {_INSTALL}`.",
    )


def _found_file() -> str | None:
    """Say which file ``import pynvml`` reads."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def _owner_of(file: Path) -> str | None:
    """Name the installed distribution that owns this module file; a shared file belongs to the foreign one."""
    owners = []
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        # Only packages that could own it are opened: reading every RECORD takes seconds in a large environment.
        if name is None or not any(part in name.lower() for part in ("nvml", "nvidia-ml", "nvidia_ml")):
            continue
        if any(Path(str(entry.locate())).resolve() == file.resolve() for entry in distribution.files or ()):
            owners.append(name)
    foreign = [name for name in owners if name.replace("_", "-").lower() != "nvidia-ml-py"]
    return foreign[0] if foreign else owners[0] if owners else None
