"""Call into torch so that its warnings come out here, and not in the user's code.

While Python code runs inside a C++ call of torch (a backward, a hook, a custom function's forward), torch gathers its
warnings and raises them when that outer call ends: in the user's frame, where none of our filters is. A call that has
a gathering place of its own lets them out as soon as it ends. A custom autograd function without inputs is one: 10 µs,
no tensor, no node in the graph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_apart"]

_Result = TypeVar("_Result")


@lru_cache(maxsize=1)
def _apply(torch: Any) -> Callable[[Callable[[], None]], object]:
    function = torch.autograd.Function

    class Apart(function):  # type: ignore[misc, valid-type]
        @staticmethod
        def forward(ctx: Any, job: Callable[[], None]) -> None:  # noqa: ARG004 - torch's signature
            job()

    # torch's own C function: the Python one around it looks for functorch's transforms and binds arguments.
    apply: Callable[[Callable[[], None]], object] = super(function, Apart).apply
    return apply


def call_apart(torch: Any, function: Callable[[], _Result]) -> _Result:
    """Call `function` so that what torch warns of meanwhile is raised before this returns."""
    if torch._C._get_tracing_state() is not None:  # there it would become a node of the user's graph
        return function()
    results: list[_Result] = []
    _apply(torch)(lambda: results.append(function()))
    return results[0]
