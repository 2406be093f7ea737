"""``record_function`` regions on the CPU: which code has some, and how they go into a trace."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpumem_magic.trace.model import Region

__all__ = ["Span", "has_regions", "regions_of"]

_NAME = "record_function"


class Span(NamedTuple):
    """A region as the profiler keeps it, Unix nanoseconds; `end_ns` is 0 while it is open."""

    name: str
    start_ns: int
    end_ns: int


def has_regions(torch: Any, text: str, space: Mapping[str, object]) -> bool:
    """Tell whether code marks regions: it names ``record_function``, or a notebook's function, class or import does.

    Asking first is worth it: with regions the profiler takes twice as long to stop (0.46 s in place of 0.23 s for
    260,000 events, torch 2.13).

    Parameters
    ----------
    torch
        The imported module.
    text
        The code's source.
    space
        The names it sees.
    """
    if _NAME in text:
        return True
    known = getattr(torch.autograd.profiler, _NAME, None)
    return any(value is known or any(map(_names_it, _codes(value))) for value in list(space.values()))


def _codes(value: object) -> Iterable[CodeType]:
    if type(value) is FunctionType:
        return (value.__code__,)
    if type(value) is type:
        return [own.__code__ for own in list(vars(value).values()) if type(own) is FunctionType]
    return ()


def _names_it(code: CodeType) -> bool:
    return _NAME in code.co_names or any(_names_it(inner) for inner in code.co_consts if type(inner) is CodeType)


def regions_of(spans: Sequence[Span], started_us: int, ended_us: int) -> tuple[Region, ...]:
    """Return the regions that touch the time between two moments (Unix microseconds)."""
    from gpumem_magic.trace.model import Region  # numpy comes with it, which a cell's beginning can spare

    found = []
    for name, start_ns, end_ns in spans:
        start_us, end_us = start_ns // 1000, end_ns // 1000 if end_ns > start_ns else None
        if start_us <= ended_us and (end_us is None or end_us >= started_us):
            found.append(Region(name, 0, max(start_us, started_us), None if end_us is None else min(end_us, ended_us)))
    return tuple(found)
