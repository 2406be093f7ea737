"""Two recordings side by side: who holds more and who less, at each one's peak and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from gpumem_magic.analysis.model import Analysis, Group, Row

    _Owner: TypeAlias = tuple[Group, int, int]

__all__ = ["Diff", "DiffRow", "Side", "compare", "side_of"]

OwnerKey = tuple[str, ...]
_ALIKE = 0.7
# Further apart, two lines of one function are more likely different code than the same code moved.
_MOST_MOVED = 60
# What a cell without torch is reported by: this process's memory, which is never nothing.
_SAMPLED, _SAMPLED_GPU = frozenset({"host", "child processes"}), "GPU "


@dataclass(frozen=True)
class SideDevice:
    """One device of one recording: its totals in bytes, and per owner the group, bytes at the peak and at the end.

    `members` are the indices of each owner's groups among the device's groups; `reserved` is the most that was
    reserved, None where that is not known.
    """

    peak: int | None
    end: int | None
    owners: Mapping[OwnerKey, _Owner]
    members: Mapping[OwnerKey, tuple[int, ...]]
    reserved: int | None = None


@dataclass(frozen=True)
class Side:
    """One of the two recordings."""

    title: str
    devices: Mapping[str, SideDevice]


@dataclass(frozen=True)
class DiffRow:
    """One owner in both recordings, in bytes; 0 where it held nothing.

    `groups_a` and `groups_b` are its groups among those of the device in each recording.
    """

    device: str
    group: Group
    bytes_a: int
    bytes_b: int
    end_bytes_a: int
    end_bytes_b: int
    groups_a: tuple[int, ...] = ()
    groups_b: tuple[int, ...] = ()

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

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that can be compared, the one with the largest change of the peak first."""
        keys = [key for key in _devices(self.a, self.b) if key not in self.sampled_once]
        return tuple(sorted(keys, key=lambda key: -abs(self.totals(key)[1] or 0)))

    @property
    def sampled_once(self) -> Mapping[str, str]:
        """What was sampled in one recording only, and in which: what it was in the other one nobody looked."""
        return _sampled_once(self.a, self.b)

    def totals(self, device: str) -> tuple[int | None, int | None]:
        """Return a device's peak in A, and what B's has more; None where torch did not count. No device: no bytes."""
        a, b = (side.devices[device].peak if device in side.devices else 0 for side in (self.a, self.b))
        return a, None if a is None or b is None else b - a

    def reserved(self, device: str) -> tuple[int, int] | None:
        """Return the most bytes that were reserved in A and in B; None where one of them is not known."""
        a, b = (side.devices[device].reserved if device in side.devices else None for side in (self.a, self.b))
        return None if a is None or b is None else (a, b)

    @property
    def sentence(self) -> str:
        """The one line that a tired person can act on."""
        if not self.devices and self.sampled_once:
            key, title = next(iter(self.sampled_once.items()))
            return f"Nothing to compare: {key} was sampled in {title} only."
        if not self.devices:
            return "Neither recording used a device: nothing to compare."
        device = self.devices[0]
        before, growth = self.totals(device)
        own = [row for row in self.rows if row.device == device]
        changed = [row for row in own if row.growth]
        where = f" on {device}" if len(self.devices) > 1 else ""
        if growth is None or before is None:
            return f"The peaks cannot be compared{where}: one of them is unknown."
        if format_bytes(before) == format_bytes(before + growth):
            text = f"Both peak at {format_bytes(before)}{where}"
            held = f"but {_biggest(changed, growth or 1)}" if changed else "held by the same lines"
            return f"{text}, {held}{self._reserved_too(device)}."
        text = f"B's peak is {format_bytes(abs(growth))} {'higher' if growth > 0 else 'lower'}{where}"
        text += f" ({format_bytes(before)} → {format_bytes(before + growth)})"
        return f"{text}: {_biggest(changed, growth)}." if changed else f"{text}."

    def _reserved_too(self, device: str) -> str:
        """Name a change of what was reserved: where the peaks are equal, it is what another setting made."""
        found = self.reserved(device)
        if found is None or found[0] == found[1]:
            return ""
        return f"; reserved {format_bytes(found[0])} → {format_bytes(found[1])}"


def _biggest(rows: Sequence[DiffRow], direction: int) -> str:
    """Name the row that went furthest in the direction of the whole, or failing one, the largest change."""
    same = [row for row in rows if row.growth * direction > 0] or list(rows)
    row = max(same, key=lambda row: abs(row.growth))
    code = "" if row.group.source is None else f" `{row.group.source.strip()}`"
    return f"{row.group.label}{code} {format_bytes(row.growth, signed=True)}"


def _devices(a: Side, b: Side) -> list[str]:
    return list(dict.fromkeys([*a.devices, *b.devices]))


def _sampled_once(a: Side, b: Side) -> dict[str, str]:
    sampled = [key for key in _devices(a, b) if key in _SAMPLED or key.startswith(_SAMPLED_GPU)]
    return {key: (a if key in a.devices else b).title for key in sampled if (key in a.devices) != (key in b.devices)}


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


