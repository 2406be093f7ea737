"""What to do about a leak: one line, by what keeps it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem_magic.analysis.leaks.model import Keeper, Leak

__all__ = ["remedy"]

_NOT_YOURS = re.compile(r"; a class of \S+'s, not your code\)$")
_ERROR = re.compile(r"__traceback__|__context__|__cause__")


def remedy(leak: Leak) -> str:
    """Return the smallest change that lets go of a leak's memory; empty when what keeps it is not known."""
    if not leak.keepers:
        return ""
    keeper = leak.keepers[0]
    if leak.kind == "regrown":
        return _regrown(leak, keeper)
    return _by_kind(keeper) or _by_path(keeper) or _by_use(leak, keeper)


def _regrown(leak: Leak, keeper: Keeper) -> str:
    more = "" if leak.device == "cpu" else ", or join the pieces on the CPU"
    return f"make `{keeper.root}` once, as large as it gets, and write into it{more}"


def _by_kind(keeper: Keeper) -> str:
    if keeper.kind == "reference cycle":
        if _NOT_YOURS.search(keeper.path):
            return "gc.collect() now and then frees it; the cycle is the library's, to be reported there"
        return "gc.collect() frees it now; without the cycle it goes at once"
    if keeper.kind == "cycle through the autograd graph" and ".grad.grad_fn" in keeper.path:
        return (
            "backward(create_graph=True) ties each parameter to its gradient: set .grad to None when it is done, or "
            "use torch.autograd.grad(); gc cannot free that"
        )
    if keeper.kind == "cycle through the autograd graph":
        return "break the cycle: a hook or an attribute of the graph refers to the tensor itself; gc cannot free that"
    if keeper.kind in {"last error", "error that was being handled", "debugger"}:
        return "%gpumem_free lets go of it"
    if keeper.kind == "output history":
        return "end the cell with `;`, or %gpumem_free --out"
    return ""


def _by_path(keeper: Keeper) -> str:
    path, root = keeper.path, keeper.root
    if "functools cache" in path:
        return f"give the cache of `{root}` a maxsize, or call {root}.cache_clear()"
    if _ERROR.search(path):
        return f"keep the error's text in `{root}`, not the error: its frames hold their locals"
    if "hook" in path and "unpack hook" not in path and "packed by a hook" not in path:
        return "let the hook keep less, and remove it when it has done its work (handle.remove())"
    if "(generator " in path:
        return f"finish or close the generators in `{root}`: their locals live as long as they do"
    if "(coroutine " in path:
        return f"await or cancel what is in `{root}`: its locals live as long as it does"
    return ""


def _by_use(leak: Leak, keeper: Keeper) -> str:
    """Say it of an ordinary name: graphs first, as they hold more than what was meant to be kept."""
    root = keeper.name
    if keeper.graph_nodes or keeper.kind == "autograd graph":
        if keeper.line is not None and keeper.line.source:
            return f"`.detach()` what `{root}` gets, or take its number with .item(): the graph behind it is what grows"
        return f"`.detach()` what `{root}` keeps, or run it under torch.no_grad(): the graph behind it is what grows"
    if leak.kind == "reruns":
        return f"make `{root}` anew at the top of the cell, or clear it before the next run"
    there = "" if leak.device == "cpu" else ", or keep it on the CPU"
    return f"drop what is no longer needed from `{root}`{there}"
