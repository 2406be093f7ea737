"""What keeps a leak alive, from a scan for holders: names for the verdict, and growth that is meant told apart."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic.analysis.groups import PlaceNamer
from gpumem_magic.analysis.leaks.find import Scene
from gpumem_magic.analysis.leaks.loops import loops_on_one_line, parse_cell
from gpumem_magic.analysis.leaks.model import Growth, Keeper
from gpumem_magic.analysis.leaks.words import filling_sentence, headline, leak_sentence, once_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumem_magic.analysis.leaks.model import Leak
    from gpumem_magic.analysis.model import Analysis, Group
    from gpumem_magic.holders.model import HolderScan, Storage

__all__ = ["name_keepers", "with_keepers", "with_leaks"]

# What grows because a loop builds a model or an optimizer's state is wanted.
_MEANT = {"PARAMETER": "parameters", "BUFFER": "buffers", "OPTIMIZER": "optimizer state"}
_MEANT_SHARE = 0.9
# Holders of less than this say nothing about the whole.
_KNOWN_SHARE = 0.5
_MOST_KEEPERS = 5
# Of a container's path; a longer one is not read.
_MOST_STEPS = 5
_TYPED = re.compile(r"\w+(?:\.\w+|\[(?:'[^']*'|\d+)\])*")
# Of the paths to what grew.
_NEARLY_ALL = 0.8
# What libraries keep things in, and nobody types: a module's registries, a queue's list, a future's result.
_INNARDS = re.compile(
    r"\._(?:_|modules\b|parameters\b|buffers\b|\w*hooks|queue\b|result\b|exception\b)|\.grad(?:_fn)?\b"
)
_STEPS = re.compile(r"^\w+|\.\w+|\[(?:'[^']*'|\d+)\]")
# Methods by which containers take things in.
_TAKES_IN = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft", "put"})


def with_leaks(analysis: Analysis, leaks: Sequence[Leak], scan: HolderScan | None) -> Analysis:
    """Return an analysis that tells these verdicts too, on devices that it shows."""
    if not leaks:
        return analysis
    old = headline(analysis.leaks)
    devices = []
    for device in analysis.devices:
        more = tuple(leak for leak in leaks if leak.device == device.key)
        growth = device.growth or Growth()
        devices.append(replace(device, growth=replace(growth, leaks=(*growth.leaks, *more))) if more else device)
    wider = replace(analysis, devices=tuple(devices))
    if analysis.oom is None:
        wider = replace(wider, sentence=headline(wider.leaks) + analysis.sentence.removeprefix(old))
    return wider if scan is None else with_keepers(wider, scan)


def with_keepers(analysis: Analysis, scan: HolderScan) -> Analysis:
    """Return an analysis whose verdicts name what keeps them, as a scan found that was made after it."""
    namer = PlaceNamer(analysis.cell)
    scene = Scene(analysis.cell, None, lambda *place: namer.line(*place)[1])
    old = headline(analysis.leaks)
    devices = tuple(
        device if device.growth is None else replace(device, growth=name_keepers(device.growth, scan, scene))
        for device in analysis.devices
    )
    named = replace(analysis, devices=devices)
    if old and analysis.sentence.startswith(old):
        named = replace(named, sentence=headline(named.leaks) + analysis.sentence.removeprefix(old))
    return named


def name_keepers(growth: Growth, scan: HolderScan, scene: Scene) -> Growth:
    """Return the same growth with what keeps it.

    A verdict whose memory belongs to parameters, buffers or optimizer state becomes a remark: a loop that builds a
    model leaks nothing.

    Parameters
    ----------
    growth
        What grew on one device.
    scan
        Who holds what, looked up after the code.
    scene
        The recording, whose lines say what puts things where.
    """
    storages = {(storage.device, storage.address): storage for storage in scan.storages}
    nodes = _graph_nodes(scan)
    leaks: list[Leak] = []
    small: list[Leak] = []
    for found, told in ((growth.leaks, True), (growth.small, False)):
        for leak in found:
            held = [storages[key] for address in leak.addresses.tolist() if (key := (leak.device, address)) in storages]
            named = replace(leak, keepers=_keepers(held, nodes, leak, scene))
            meant = _meant(held, leak)
            if meant is not None:
                text = f"{leak_sentence(named).sentence}: {meant}, made in a loop"
                small.append(replace(named, sentence=text))
                continue
            if _is_one_graph(held, leak, scene):
                where = "that loop" if _is_the_cells_own(leak) else "the loop in that function"
                text = f"{leak_sentence(named).sentence}: one graph, as deep as {where} is long"
                small.append(replace(named, sentence=text))
                continue
            filling = _filling(held, named, scan)
            if filling is not None:
                small.append(replace(named, sentence=filling))
                continue
            # A graph that grows is never meant, however few bytes are left of it.
            keeps_graphs = any(keeper.graph_nodes > leak.grown for keeper in named.keepers)
            (leaks if told or keeps_graphs else small).append(leak_sentence(named))
    parameters: dict[str, int] = defaultdict(int)
    for storage in scan.storages:
        if storage.category.name == "PARAMETER":
            parameters[storage.device] += storage.size
    once = tuple(
        once_of(item, parameters[item.device], "the parameters") if parameters[item.device] else item
        for item in growth.once
    )
    return replace(growth, leaks=tuple(leaks), small=tuple(small), once=once)


def _graph_nodes(scan: HolderScan) -> Mapping[str, int]:
    """Return root → autograd nodes that it keeps."""
    nodes: dict[str, int] = defaultdict(int)
    for path, count in scan.graphs:
        nodes[_root(path)] += count
    return nodes


def _root(path: str) -> str:
    for position, sign in enumerate(path):
        if sign in ".[ ":
            return path[:position]
    return path


def _meant(held: Iterable[Storage], leak: Leak) -> str | None:
    sizes: dict[str, int] = defaultdict(int)
    for storage in held:
        # Models that nothing names any more, in cycles that wait for the collector, are not what was wanted.
        is_named = storage.holders[0].kind.name in {"VARIABLE", "MODULE", "RUNNING"}
        sizes[storage.category.name if is_named else ""] += storage.size
    best = max(sizes, key=lambda name: sizes[name], default="")
    meant = sum(size for name, size in sizes.items() if name in _MEANT)
    shown = min(sum(sizes.values()), leak.bytes)
    if shown < _KNOWN_SHARE * leak.listed_bytes:
        return None
    return _MEANT[best] if best in _MEANT and shown and meant >= _MEANT_SHARE * shown else None


def _filling(held: Sequence[Storage], leak: Leak, scan: HolderScan) -> str | None:
    """Say that a bounded container fills up, when that is all that grows: it has room yet, and an item a time."""
    total = sum(storage.size for storage in held)
    for path, bound in scan.bounds.items():
        inside = sum(storage.size for storage in held if storage.holders[0].path.startswith(path))
        if inside and inside >= _MEANT_SHARE * total and leak.grown <= bound.items < bound.most:
            return filling_sentence(leak, path, bound.items, bound.most)
    return None


def _is_one_graph(held: Sequence[Storage], leak: Leak, scene: Scene) -> bool:
    """Tell whether the graph of a single tensor keeps what a function's loop made: a network written as a function.

    In a loop of the cell itself, a graph that gets longer each time is what leaks are made of.
    """
    if not held or (_is_the_cells_own(leak) and not _runs_layers(scene, leak)):
        return False
    saved = [storage for storage in held if storage.holders[0].kind.name == "GRAPH"]
    ends = {storage.holders[0].path.partition(".grad_fn")[0] for storage in saved}
    return len(ends) == 1 and sum(item.size for item in saved) >= _MEANT_SHARE * sum(item.size for item in held)


def _is_the_cells_own(leak: Leak) -> bool:
    """Tell whether the loop is one of the cell itself, on one line perhaps, and not a function's."""
    if leak.loop is not None:
        return leak.loop.function == "<module>"
    groups = [line.group for line in leak.lines[:1]]
    return any(group.function in {None, "<module>"} and loops_on_one_line(group.source or "") for group in groups)


