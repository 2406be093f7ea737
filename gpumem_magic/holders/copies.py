"""What is there more than once: a checkpoint beside its model, models of former runs, objects of a former class."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.holders.model import Category, HolderKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.holders.model import HolderScan, LiveModel, Storage

__all__ = ["Duplicate", "copies_text", "duplicate_text", "duplicates"]

# Of a model's parameters; a checkpoint may lack what is tied or frozen.
_SHARE = 0.9
_LEAST = 1 << 20
_MOST_SHOWN = 3
_ORDER = tuple(HolderKind)
_NAMED = frozenset({HolderKind.VARIABLE, HolderKind.OUTPUT})
# What keeps a model that nobody meant to keep.
_ACCIDENTS = frozenset(
    {HolderKind.LAST_ERROR, HolderKind.HANDLED_THEN, HolderKind.OUTPUT, HolderKind.CYCLE, HolderKind.DEBUGGER}
)


class Duplicate(NamedTuple):
    """A variable whose tensors have the shapes of a model's parameters: bytes of these, and their share."""

    copy: str
    model: str
    device: str
    bytes: int
    share: float


def duplicates(scan: HolderScan) -> tuple[Duplicate, ...]:
    """Find what looks like a second copy of a model's parameters on the same device, the largest first."""
    models: dict[tuple[str, str], Counter[tuple[object, ...]]] = defaultdict(Counter)
    others: dict[tuple[str, str], Counter[tuple[object, ...]]] = defaultdict(Counter)
    for storage in scan.storages:
        holder = storage.holders[0]
        if holder.kind not in _NAMED or storage.category not in {Category.PARAMETER, Category.OTHER}:
            continue
        side = models if storage.category is Category.PARAMETER else others
        side[storage.device, holder.root][storage.shape, storage.dtype, storage.size] += 1
    found = []
    for (device, model), parameters in models.items():
        total = _bytes(parameters)
        for (place, root), tensors in others.items():
            alike = parameters & tensors
            shared, count = _bytes(alike), sum(alike.values())
            # One tensor of a parameter's shape is no copy of a model: an output has it as well.
            is_copy = count > 1 and count >= _SHARE * sum(parameters.values()) and shared >= max(_SHARE * total, _LEAST)
            if place == device and root != model and is_copy:
                found.append(Duplicate(root, model, device, shared, shared / total))
    return tuple(sorted(found, key=lambda duplicate: -duplicate.bytes))


def _bytes(tensors: Mapping[tuple[object, ...], int]) -> int:
    return sum(count * size for (*_, size), count in tensors.items() if isinstance(size, int))


def duplicate_text(found: Duplicate) -> str:
    """Write a duplicate as a sentence."""
    there = "" if found.device == "cpu" else ", or load it to the host (map_location='cpu')"
    return (
        f"`{found.copy}` duplicates {found.share:.0%} of `{found.model}`'s parameters on {found.device} (same shapes), "
        f"{format_bytes(found.bytes)}: if it is a checkpoint that was loaded, del {found.copy}{there}"
    )


def copies_text(scan: HolderScan) -> list[str]:
    """Write what is there more than once, a line each."""
    lines = [duplicate_text(found) for found in duplicates(scan)[:_MOST_SHOWN]]
    lines += [
        f"two versions of class {name} are alive, as it was defined again: objects of the former one hold "
        f"{format_bytes(size)} ({path})"
        for name, (size, path) in _former(scan).items()
    ]
    storages = {(storage.device, storage.address): storage for storage in scan.storages}
    by_name: dict[str, list[LiveModel]] = defaultdict(list)
    for model in scan.models:
        by_name[model.name].append(model)
    for name, models in by_name.items():
        held = [_largest(model, storages) for model in models]
        first = sorted(
            (storage.holders[0] for storage in held if storage is not None),
            key=lambda holder: _ORDER.index(holder.kind),
        )
        if len(models) < 2 or not any(holder.kind in _ACCIDENTS for holder in first):
            continue
        kept = Counter(holder.root if holder.kind in _NAMED else holder.kind.value for holder in first)
        paths = [path if count == 1 else f"{path} ({count})" for path, count in kept.items()]
        more = f" and {len(paths) - _MOST_SHOWN} more" if len(paths) > _MOST_SHOWN else ""
        size = format_bytes(sum(model.bytes for model in models))
        lines.append(
            f"{format_count(len(models))} instances of {name} are alive, {size}: held by "
            f"{', '.join(paths[:_MOST_SHOWN])}{more}"
        )
    return lines


def _largest(model: LiveModel, storages: Mapping[tuple[str, int], Storage]) -> Storage | None:
    found = [storages[key] for key in model.storages if key in storages]
    return max(found, key=lambda storage: storage.size, default=None)


def _former(scan: HolderScan) -> dict[str, tuple[int, str]]:
    """Return class → bytes, and the path of the largest storage."""
    found: dict[str, tuple[int, str]] = {}
    for storage in scan.storages:
        name = scan.former.get((storage.device, storage.address))
        if name:
            size, path = found.get(name, (0, storage.holders[0].path))
            found[name] = size + storage.size, path
    return found
