"""A copy of an analysis that may be shown to anyone: no source, no paths, no names of people's own making."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic.analysis.leaks.words import headline
from gpumem_magic.recording.model import Cell, Note
from gpumem_magic.trace.model import StackTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis, Group
    from gpumem_magic.analysis.oom import OomVerdict

__all__ = ["without_source"]

_QUOTED = re.compile(r" `[^`]*`")


def _base_name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _group(group: Group) -> Group:
    return group._replace(source=None, file=None if group.file is None else _base_name(group.file))


def _device(device: DeviceAnalysis) -> DeviceAnalysis:
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
        groups=tuple(map(_group, device.groups)),
        oom_group=None if device.oom_group is None else _group(device.oom_group),
        oom_state=None,
        # Names of variables, and lines once more.
        growth=None,
        held=(),
        markers=markers,
        regions=tuple(region._replace(name=f"region {n}") for n, region in enumerate(device.regions, 1)),
    )


def _verdict(oom: OomVerdict) -> OomVerdict:
    def clean(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(_QUOTED.sub("", text) for text in texts)

    from gpumem_magic.analysis.oom.evidence import Evidence

    bare = Evidence(oom.evidence.key, oom.evidence.backend, oom.evidence.kind)
    (text,) = clean([oom.sentence])
    return replace(oom, sentence=text, numbers=clean(oom.numbers), suggestions=clean(oom.suggestions), evidence=bare)


def without_source(analysis: Analysis) -> Analysis:
    """Strip source lines, folders, the label, region names and the error's message.

    File names without folders, function names and line numbers stay: without them the report would say nothing.

    Parameters
    ----------
    analysis
        What to strip; it is left as it is.
    """
    cell = analysis.cell
    frames = tuple(frame._replace(filename=_base_name(frame.filename)) for frame in analysis.stacks.frames)
    title = analysis.title
    if cell is not None:
        cell = Cell(cell.execution_count, None, "", runs=cell.runs)
        title = "cell" if cell.execution_count is None else f"In [{cell.execution_count}]"
    return replace(
        analysis,
        title=title,
        sentence=_QUOTED.sub("", analysis.sentence.removeprefix(headline(analysis.leaks))),
        error=None if analysis.error is None else analysis.error.split(":", 1)[0],
        cell=cell,
        devices=tuple(map(_device, analysis.devices)),
        stacks=StackTable(frames, analysis.stacks.stacks),
        notes=tuple(Note(note.level, _QUOTED.sub("", note.text)) for note in analysis.notes),
        oom=None if analysis.oom is None else _verdict(analysis.oom),
        cells=tuple(
            span._replace(
                title="cell" if span.execution_count is None else f"In [{span.execution_count}]",
                sentence=_QUOTED.sub("", span.sentence),
            )
            for span in analysis.cells
        ),
    )
