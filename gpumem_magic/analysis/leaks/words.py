"""Verdicts and explanations in words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.analysis.leaks.remedies import remedy
from gpumem_magic.analysis.place import place_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.leaks.model import Keeper, Leak, Once
    from gpumem_magic.analysis.model import Group

__all__ = [
    "GRADIENTS",
    "OPTIMIZER_STATE",
    "WINDOW",
    "filling_sentence",
    "headline",
    "keeper_text",
    "leak_sentence",
    "once_of",
    "told_by",
]

GRADIENTS, OPTIMIZER_STATE, WINDOW = "gradients", "optimizer state", "window"


_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else _ENDINGS.get(number % 10, "th")
    return f"{format_count(number)}{ending}"


def _how_often(leak: Leak) -> str:
    """Say in which iterations: ``each iteration, 8 times``, ``every 4th iteration, 6 times``, ``in 7 of 90 …``."""
    if leak.loop is None:
        return f"each time, {format_count(leak.grown)} times"
    if leak.every is not None and leak.every > 1:
        return f"every {_ordinal(leak.every)} iteration, {format_count(leak.grown)} times"
    if leak.grown >= leak.iterations:
        return f"each iteration, {format_count(leak.grown)} times"
    growing = [number for number, size in enumerate(leak.left) if size]
    if growing and growing[-1] - growing[0] < len(growing):
        return f"each iteration, the last {format_count(leak.grown)} of {format_count(leak.iterations)}"
    return f"in {format_count(leak.grown)} of {format_count(leak.iterations)} iterations"


def _where(leak: Leak) -> str:
    top = place_text(leak.lines[0].group)
    others = len(leak.lines) - 1
    if not others:
        return top
    return f"{top} and {others} more {'line' if others == 1 else 'lines'}"


def headline(leaks: Sequence[Leak]) -> str:
    """Return the largest verdict as a report's first sentence, or nothing."""
    if not leaks:
        return ""
    top = max(leaks, key=lambda leak: leak.bytes)
    more = f" ({len(leaks) - 1} more below)" if len(leaks) > 1 else ""
    return f"Leak: {top.sentence}{more}. "


def keeper_text(keeper: Keeper, at: Group | None = None) -> str:
    """Say what keeps memory: ``held by `losses` with 252 autograd nodes, put there at line 7 …``.

    A line that is named already, as `at`, is not named again.
    """
    text = f"held by `{keeper.name}`" if keeper.kind in {"variable", "autograd graph"} else f"held by {keeper.path}"
    if keeper.graph_nodes:
        text += f" with {format_count(keeper.graph_nodes)} autograd nodes"
    if keeper.line is not None and (at is None or keeper.line[:6] != at[:6]):
        text += f", put there at {place_text(keeper.line)}"
    return text


def leak_sentence(leak: Leak) -> Leak:
    """Return the verdict with its sentence."""
    where, each, total = _where(leak), format_bytes(leak.bytes_per_iteration), format_bytes(leak.bytes)
    if leak.kind == "regrown":
        text = (
            f"{where} makes the same tensor {each} larger each iteration, {format_count(leak.grown)} times: {total} now"
        )
    elif leak.kind == "reruns":
        text = f"each of the last {format_count(leak.grown)} runs of this cell left {each} of {where}: {total}"
    else:
        keep = "keeps" if len(leak.lines) == 1 else "keep"
        text = f"{where} {keep} {each} more {_how_often(leak)}: {total}"
    if leak.keepers:
        text += f", {keeper_text(leak.keepers[0], leak.lines[0].group if len(leak.lines) == 1 else None)}"
    return replace(leak, sentence=text, remedy=remedy(leak))


def filling_sentence(leak: Leak, container: str, count: int, most: int) -> str:
    """Say that a container which takes only so much fills up: how far it is, and what it holds when it is full."""
    fills = "fills" if len(leak.lines) == 1 else "fill"
    times = f"{format_count(leak.grown)} times"
    full = format_bytes(leak.bytes * most // count)
    return (
        f"{_where(leak)} {fills} `{container}` with {format_bytes(leak.bytes_per_iteration)} each time, {times}: "
        f"{format_bytes(leak.bytes)}; it has {format_count(count)} of the {format_count(most)} that it takes: "
        f"{full} when full"
    )


def told_by(line: str) -> str:
    """Say what a line of code makes in a loop's first iterations, as far as its text tells."""
    makes = [what for call, what in ((".backward(", GRADIENTS), (".step(", OPTIMIZER_STATE)) if call in line]
    return " or ".join(makes) or "warm-up"


def once_of(once: Once, trained: int = 0, measure: str = "the gradients") -> Once:
    """Explain what stayed from the first iterations.

    Parameters
    ----------
    once
        What it is, without a sentence.
    trained
        Bytes to which an optimizer's state is compared, or 0 when they are not known.
    measure
        What these are: gradients that stayed from ``backward`` in the same loop are as large as what is trained.
    """
    size, where = format_bytes(once.bytes), place_text(once.line)
    if once.what == WINDOW:
        text = f"{WINDOW}: {size} at {where}, of {format_count(once.span)} iterations and never of more"
        return once._replace(sentence=text)
    more = f", {once.bytes / trained:.1f} × {measure}" if trained and once.what == OPTIMIZER_STATE else ""
    first = "the first iteration" if once.span <= 1 else f"the first {format_count(once.span)} iterations"
    return once._replace(sentence=f"{once.what}: {size} at {where} in {first}{more}, not again")
