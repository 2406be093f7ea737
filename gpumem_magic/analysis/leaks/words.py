"""Verdicts and explanations in words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.analysis.leaks.model import Once
from gpumem_magic.analysis.place import place_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.analysis.leaks.model import Keeper, Leak
    from gpumem_magic.analysis.model import Group

__all__ = ["headline", "keeper_text", "leak_sentence", "once_of", "window_of"]


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
    text = f"held by `{keeper.root}`" if keeper.kind in {"variable", "autograd graph"} else f"held by {keeper.path}"
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
    return replace(leak, sentence=text)


def once_of(
    device: str, group: Group, size: int, trained: int, measure: str = "the gradients", *, span: int = 1
) -> Once:
    """Explain what stayed from the first iterations.

    Parameters
    ----------
    device
        torch's notation.
    group
        The line that allocated it.
    size
        Bytes.
    trained
        Bytes to which an optimizer's state is compared, or 0 when they are not known.
    measure
        What these are: gradients that stayed from ``backward`` in the same loop are as large as what is trained.
    span
        How many iterations it took until all of it was there.
    """
    source = group.source or ""
    what, more = "warm-up", ""
    if ".backward(" in source:
        what = "gradients"
    elif ".step(" in source:
        what = "optimizer state"
        if trained:
            more = f", {size / trained:.1f} × {measure}"
    first = "the first iteration" if span <= 1 else f"the first {format_count(span)} iterations"
    text = f"{what}: {format_bytes(size)} at {place_text(group)} in {first}{more}, not again"
    return Once(what, device, group, size, text, span)


def window_of(device: str, group: Group, size: int, span: int) -> Once:
    """Explain what a line keeps of a bounded number of iterations."""
    text = f"window: {format_bytes(size)} at {place_text(group)}, of {format_count(span)} iterations and never of more"
    return Once("window", device, group, size, text, span)
