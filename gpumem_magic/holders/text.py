"""A holder scan as text for a terminal or a cell's output."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_count, format_duration
from gpumem_magic.holders.model import HolderKind

if TYPE_CHECKING:
    from gpumem_magic.holders.model import HolderScan, Storage

__all__ = ["describe_scan"]


def describe_scan(scan: HolderScan, *, device: str | None = None, top: int = 20) -> str:
    """Write a scan as a headline and a table, largest first.

    Parameters
    ----------
    scan
        What was found.
    device
        Only this device; all by default.
    top
        Rows at most; what is left out is counted and summed.
    """
    storages = [storage for storage in scan.storages if device is None or storage.device == device]
    if not storages:
        where = f" on {device}" if device else ""
        return f"gpumem: no live tensor{where}. {scan.cut or ''}".rstrip()
    totals: dict[str, int] = defaultdict(int)
    for storage in storages:
        totals[storage.device] += storage.size
    held = ", ".join(f"{format_bytes(size)} on {name}" for name, size in sorted(totals.items()))
    lines = [f"gpumem: {format_count(len(storages))} live tensor storages hold {held}."]
    lines += _accidental(storages)
    rows = [_row(storage) for storage in storages[:top]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += [
        f"  {size:>{widths[0]}}  {where:<{widths[1]}}  {what:<{widths[2]}}  {path}".rstrip()
        for size, where, what, path in rows
    ]
    rest = storages[top:]
    if rest:
        total = format_bytes(sum(storage.size for storage in rest))
        lines.append(f"  … and {format_count(len(rest))} more, {total} in all")
    lines += [f"  {path} keeps {format_count(nodes)} autograd nodes alive" for path, nodes in scan.graphs[:5]]
    if scan.cut:
        lines.append(f"  {scan.cut}")
    lines.append(f"  looked at {format_count(scan.objects)} objects in {format_duration(scan.seconds)}")
    return "\n".join(lines)


_ACCIDENTS = {
    HolderKind.LAST_ERROR: "held by the last error",
    HolderKind.OUTPUT: "held by the output history",
    HolderKind.CYCLE: "held by reference cycles until Python collects them",
    HolderKind.DEBUGGER: "held by the debugger",
}


def _accidental(storages: list[Storage]) -> list[str]:
    """Say what nobody meant to keep: memory whose best holder is an accident."""
    totals: dict[HolderKind, int] = defaultdict(int)
    for storage in storages:
        totals[storage.holders[0].kind] += storage.size
    return [
        f"  {format_bytes(totals[kind])} {words}: %gpumem_free gives it back"
        + (" (with --out)" if kind is HolderKind.OUTPUT else "")
        for kind, words in _ACCIDENTS.items()
        if totals.get(kind)
    ]


def _row(storage: Storage) -> tuple[str, str, str, str]:
    first, *others = storage.holders
    also = f" (also {', '.join(holder.path for holder in others[:3])})" if others else ""
    shape = "×".join(map(str, storage.shape)) or "scalar"
    what = f"{storage.category.value} {shape} {storage.dtype}"
    return format_bytes(storage.size), storage.device, what, first.path + also
