"""The numbers under the sentence, the same in text, PNG and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_count, format_duration, format_share

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Group

__all__ = ["WIDTH", "format_share", "label_of", "numbers", "table_title"]

# CSS pixels of the picture: a notebook's output area is 800 to 1100 wide.
WIDTH = 900


def _device_used(device: DeviceAnalysis) -> str | None:
    used = device.headline.device_used
    if used is None:
        return None
    of = f" of {format_bytes(device.total)}" if device.total is not None else ""
    what = "host used" if device.kind == "cpu" else "device used"
    return f"{what} {format_bytes(used)}{of}"


def numbers(analysis: Analysis, device: DeviceAnalysis) -> list[str]:
    """Return the numbers of one device, each with its name: before, peak, after, reserved, device used, time, events.

    Unknown ones are left out; the reasons stand in `DeviceAnalysis.missing`.
    """
    headline = device.headline
    parts = []
    for name, value in (
        ("before", headline.allocated_before),
        ("peak", headline.allocated_peak),
        ("after", headline.allocated_after),
    ):
        if value is not None:
            parts.append(f"{name} {format_bytes(value)}")
    if headline.reserved_peak is not None:
        text = f"reserved {format_bytes(headline.reserved_peak)}"
        if headline.reserved_after is not None and headline.reserved_after != headline.reserved_peak:
            text += f" (at the end {format_bytes(headline.reserved_after)})"
        parts.append(text)
    used = _device_used(device)
    if used is not None:
        parts.append(used)
    if analysis.started_us > 0 or not analysis.devices:  # else there is an order alone
        parts.append(format_duration(max(analysis.ended_us - analysis.started_us, 0) / 1e6))
    if device.events:
        parts.append(f"{format_count(device.events)} event{'s' if device.events != 1 else ''}")
    return parts


def label_of(device: DeviceAnalysis, group: Group) -> str:
    """Return a group's label, with its cell where lines of several cells are among the device's."""
    if group.cell in {None, group.label} or len({other.cell for other in device.groups} - {None}) < 2:
        return group.label
    return f"{group.cell} {group.label}"


def table_title(device: DeviceAnalysis) -> str:
    """Name the table of who was alive at the peak."""
    return "at the peak" if device.sampled is None else "at the highest sample"
