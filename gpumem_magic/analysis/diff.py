"""Two recordings side by side: who holds more and who less, at each one's peak and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpumem_magic.analysis.model import Analysis, Group, Row

__all__ = ["Diff", "DiffRow", "Side", "compare", "side_of"]

OwnerKey = tuple[str, ...]


@dataclass(frozen=True)
class SideDevice:
    """One device of one recording: its totals in bytes, and per owner the group, bytes at the peak and at the end."""

    peak: int | None
    end: int | None
    owners: Mapping[OwnerKey, tuple[Group, int, int]]


@dataclass(frozen=True)
class Side:
    """One of the two recordings."""

    title: str
    devices: Mapping[str, SideDevice]


@dataclass(frozen=True)
class DiffRow:
    """One owner in both recordings, in bytes; 0 where it held nothing."""

    device: str
    group: Group
    bytes_a: int
    bytes_b: int
    end_bytes_a: int
    end_bytes_b: int

    @property
    def growth(self) -> int:
        """Bytes that it holds more at B's peak than at A's."""
        return self.bytes_b - self.bytes_a

    @property
    def end_growth(self) -> int:
        """Bytes that it holds more at B's end than at A's."""
        return self.end_bytes_b - self.end_bytes_a


@dataclass(frozen=True)
class Diff:
    """Both recordings and their rows, the largest change first; per device they add up to both peaks and ends."""

    a: Side
    b: Side
    rows: tuple[DiffRow, ...]


def _key(group: Group) -> OwnerKey:
    """Say what makes an owner of one recording the same as one of the other.

    A notebook's line is known by its text: its number and its cell's file name change with every edit.
    """
    if group.kind == "line":
        text = " ".join((group.source or "").split())
        return ("line", group.function or "", text) if text else ("line", group.label)
    if group.kind == "frame":
        return ("frame", group.file or "", str(group.line), group.function or "")
    return (group.kind, group.label)


def side_device(
    groups: Sequence[Group], peak: Iterable[Row], end: Iterable[Row], totals: tuple[int | None, int | None]
) -> SideDevice:
    """Collect one device's rows by owner; `totals` are its allocated bytes at the peak and at the end."""
    owners: dict[OwnerKey, tuple[Group, int, int]] = {}
    for which, rows in enumerate((peak, end)):
        for row in rows:
            group = groups[row.group]
            key = _key(group)
            kept, at_peak, at_end = owners.get(key, (group, 0, 0))
            owners[key] = (kept, at_peak + row.bytes * (which == 0), at_end + row.bytes * (which == 1))
    return SideDevice(*totals, owners)


def side_of(analysis: Analysis, title: str | None = None) -> Side:
    """Make one side of a comparison from an analysis."""
    devices = {}
    for device in analysis.devices:
        totals = (device.headline.allocated_peak, device.headline.allocated_after)
        devices[device.key] = side_device(device.groups, device.peak, device.end, totals)
    return Side(title or analysis.title, devices)


def compare(a: Side, b: Side) -> Diff:
    """Align two recordings by owner, device by device.

    Parameters
    ----------
    a, b
        The earlier and the later one.
    """
    rows = []
    for device in dict.fromkeys([*a.devices, *b.devices]):
        left = a.devices[device].owners if device in a.devices else {}
        right = b.devices[device].owners if device in b.devices else {}
        for key in dict.fromkeys([*left, *right]):
            group = (right.get(key) or left[key])[0]
            _, peak_a, end_a = left.get(key, (group, 0, 0))
            _, peak_b, end_b = right.get(key, (group, 0, 0))
            rows.append(DiffRow(device, group, peak_a, peak_b, end_a, end_b))
    rows.sort(key=lambda row: (-abs(row.growth), -abs(row.end_growth), -row.bytes_b))
    return Diff(a, b, tuple(rows))
