"""A holder scan as text for a terminal or a cell's output."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic._format import format_bytes, format_count, format_duration
from gpumem_magic.holders.copies import copies_text
from gpumem_magic.holders.model import Category, HolderKind
from gpumem_magic.recording.options import RecordOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpumem_magic.holders.model import HolderScan, Storage

__all__ = ["Unowned", "describe_scan"]


class Unowned(NamedTuple):
    """Blocks that an allocator counts and no Python object holds: where they were made, and what that means."""

    device: str
    bytes: int
    blocks: int
    origin: str
    what: str


def describe_scan(
    scan: HolderScan,
    *,
    device: str | None = None,
    top: int = 20,
    origins: Mapping[tuple[str, int], str] | None = None,
    unowned: Iterable[Unowned] = (),
) -> str:
    """Write a scan as a headline and a table, largest first.

    Parameters
    ----------
    scan
        What was found.
    device
        Only this device: an ordinal or torch's notation; all by default.
    top
        Rows at most; what is left out is counted and summed. Where there are more storages, those that are alike but
        for their place in a list share a row.
    origins
        Which cell and line made a storage, by (device, address), where that is certain.
    unowned
        What an allocator counts and no Python object holds.

    Raises
    ------
    BadUsageError
        For a device that no machine has.
    """
    made = origins or {}
    covers = RecordOptions(device=device).covers
    storages = [storage for storage in scan.storages if covers(storage.device)]
    if not storages:
        where = f" on {'device ' if device.isdigit() else ''}{device}" if device else ""
        return f"gpumem: no live tensor{where}. {scan.cut or ''}".rstrip()
    totals: dict[str, int] = defaultdict(int)
    for storage in storages:
        totals[storage.device] += storage.size
    held = ", ".join(f"{format_bytes(size)} on {name}" for name, size in sorted(totals.items()))
    count = "1 live tensor storage holds" if len(storages) == 1 else f"{len(storages):,} live tensor storages hold"
    lines = [f"gpumem: {count} {held}."]
    lines += _accidental(storages)
    # Many alike would fill the table before anything else is seen in it.
    series = _series(storages, made) if len(storages) > top else [[storage] for storage in storages]
    rows = [_row(alike, made) for alike in series[:top]]
    # The first column is of numbers; one that is empty everywhere is left out.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for size, *texts in rows:
        columns = [f"{text:<{width}}" for text, width in zip(texts, widths[1:], strict=True) if width]
        lines.append(f"  {size:>{widths[0]}}  {'  '.join(columns)}".rstrip())
    rest = [storage for alike in series[top:] for storage in alike]
    if rest:
        total = format_bytes(sum(storage.size for storage in rest))
        lines.append(f"  … and {format_count(len(rest))} more, {total} in all")
    lines += [_unowned_text(item) for item in unowned if covers(item.device)]
    lines += [_graph_text(path, nodes, storages) for path, nodes in scan.graphs[:5]]
    lines += [f"  {text}" for text in (*_on_context(storages), *copies_text(scan), *_hooks_text(scan))]
    if scan.cut:
        lines.append(f"  {scan.cut}")
    lines.append(f"  looked at {format_count(scan.objects)} objects in {format_duration(scan.seconds)}")
    return "\n".join(lines)


_ACCIDENTS = {
    HolderKind.LAST_ERROR: "held by the last error",
    HolderKind.HANDLED_THEN: "held by the error that was being handled when the last one came",
    HolderKind.OUTPUT: "held by the output history",
    HolderKind.CYCLE: "held by reference cycles until Python collects them",
    HolderKind.DEBUGGER: "held by the debugger",
    HolderKind.COMPILE_CACHE: "held by torch.compile's cache alone",
}
_ON_CONTEXT = re.compile(r"\.grad_fn → (\w+) attribute `")
_MOST_HOOKS = 5
_MOST_OTHERS = 3
_INDEX = re.compile(r"\[(\d+)\]")
_OF_NO_NAME = frozenset({Category.ACTIVATION, Category.OTHER})
# Fewer are read one by one.
_LEAST_ALIKE = 4
_OPTIONS = {HolderKind.OUTPUT: " (with --out)", HolderKind.COMPILE_CACHE: " (with --compiled)"}


def _accidental(storages: list[Storage]) -> list[str]:
    """Say what nobody meant to keep: memory whose best holder is an accident."""
    totals: dict[HolderKind, int] = defaultdict(int)
    for storage in storages:
        # What a function that is being debugged uses is not kept by accident.
        if all(holder.kind is not HolderKind.RUNNING for holder in storage.holders):
            totals[storage.holders[0].kind] += storage.size
    return [
        f"  {format_bytes(totals[kind])} {words}: %gpumem_free gives it back" + _OPTIONS.get(kind, "")
        for kind, words in _ACCIDENTS.items()
        if totals.get(kind)
    ]


def _hooks_text(scan: HolderScan) -> list[str]:
    """Say which hooks live on modules that keep tensors, those alike in one line."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, names in scan.hooks:
        alike[names].append(path)
    lines = []
    for names, paths in list(alike.items())[:_MOST_HOOKS]:
        shown = ", ".join(paths[:3]) + (f" and {format_count(len(paths) - 3)} more" if len(paths) > 3 else "")
        verbs = "keeps tensors as attributes and has" if len(paths) == 1 else "keep tensors as attributes and have"
        more = f" and {format_count(len(names) - 3)} more" if len(names) > 3 else ""
        lines.append(f"{shown} {verbs} hooks: {', '.join(names[:3])}{more}")
    return lines


