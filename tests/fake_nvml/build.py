"""Build the fake NVML and drive it.

    fake = FakeNvml(tmp_path)                      # or build(dir) and control(dict, path)
    fake.control({"count": 2, "devices": [{"used": 5 << 30, "processes": [{"pid": "self", "used": 1 << 30}]}]})
    subprocess.run([...], env=fake.environment())
    fake.control({"count": 2, "devices": [{}, {"error": 15}]})     # lose a device under a running poller
    fake.calls()                                   # {"nvmlDeviceGetMemoryInfo_v2": 12, …}

Keys: `init` (code of nvmlInit), `driver_error` (every call), `driver`, `count`, `delay_us` {function or "all": µs},
`missing` {function: 1}; per device: `name uuid total used reserved free utilization temperature power_mw limit_mw
throttle ecc_uncorrected remap_pending remap_failed numa_node unified mig mig_permission mig_capable error handle_error
errors {function: code} xids [number] processes graphics [{pid: number | "self", used: bytes | None}] mig_instances
[{…the same}]`.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["FakeNvml", "build", "control"]

_SOURCE = Path(__file__).with_name("fake_nvml.c")
_COUNTER = struct.Struct("56sQ")


def build(directory: Path, *, without: Sequence[str] = ()) -> Path:
    """Compile ``libnvidia-ml.so.1`` into a directory.

    Parameters
    ----------
    directory
        Goes into ``LD_LIBRARY_PATH``.
    without
        Functions that an older driver lacks: ``"MEMORY_V2"``, ``"PROCESSES_V3"``.

    Returns
    -------
    Path
        The library.
    """
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "libnvidia-ml.so.1"
    macros = [f"-DWITHOUT_{name}" for name in without]
    # The name inside the file makes a library that is loaded by its path the one that pynvml then gets by its name.
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", *macros]
    strict = ["-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *strict, *shared, _SOURCE, "-o", library, "-lpthread"], check=True)
    return library


def control(state: Mapping[str, Any], path: Path) -> None:
    """Tell every process whose ``FAKE_NVML`` is `path` what to show from its next call on."""
    lines = [f"{key}={value}" for key, value in _flatten("", state)]
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fresh.replace(path)


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flatten(f"{prefix}.{index}", item)
    elif isinstance(value, bool):
        yield prefix, str(int(value))
    else:
        yield prefix, "null" if value is None else str(value)


class FakeNvml:
    """A built library and its control file in one directory."""

    def __init__(self, directory: Path, *, without: Sequence[str] = ()) -> None:
        self.directory = directory
        self.library = build(directory, without=without)
        self.file = directory / "fake_nvml.control"
        self.control({})

    def control(self, state: Mapping[str, Any]) -> None:
        """Change what the library shows, at once and for every process."""
        control(state, self.file)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Give the environment in which the real pynvml finds this library first."""
        environment = dict(os.environ if base is None else base)
        former = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{self.directory}{os.pathsep + former if former else ''}"
        environment["FAKE_NVML"] = str(self.file)
        return environment

    def load(self) -> None:
        """Make this library the one that pynvml gets in this process, whose ``FAKE_NVML`` then decides."""
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)

    def reset_calls(self) -> None:
        """Begin to count anew."""
        path = self.file.with_name(self.file.name + ".calls")
        if path.exists():
            # Written over, never cut: the file is mapped.
            with path.open("r+b") as file:
                file.write(b"\0" * path.stat().st_size)

    def calls(self) -> dict[str, int]:
        """Count the calls so far, of all processes, by function."""
        path = self.file.with_name(self.file.name + ".calls")
        if not path.exists():
            return {}
        counted = {}
        for name, count in _COUNTER.iter_unpack(path.read_bytes()):
            if count:
                counted[name.rstrip(b"\0").decode()] = count
        return counted

    def wait_until_quiet(self, seconds: float = 1.0, patience: float = 60.0) -> None:
        """Return once nobody has called for so many seconds, several readings' time; fail when that never comes."""
        deadline = time.monotonic() + patience
        before = self.calls()
        while True:
            time.sleep(seconds)
            now = self.calls()
            if now == before:
                return
            assert time.monotonic() < deadline, f"still called: {now}"
            before = now
