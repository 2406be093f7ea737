"""What other frameworks than torch tell of their memory, where they are in use already. None is imported or started."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from gpumem_magic._format import format_bytes
from gpumem_magic.recording.imports import finished_module
from gpumem_magic.recording.model import DeviceReading
from gpumem_magic.recording.readings import now_us

__all__ = ["JaxArrays", "advice", "jax_arrays", "jax_arrays_text", "jax_readings"]

_NO_COUNTER = "JAX does not say"
_XLA = (
    "XLA takes three quarters of a GPU at its first use, so that this process's memory says little: set "
    'os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false" before importing jax to see it grow'
)
_TENSORFLOW = (
    "TensorFlow takes nearly all of a GPU at its first use, so that this process's memory says little: set "
    'os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true" before importing tensorflow to see it grow'
)
_CUPY = (
    "CuPy keeps what it freed in its pool, which is part of this process's memory: "
    "cupy.get_default_memory_pool().free_all_blocks() gives it back"
)
# By imported module: the variable that makes it take less, the values that do, and what to say where it is not so set.
_ADVICE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "jax": ("XLA_PYTHON_CLIENT_PREALLOCATE", ("false", "0"), _XLA),
    "tensorflow": ("TF_FORCE_GPU_ALLOW_GROWTH", ("true", "1"), _TENSORFLOW),
    "cupy": ("", (), _CUPY),
}


class JaxArrays(NamedTuple):
    """JAX's live arrays: how many, and their bytes."""

    number: int
    bytes: int


def _jax_in_use() -> Any:
    """Return jax when it has a backend already, else None: asking for its devices would start one."""
    jax = finished_module("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    return jax if jax is not None and started is not None and started() else None


def jax_readings() -> tuple[DeviceReading, ...]:
    """Read JAX's own counters of each device that keeps some (GPU and TPU; the CPU keeps none): 10 µs."""
    jax = _jax_in_use()
    if jax is None:
        return ()
    found = []
    for device in jax.local_devices():
        try:
            stats = device.memory_stats()
        except RuntimeError:  # XlaRuntimeError: a plugin's device that has not implemented it
            continue
        if not stats or "bytes_in_use" not in stats:
            continue
        values = {
            "allocated": stats["bytes_in_use"],
            "reserved": stats.get("pool_bytes"),
            "max_allocated": stats.get("peak_bytes_in_use"),
            "limit": stats.get("bytes_limit") or None,
        }
        found.append(
            DeviceReading(
                device=str(device),
                time_us=now_us(),
                name=str(device.device_kind),
                missing={name: _NO_COUNTER for name, value in values.items() if value is None},
                **values,
            )
        )
    return tuple(found)


def jax_arrays() -> JaxArrays | None:
    """Count JAX's live arrays, on every kind of device; None where JAX is not in use. 1 µs an array."""
    jax = _jax_in_use()
    if jax is None:
        return None
    arrays = jax.live_arrays()
    return JaxArrays(len(arrays), sum(int(array.nbytes) for array in arrays))


def jax_arrays_text(before: JaxArrays | None, after: JaxArrays | None) -> str | None:
    """Say what JAX's live arrays hold at the end and how that changed; None where JAX is not in use."""
    if after is None:
        return None
    change = after.bytes - (before.bytes if before is not None else 0)
    moved = f"{format_bytes(change, signed=True)} over the cell" if change else "as before"
    noun = "array" if after.number == 1 else "arrays"
    return f"JAX: {after.number:,} live {noun} with {format_bytes(after.bytes)} at the end, {moved} (jax.live_arrays())"


def advice() -> tuple[str, ...]:
    """Return what the frameworks that are imported hide from whoever looks at the process's GPU memory."""
    texts: list[str] = []
    for module, (variable, values, text) in _ADVICE.items():
        if finished_module(module) is not None and os.environ.get(variable, "").lower() not in values:
            texts.append(text)
    return tuple(texts)
