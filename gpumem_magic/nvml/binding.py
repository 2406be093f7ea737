"""The module ``pynvml``, checked to be NVIDIA's own.

Several packages have installed a module of that name. NVIDIA's ``nvidia-ml-py`` is the live one; ``pynvml`` before 11.5
and ``nvidia-ml-py3`` are dead forks that shadow it and lack today's functions and structs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
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
    except ImportError as error:
        return Absence(None, f"NVIDIA's Python binding cannot be imported ({error}); run `{_INSTALL}`.")
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if not missing:
        return module
    where = getattr(module, "__file__", None) or "an unknown place"
    owner = _owner_of(Path(where))
    remove = f"pip uninstall -y {owner} && " if owner and owner != "nvidia-ml-py" else ""
    what = f"the package `{owner}`" if owner else f"the file {where}"
    if owner is None:
        remove = f"remove {where}, then run "
        return Absence(None, f"`pynvml` is not NVIDIA's: {what} shadows it; {remove}`{_INSTALL}`.")
    return Absence(None, f"`pynvml` is not NVIDIA's: {what} shadows it; run `{remove}{_INSTALL}`.")


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
