"""The last sample as Prometheus series: base units, conventional names, few labels. A scrape never asks NVML.

``index`` and ``uuid`` label every device series. The per-notebook series has one label value for each notebook that
holds device memory, at most 50; the rest is ``other notebooks``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.core import Metric

    from gpumem_magic.nvml.model import Device, Reading
    from gpumem_magic.server.attribution import Owner

__all__ = ["GpuCollector"]

MOST_NOTEBOOKS = 50
# An older sample is no answer to "how is it now"; Prometheus then marks the series stale.
OLDEST_SECONDS = 120.0

_DEVICE = ("index", "uuid")


def _memory(device: Device, part: str) -> float | None:
    return None if device.memory is None else getattr(device.memory, part)


# Name, help, value; None leaves the sample out.
_GAUGES: tuple[tuple[str, str, Callable[[Device], float | None]], ...] = (
    ("memory_total_bytes", "Memory of the device.", lambda d: _memory(d, "total")),
    ("memory_used_bytes", "Memory held by processes, not the driver's own part.", lambda d: _memory(d, "used")),
    ("memory_reserved_bytes", "Memory held by the driver and firmware.", lambda d: _memory(d, "reserved")),
    ("memory_free_bytes", "Memory that is free.", lambda d: _memory(d, "free")),
    (
        "utilization_ratio",
        "Share of the last sample period in which a kernel ran.",
        lambda d: None if d.utilization is None else d.utilization / 100,
    ),
    ("temperature_celsius", "Temperature of the GPU.", lambda d: d.temperature_c),
    ("power_watts", "Power drawn.", lambda d: d.power_w),
    ("power_limit_watts", "Power limit in force.", lambda d: d.power_limit_w),
    ("throttled", "1 while clocks are held back.", lambda d: None if d.throttle is None else float(bool(d.throttle))),
    ("up", "1 while the device answers.", lambda d: 0.0 if d.lost else 1.0),
)


class GpuCollector(Collector):
    """Collects from the last sample.

    Parameters
    ----------
    last
        Gives the last reading with its owners, or None. Called on whatever thread scrapes.
    note_scrape
        Told of every scrape, so that somebody who scrapes is somebody who looks.
    """

    def __init__(
        self,
        last: Callable[[], tuple[Reading, Mapping[int, Owner]] | None],
        note_scrape: Callable[[], None],
    ) -> None:
        self._last = last
        self._note_scrape = note_scrape

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: with it, registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Give the series of the last sample."""
        self._note_scrape()
        last = self._last()
        if last is None or time.time() - last[0].time_us / 1e6 > OLDEST_SECONDS:
            return []
        reading, owners = last
        return [
            GaugeMetricFamily(
                "gpumem_up",
                "1 while the driver answers and shows a device.",
                value=0 if reading.problem else 1,
            ),
            GaugeMetricFamily(
                "gpumem_last_reading_timestamp_seconds",
                "When the driver was last asked.",
                value=reading.time_us / 1e6,
            ),
            *_devices(reading),
            *_holders(reading, owners),
        ]


def _labels(device: Device) -> list[str]:
    return [str(device.index), device.uuid or ""]


def _devices(reading: Reading) -> Iterable[Metric]:
    info = InfoMetricFamily("gpumem_device", "Name of the device and the driver's version.", labels=_DEVICE)
    for device in reading.devices:
        info.add_metric(_labels(device), {"name": device.name or "", "driver": reading.driver or ""})
    yield info
    for name, words, value_of in _GAUGES:
        family = GaugeMetricFamily(f"gpumem_device_{name}", words, labels=_DEVICE)
        for device in reading.devices:
            value = value_of(device)
            if value is not None:
                family.add_metric(_labels(device), value)
        yield family


def _holders(reading: Reading, owners: Mapping[int, Owner]) -> Iterable[Metric]:
    by_owner = GaugeMetricFamily(
        "gpumem_owner_memory_bytes",
        "Device memory by whose process holds it.",
        labels=(*_DEVICE, "owner"),
    )
    by_notebook = GaugeMetricFamily(
        "gpumem_notebook_memory_bytes",
        "Device memory held by a notebook's kernel and its children.",
        labels=(*_DEVICE, "notebook"),
    )
    for device in reading.devices:
        owner_sums: dict[str, int] = {}
        notebook_sums: dict[str, int] = {}
        # Where the device itself tells no processes (MIG without privileges), its instances do.
        slices = [process for instance in device.mig for process in instance.processes]
        for process in slices if device.processes is None else device.processes:
            owner = owners.get(process.pid)
            if process.used is None:
                continue
            kind = owner.owner if owner else "other"
            owner_sums[kind] = owner_sums.get(kind, 0) + process.used
            if owner is not None and owner.owner == "kernel":
                name = owner.notebooks[0] if owner.notebooks else "(no notebook)"
                notebook_sums[name] = notebook_sums.get(name, 0) + process.used
        for kind, used in sorted(owner_sums.items()):
            by_owner.add_metric([*_labels(device), kind], used)
        for name, used in _bounded(notebook_sums).items():
            by_notebook.add_metric([*_labels(device), name], used)
    yield by_owner
    yield by_notebook


def _bounded(sums: dict[str, int]) -> dict[str, int]:
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    kept = dict(ranked[:MOST_NOTEBOOKS])
    rest = sum(used for _, used in ranked[MOST_NOTEBOOKS:])
    return {**kept, "other notebooks": rest} if rest else kept
