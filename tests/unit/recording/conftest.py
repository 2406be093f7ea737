"""A stand-in for torch on a machine with GPUs: its recorder's rules, as they were measured on an H200 (torch 2.11).

What would be a crash or a poisoned process there is an `AssertionError` here.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest


class FakeTorch:
    """One process's torch. `allocate` and `free` are what the user's code does."""

    def __init__(self, devices: int = 1, *, clear_history: bool = True) -> None:
        self.devices = devices
        self.initialised = False
        self.initialising = False
        self.enabled: dict[str, Any] | None = None
        self.rings: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
        self.counts = [0] * devices
        self.bytes = [0] * devices
        self.flushes: int | None = 0
        self.calls: list[dict[str, Any]] = []
        self.stub_seen: list[bool] = []
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self._C = SimpleNamespace(
            _cuda_record_memory_history=self._record,
            _cuda_isHistoryEnabled=self._is_enabled,
            _cuda_memoryStats=self._stats,
        )

        def record(enabled="all", context="all", stacks="all", max_entries=1 << 62, *, clear_history=False):
            arguments = {"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries}
            self.calls.append({**arguments, "clear_history": clear_history})
            self._C._cuda_record_memory_history(enabled, context, stacks, max_entries)

        def old_record(enabled="all", context="all", stacks="all", max_entries=1 << 62):
            record(enabled, context, stacks, max_entries)

        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialised,
            device_count=lambda: self.devices,
            _device_count_nvml=lambda: self.devices,
            get_device_properties=self._properties,
            _lazy_call=self._lazy_call,
            _queued_calls=[],
            memory=SimpleNamespace(
                _record_memory_history=record if clear_history else old_record, _snapshot=self._snapshot
            ),
        )

    # what the user does

    def initialise(self) -> None:
        """First use of CUDA."""
        if self.initialised:
            return
        self.initialising = True
        for call, _ in self.cuda._queued_calls:
            call()
        self.initialising = False
        self.initialised = True

    def allocate(self, size: int, device: int = 0) -> int:
        """Allocate and return the address."""
        self.initialise()
        self.counts[device] += 1
        self.bytes[device] += size
        address = 4096 * self.counts[device]
        self._event(device, "alloc", address, size)
        return address

    def free(self, address: int, size: int, device: int = 0) -> None:
        """Free."""
        self.bytes[device] -= size
        self._event(device, "free_requested", address, size)
        self._event(device, "free_completed", address, size)

    # torch's side

    def _event(self, device: int, action: str, address: int, size: int) -> None:
        if self.enabled is not None:
            ring = self.rings[device]
            ring.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": _tick()})
            del ring[: max(0, len(ring) - self.enabled["max_entries"])]

    def _record(self, enabled: str | None, context: str | None, stacks: str, max_entries: int) -> None:
        assert self.initialised or self.initialising, "the recorder would initialise the driver behind torch's back"
        if enabled is None:
            self.enabled = None
            self.rings = [[] for _ in range(self.devices)]
            return
        if self.enabled is not None:
            assert self.enabled["max_entries"] == max_entries, "a ring in use changed its size: heap corruption"
        self.enabled = {"context": context, "stacks": stacks, "max_entries": max_entries}

    def _is_enabled(self) -> bool:
        assert self.initialised or self.initialising, "segmentation fault"
        return self.enabled is not None

    def _stats(self, device: int) -> dict[str, Any]:
        held = {"all": {"current": self.bytes[device], "peak": self.bytes[device]}}
        return {
            "allocated_bytes": held,
            "reserved_bytes": held,
            "allocation": {"all": {"allocated": self.counts[device]}},
            "num_alloc_retries": 0,
            **({} if self.flushes is None else {"num_sync_all_streams": self.flushes}),
        }

    def _snapshot(self) -> dict[str, Any]:
        self.stub_seen.append("_inductor" in vars(self))
        return {"segments": [], "device_traces": [list(ring) for ring in self.rings], "allocator_settings": {}}

    def _properties(self, device: int) -> Any:
        return SimpleNamespace(name=f"GPU {device}", total_memory=80 << 30, uuid=f"uuid-{device}")

    def _lazy_call(self, function: Any) -> None:
        if self.initialised:
            function()
        else:
            self.cuda._queued_calls.append((function, []))


_last = 0


def _tick() -> int:
    """Give every event a microsecond of its own, so that cuts are unambiguous."""
    global _last  # noqa: PLW0603 - a clock has one state
    while (now := time.time_ns() // 1000) <= _last:
        pass
    _last = now
    return now


@pytest.fixture
def fake_torch() -> type[FakeTorch]:
    """The stand-in's class."""
    return FakeTorch
