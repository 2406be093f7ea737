"""A copy of an analysis that may be shown to anyone: no source, no paths, no names of people's own making."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic._format import visible
from gpumem_magic.analysis.leaks.words import headline
from gpumem_magic.recording.model import Cell, Note
from gpumem_magic.trace.model import StackTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Group
    from gpumem_magic.analysis.oom import OomVerdict

__all__ = ["without_source"]

_QUOTED = re.compile(r"( ?)`([^`]*)`")
# Ours or torch's, to be typed as it stands.
_COMMAND = re.compile(r"%\w+(?: --\w+)*|PYTORCH_\w+(?:=\S*)?|torch(?:\.\w+)+\(\)")
_LINE = re.compile(r"\blines? \d+(?: to \d+)?$")
_HIDDEN = "`…`"


def _base_name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


class _Hiding:
    """Takes code and names out of what is said of an analysis.

    Code behind the place that it stands at goes without a trace; another quotation leaves a mark.
    """

    def __init__(self, analysis: Analysis) -> None:
        groups = [group for device in analysis.devices for group in (*device.groups, device.oom_group)]
        self._labels = tuple({visible(group.label) for group in groups if group is not None})
        # A label names a cell among several.
        self._titles = {span.title: _cell_title(span.execution_count) for span in analysis.cells}

    def text(self, text: str) -> str:
        text = _QUOTED.sub(self._instead, text)
        for title in sorted(self._titles, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(title)}(?!\w)", self._titles[title], text)
        return text

    def group(self, group: Group) -> Group:
        file = None if group.file is None else _base_name(group.file)
        cell = group.cell if group.cell is None else self._titles.get(group.cell, group.cell)
        return group._replace(source=None, file=file, cell=cell)

    def notes(self, notes: Iterable[Note]) -> tuple[Note, ...]:
        """Return notes without names; one that only informs, of something with a name, says nothing without it."""
        bare = (Note(note.level, self.text(note.text)) for note in notes)
        return tuple(note for note in bare if note.level == "warning" or _HIDDEN not in note.text)

    def _instead(self, found: re.Match[str]) -> str:
        blank, quoted = found.groups()
        if _COMMAND.fullmatch(quoted):
            return found.group()
        before = found.string[: found.start()]
        is_placed = blank and (before.endswith(self._labels) or _LINE.search(before) is not None)
        return "" if is_placed else f"{blank}{_HIDDEN}"


def _cell_title(execution_count: int | None) -> str:
    """Name a cell without its label."""
    return "cell" if execution_count is None else f"In [{execution_count}]"


def _device(device: DeviceAnalysis, hiding: _Hiding) -> DeviceAnalysis:
    markers = tuple(
        # An exception's message may hold anything; its type may not.
        marker._replace(text=marker.text.split(":", 1)[0]) if marker.kind == "exception" else marker
        for marker in device.markers
    )
    categories = device.categories
    if categories is not None:
        # Paths are made of names that people gave their variables and layers.
        count = len(categories.module_names)
        categories = replace(categories, module_names=("", *(f"module {number}" for number in range(1, count))))
    return replace(
        device,
        categories=categories,
        groups=tuple(map(hiding.group, device.groups)),
        oom_group=None if device.oom_group is None else hiding.group(device.oom_group),
        oom_state=None,
        # Names of variables, and lines once more.
        growth=None,
        held=(),
        markers=markers,
        regions=tuple(region._replace(name=f"region {n}") for n, region in enumerate(device.regions, 1)),
    )


def _verdict(oom: OomVerdict, hiding: _Hiding) -> OomVerdict:
    from gpumem_magic.analysis.oom.evidence import Evidence

    bare = Evidence(oom.evidence.key, oom.evidence.backend, oom.evidence.kind)
    return replace(
        oom,
        sentence=hiding.text(oom.sentence),
        numbers=tuple(map(hiding.text, oom.numbers)),
        suggestions=tuple(map(hiding.text, oom.suggestions)),
        evidence=bare,
    )


def without_source(analysis: Analysis) -> Analysis:
    """Strip source lines, folders, the label, region names and the error's message.

    File names without folders, function names and line numbers stay: without them the report would say nothing.

    Parameters
    ----------
    analysis
        What to strip; it is left as it is.
    """
    cell = analysis.cell
    hiding = _Hiding(analysis)
    frames = tuple(frame._replace(filename=_base_name(frame.filename)) for frame in analysis.stacks.frames)
    title = analysis.title
    if cell is not None:
        cell = Cell(cell.execution_count, None, "", runs=cell.runs)
        title = _cell_title(cell.execution_count)
    return replace(
        analysis,
        title=title,
        sentence=hiding.text(analysis.sentence.removeprefix(headline(analysis.leaks))),
        error=None if analysis.error is None else analysis.error.split(":", 1)[0],
        cell=cell,
        devices=tuple(_device(device, hiding) for device in analysis.devices),
        stacks=StackTable(frames, analysis.stacks.stacks),
        notes=hiding.notes(analysis.notes),
        oom=None if analysis.oom is None else _verdict(analysis.oom, hiding),
        cells=tuple(
            span._replace(
                title=_cell_title(span.execution_count),
                sentence=hiding.text(span.sentence),
            )
            for span in analysis.cells
        ),
    )
