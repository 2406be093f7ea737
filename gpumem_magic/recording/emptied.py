"""When a program calls ``torch.cuda.empty_cache``.

torch records what such a call gives back, and nothing when there is nothing to give back. Under another setting there
might have been something, so a replay has to know of the call. Every way to it ends in one C function, which is watched
for as long as somebody measures.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EmptyCalls"]

_NAME = "_cuda_emptyCache"
_lock = threading.Lock()
_watching: list[EmptyCalls] = []
# What was there before, and what stands in its place: one for all that measure at once.
_stand_in: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


class EmptyCalls:
    """The calls between `start` and `stop`.

    Parameters
    ----------
    torch
        The module.
    """

    def __init__(self, torch: Any) -> None:
        self._functions = torch._C
        self._times: list[int] = []
        self._is_watching = False

    def start(self) -> None:
        """Begin to watch; does nothing where this torch has no such function."""
        original = getattr(self._functions, _NAME, None)
        if original is None:
            return
        with _lock:
            if not _stand_in:

                def empty_cache(*arguments: Any, **more: Any) -> Any:
                    # Somebody may have wrapped this one, and keep it.
                    if _stand_in and _stand_in[0][1] is empty_cache:
                        now = time.time_ns() // 1000
                        for one in tuple(_watching):
                            one._times.append(now)
                    return original(*arguments, **more)

                setattr(self._functions, _NAME, empty_cache)
                _stand_in.append((original, empty_cache))
            _watching.append(self)
        self._is_watching = True

    def stop(self) -> tuple[int, ...] | None:
        """Put everything back; return when the calls began (Unix microseconds), None where they could not be seen."""
        if not self._is_watching:
            return None
        self._is_watching = False
        with _lock:
            _watching.remove(self)
            original, ours = _stand_in[0]
            untouched = getattr(self._functions, _NAME, None) is ours
            if not _watching:
                _stand_in.clear()
                if untouched:
                    setattr(self._functions, _NAME, original)
        return tuple(self._times) if untouched else None
