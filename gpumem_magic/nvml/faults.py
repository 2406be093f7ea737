"""NVML's error codes as words, and what a person does next.

Codes are those of NVIDIA's ``nvml.h`` (``nvmlReturn_t``); they never change their meaning, so they are named here and
need no binding.
"""

from __future__ import annotations

import enum
import functools
import os
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["Absence", "Code", "is_container", "is_wsl", "problem_sentence", "reason"]


class Code(enum.IntEnum):
    """The codes that are handled by name."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


class Absence(NamedTuple):
    """Why there is no value: NVML's code (None when the reason is ours) and one clause in words."""

    code: int | None
    reason: str

    @property
    def is_permanent(self) -> bool:
        """Asking this handle again cannot help (old driver, unsupported field)."""
        return self.code in _PERMANENT

    @property
    def is_device_gone(self) -> bool:
        """The whole device does not answer any more."""
        return self.code in _GONE

    @property
    def is_driver_gone(self) -> bool:
        """The driver behind all devices does not answer any more."""
        return self.code in _DRIVER_GONE


_PERMANENT = frozenset(
    {Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED},
)
_GONE = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND})
_DRIVER_GONE = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.VERSION_MISMATCH})

_REASONS = {
    Code.INVALID_ARGUMENT: "the driver no longer knows this device handle; it is asked again",
    Code.NOT_SUPPORTED: "not supported by this device or driver",
    Code.NO_PERMISSION: "the driver denies this user the value",
    Code.NOT_FOUND: "the driver has no such entry",
    Code.TIMEOUT: "the driver did not answer in time",
    Code.FUNCTION_NOT_FOUND: "this driver is older than the function; a newer driver is needed",
    Code.GPU_IS_LOST: "the GPU has fallen off the bus; a reset or reboot is needed",
    Code.RESET_REQUIRED: "the GPU must be reset before it answers (nvidia-smi --gpu-reset, or a reboot)",
    Code.OPERATING_SYSTEM: "the operating system or the container blocks access to this device",
    Code.ARGUMENT_VERSION_MISMATCH: "this driver is older than the structure asked for; a newer driver is needed",
    Code.GPU_NOT_FOUND: "the GPU is no longer there",
    Code.UNKNOWN: "the driver reports an unknown internal error",
}


def reason(code: int, *, text: str = "") -> str:
    """Say in one clause why a call with this code gave no value.

    Parameters
    ----------
    code
        NVML's return code.
    text
        NVML's own words for it, used for codes that have none here.
    """
    known = next((words for key, words in _REASONS.items() if key == code), None)
    return known or f"NVML error {code}{': ' + text.lower() if text else ''}"


@functools.cache
def is_wsl() -> bool:
    """Whether this is Linux under Windows (WSL 2), whose driver lives on the Windows side."""
    return sys.platform == "linux" and "microsoft" in os.uname().release.lower()


@functools.cache
def is_container() -> bool:
    """Whether this process runs in a container, as far as the usual marks tell (Docker, Podman, Kubernetes)."""
    return (
        Path("/.dockerenv").exists()
        or Path("/run/.containerenv").exists()
        or "KUBERNETES_SERVICE_HOST" in os.environ
        or os.environ.get("container") is not None  # noqa: SIM112 -- systemd-nspawn and Podman write it in lower case
    )


def problem_sentence(code: int, *, text: str = "") -> str:
    """Say in one sentence, with the next step, why NVML cannot start.

    Parameters
    ----------
    code
        What ``nvmlInit`` returned.
    text
        NVML's own words, for codes that have no sentence here.
    """
    if code == Code.LIBRARY_NOT_FOUND:
        return _no_library()
    if code == Code.DRIVER_NOT_LOADED:
        return (
            "The NVIDIA driver is installed but not loaded; run `sudo modprobe nvidia` "
            "(after a kernel update: reinstall the driver or reboot)."
        )
    if code == Code.NO_PERMISSION:
        return (
            "This user may not open the NVIDIA devices; check the permissions of /dev/nvidia* "
            "(often: add the user to the group `video` and log in again)."
        )
    if code == Code.VERSION_MISMATCH:
        return (
            "The NVIDIA driver was updated while the old one is still loaded (driver and library versions differ); "
            "reboot, or reload the kernel module. Running CUDA programs go on meanwhile."
        )
    if code == Code.UNKNOWN:
        return _unknown()
    if code == Code.OPERATING_SYSTEM:
        return "The operating system or the container blocks the NVIDIA devices; allow /dev/nvidia* and restart."
    detail = f" ({text.lower()})" if text else ""
    return f"NVML cannot start: error {code}{detail}; see what `nvidia-smi` says in a terminal."


def _no_library() -> str:
    if is_wsl():
        return (
            "No NVIDIA driver in WSL; install the NVIDIA driver on the Windows side (not in Linux) "
            "and run `wsl --shutdown`."
        )
    if is_container():
        return (
            "No NVIDIA driver in this container; start it with `--gpus all` (NVIDIA Container Toolkit), "
            "or ignore this on a machine without an NVIDIA GPU."
        )
    return "No NVIDIA driver on this machine; install one if it has an NVIDIA GPU, else host memory is shown."


def _unknown() -> str:
    if is_container():
        return (
            "The driver fails with an unknown error, which in a container mostly means that it lost its devices; "
            "restart the container (on the host, `systemctl daemon-reload` is the usual cause)."
        )
    return "The driver fails with an unknown error; see `nvidia-smi` and the kernel log (dmesg), then reboot."