def _runs_layers(scene: Scene, leak: Leak) -> bool:
    """Tell whether each iteration calls what the loop goes through: ``for layer in layers: x = layer(x)``."""
    loop = leak.loop
    source = (leak.lines[0].group.source or "") if loop is None and leak.lines else _source_of(scene, leak)
    tree = parse_cell(source.strip() if loop is None else source)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.For) or (loop is not None and node.lineno != loop.line):
            continue
        names = {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        calls = (part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Call))
        if any(isinstance(call.func, ast.Name) and call.func.id in names for call in calls):
            return True
    return False


def _source_of(scene: Scene, leak: Leak) -> str:
    """Return the text of the cell with a leak's loop, ``""`` where it is not known."""
    loop = leak.loop
    if scene.cell is None or loop is None or loop.file is None:
        return ""
    if loop.file in scene.cell.filenames:
        return scene.cell.source
    return scene.cell.others.get(loop.file, (None, ""))[1]


def _keepers(held: Iterable[Storage], nodes: Mapping[str, int], leak: Leak, scene: Scene) -> tuple[Keeper, ...]:
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    paths: dict[tuple[str, str], list[str]] = defaultdict(list)
    for storage in held:
        holder = storage.holders[0]
        if holder.kind.name == "UNKNOWN":
            continue
        # One frame's variables are one keeper; so are all results of the output history.
        key = (holder.kind.value, _root(holder.root) if holder.kind.name in {"VARIABLE", "GRAPH"} else holder.root)
        sizes[key] += storage.size
        paths[key].append(holder.path)
    merged = _merged(sizes)
    lines = _storing_lines(scene, leak)
    found = [
        Keeper(
            path=paths[kind, root][0],
            root=root,
            kind=kind,
            bytes=size,
            graph_nodes=nodes.get(root, 0),
            line=lines.get(root),
            container=_container(paths[kind, root]) if kind in {"variable", "autograd graph"} else "",
        )
        for (kind, root), size in merged.items()
    ]
    return tuple(sorted(found, key=lambda keeper: -keeper.bytes)[:_MOST_KEEPERS])