def _on_context(storages: Iterable[Storage]) -> list[str]:
    """Say what custom autograd functions keep as plain attributes, which backward does not free."""
    totals: dict[str, int] = defaultdict(int)
    for storage in storages:
        match = _ON_CONTEXT.search(storage.holders[0].path)
        if match:
            totals[match[1]] += storage.size
    return [
        f"{format_bytes(size)} are attributes of {node}'s ctx, which live as long as the graph: "
        "ctx.save_for_backward() lets backward free them"
        for node, size in totals.items()
    ]


def _unowned_text(item: Unowned) -> str:
    where = f", made at {item.origin}" if item.origin else ""
    blocks = f"{format_count(item.blocks)} {'block' if item.blocks == 1 else 'blocks'}"
    return f"  {format_bytes(item.bytes)} on {item.device} in {blocks} that no Python object holds{where}: {item.what}"


def _graph_text(path: str, nodes: int, storages: Iterable[Storage]) -> str:
    """Say what a graph keeps: its nodes, and what they saved that nothing else names."""
    saved = sum(
        storage.size
        for storage in storages
        if storage.holders[0].kind is HolderKind.GRAPH
        and (storage.holders[0].root == path or storage.holders[0].path.startswith(f"{path}.grad_fn"))
    )
    what = f", and {format_bytes(saved)} that they saved" if saved else ""
    return f"  {path} keeps {format_count(nodes)} autograd nodes alive{what}"


def _series(storages: Iterable[Storage], origins: Mapping[tuple[str, int], str]) -> list[list[Storage]]:
    """Put together what is alike but for a position in a list, or saved by one graph, the largest sum first.

    Parameters and what belongs to them keep rows of their own: each is known by its name.
    """
    alike: dict[tuple[object, ...], list[Storage]] = defaultdict(list)
    for storage in storages:
        made = origins.get((storage.device, storage.address), "")
        pattern: tuple[object, ...] = (storage.device, storage.address)
        if storage.category in _OF_NO_NAME:
            pattern = (storage.category, storage.dtype, storage.shared, _INDEX.sub("[]", storage.holders[0].path))
        key = (storage.device, made, *pattern)
        alike[key].append(storage)
    found: list[list[Storage]] = []
    for those in alike.values():
        found += [those] if len(those) >= _LEAST_ALIKE else [[storage] for storage in those]
    return sorted(found, key=lambda those: -sum(storage.size for storage in those))


def _row(alike: Sequence[Storage], origins: Mapping[tuple[str, int], str]) -> tuple[str, ...]:
    storage = alike[0]
    first, *others = storage.holders
    shape = "×".join(map(str, storage.shape)) or "scalar"
    what = f"{storage.category.value} {shape} {storage.dtype}{', shared memory' if storage.shared else ''}"
    made = origins.get((storage.device, storage.address), "")
    path = first.path
    if len(alike) > 1:
        if any(other.shape != storage.shape for other in alike):
            what = f"{storage.category.value} {storage.dtype}, of several shapes"
        what, path = f"{format_count(len(alike))} × {what}", _span([other.holders[0].path for other in alike])
    elif others:
        more = f" and {format_count(len(others) - _MOST_OTHERS)} more" if len(others) > _MOST_OTHERS else ""
        path = f"{path} (also {', '.join(holder.path for holder in others[:_MOST_OTHERS])}{more})"
    return format_bytes(sum(one.size for one in alike)), storage.device, what, made, path


def _span(paths: Sequence[str]) -> str:
    """Write paths that differ in their indices as one: ``outputs[0…411]``."""
    columns = list(zip(*(map(int, _INDEX.findall(path)) for path in paths), strict=True))
    spans = iter(
        f"[{min(column)}]" if min(column) == max(column) else f"[{min(column)}…{max(column)}]" for column in columns
    )
    return _INDEX.sub(lambda _match: next(spans), paths[0])
