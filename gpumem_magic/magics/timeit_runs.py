"""Count how often ``%%timeit`` runs its body, without touching what it times."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["counted_timeit"]


@contextmanager
def counted_timeit(count: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, call `count` with each batch of runs that IPython's timer makes.

    The timer is asked for whole batches ("run it 1000 times"), so nothing is added inside what it times.
    """
    from IPython.core.magics import execution

    timer: Any = execution.Timer
    original = timer.timeit

    def timeit(self: Any, *arguments: Any, **named: Any) -> Any:
        number = arguments[0] if arguments else named.get("number", 1)
        count(int(number))
        return original(self, *arguments, **named)

    timer.timeit = timeit
    try:
        yield
    finally:
        timer.timeit = original