def _moved(a: Mapping[OwnerKey, _Owner], b: Mapping[OwnerKey, _Owner]) -> dict[OwnerKey, OwnerKey]:
    """Find what stands elsewhere in B: a line of a file in another folder or moved by an edit, a cell's edited line.

    Inside one function all unmatched lines of a file must have moved by the same number of lines, at most
    `_MOST_MOVED`. A cell's line that was edited keeps its number and most of its text.
    """
    only_a, only_b = (
        {key: group for key, (group, _, _) in one.items() if key not in two} for one, two in ((a, b), (b, a))
    )
    found: dict[OwnerKey, OwnerKey] = {}
    edited = {(group.function, group.label): key for key, group in only_b.items() if group.kind == "line"}
    for key, group in only_a.items():
        other = edited.get((group.function, group.label)) if group.kind == "line" else None
        if other is not None and _alike(group.source, only_b[other].source):
            found[key] = edited.pop((group.function, group.label))
    places_a, places_b = _by_function(only_a), _by_function(only_b)
    for place, mine in places_a.items():
        theirs = places_b.get(place, {})
        for line in mine.keys() & theirs.keys():
            found[mine.pop(line)] = theirs.pop(line)
        shifts = {new - old for old, new in zip(sorted(mine), sorted(theirs), strict=False)}
        if len(mine) == len(theirs) and len(shifts) == 1 and abs(shifts.pop()) <= _MOST_MOVED:
            found.update((mine[old], theirs[new]) for old, new in zip(sorted(mine), sorted(theirs), strict=True))
    return found


def _alike(a: str | None, b: str | None) -> bool:
    """Tell an edited line from another one in its place: ``f(3)`` and ``f(9)`` are one, ``f(3)`` and ``del x`` two."""
    return a is not None and b is not None and SequenceMatcher(None, a, b, autojunk=False).ratio() >= _ALIKE


def _by_function(groups: Mapping[OwnerKey, Group]) -> dict[tuple[str, str], dict[int, OwnerKey]]:
    places: dict[tuple[str, str], dict[int, OwnerKey]] = {}
    for key, group in groups.items():
        if group.kind == "frame":
            name = (group.file or "").replace("\\", "/").rsplit("/", 1)[-1]
            places.setdefault((name, group.function or ""), {})[group.line or 0] = key
    return places


def side_device(
    groups: Sequence[Group],
    peak: Iterable[Row],
    end: Iterable[Row],
    totals: tuple[int | None, int | None],
    reserved: int | None = None,
) -> SideDevice:
    """Collect one device's rows by owner; `totals` are its allocated bytes at the peak and at the end."""
    owners: dict[OwnerKey, _Owner] = {}
    members: dict[OwnerKey, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(_key(group), []).append(index)
    for which, rows in enumerate((peak, end)):
        for row in rows:
            group = groups[row.group]
            key = _key(group)
            kept, at_peak, at_end = owners.get(key, (group, 0, 0))
            owners[key] = (kept, at_peak + row.bytes * (which == 0), at_end + row.bytes * (which == 1))
    return SideDevice(*totals, owners, {key: tuple(indices) for key, indices in members.items()}, reserved)


def side_of(analysis: Analysis, title: str | None = None) -> Side:
    """Make one side of a comparison from an analysis."""
    devices = {}
    for device in analysis.devices:
        totals = (device.headline.allocated_peak, device.headline.allocated_after)
        reserved = device.headline.reserved_peak
        devices[device.key] = side_device(device.groups, device.peak, device.end, totals, reserved)
    return Side(title or analysis.title, devices)


def compare(a: Side, b: Side) -> Diff:
    """Align two recordings by owner, device by device.

    Parameters
    ----------
    a, b
        The earlier and the later one.
    """
    rows = []
    nothing = SideDevice(0, 0, {}, {})
    for device in _devices(a, b):
        if device in _sampled_once(a, b):
            continue
        side_a, side_b = (side.devices.get(device, nothing) for side in (a, b))
        moved = _moved(side_a.owners, side_b.owners)
        left = {moved.get(key, key): owner for key, owner in side_a.owners.items()}
        members = {moved.get(key, key): groups for key, groups in side_a.members.items()}
        right = side_b.owners
        for key in dict.fromkeys([*left, *right]):
            group = (right.get(key) or left[key])[0]
            _, peak_a, end_a = left.get(key, (group, 0, 0))
            _, peak_b, end_b = right.get(key, (group, 0, 0))
            groups_a, groups_b = members.get(key, ()), side_b.members.get(key, ())
            rows.append(DiffRow(device, group, peak_a, peak_b, end_a, end_b, groups_a, groups_b))
    rows.sort(key=lambda row: (-abs(row.growth), -abs(row.end_growth), -row.bytes_b))
    return Diff(a, b, tuple(rows))