def _container(paths: Sequence[str]) -> str:
    """Return what nearly all of several paths begin with, as a user would type it, ``""`` where that is their root.

    Not all: what came last may hang on another name as well, ``trainer.last`` beside ``trainer.outputs``.
    """
    kept = [_STEPS.findall(match[0]) if (match := _TYPED.match(path)) else [] for path in paths]
    least = _NEARLY_ALL * len(kept)
    found: list[str] = []
    while len(found) <= _MOST_STEPS:
        following = Counter(steps[len(found)] for steps in kept if len(steps) > len(found))
        step, count = following.most_common(1)[0] if following else ("", 0)
        if count < least or _INNARDS.match(step):
            break
        kept = [steps for steps in kept if steps[len(found) : len(found) + 1] == [step]]
        found.append(step)
    return "".join(found) if len(paths) > 1 and 1 < len(found) <= _MOST_STEPS else ""


def _merged(sizes: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Put what a name keeps directly and what the graph behind it keeps together, under the larger of the two."""
    by_root: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key in sizes:
        by_root[key[1]].append(key)
    return {max(keys, key=lambda key: sizes[key]): sum(sizes[key] for key in keys) for keys in by_root.values()}


def _storing_lines(scene: Scene, leak: Leak) -> dict[str, Group]:
    """Return name → the first line of the leak's loop that puts something into that container."""
    loop = leak.loop
    if scene.cell is None or loop is None or loop.file is None or loop.line is None:
        return {}
    tree = parse_cell(_source_of(scene, leak))
    found: dict[str, Group] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and node.lineno == loop.line:
            for statement in node.body:
                for name, line in _stores(statement):
                    found.setdefault(name, scene.name(loop.file, line, loop.function or "<module>"))
    return found


def _stores(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """Yield (container's name, line) of what adds to something: calls that take in, ``x[k] = …``, ``x += …``."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKES_IN:
            yield from _named(node.func.value, node.lineno)
        elif isinstance(node, ast.AugAssign):
            yield from _named(node.target, node.lineno)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, (ast.Subscript, ast.Attribute)):
                    yield from _named(target, node.lineno)
                elif isinstance(target, ast.Name) and any(
                    isinstance(part, ast.Name) and part.id == target.id for part in ast.walk(node.value)
                ):
                    yield target.id, node.lineno


def _named(node: ast.expr, line: int) -> Iterator[tuple[str, int]]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id, line
