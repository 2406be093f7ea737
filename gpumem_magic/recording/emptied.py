"""When a program calls ``torch.cuda.empty_cache``.

torch records what such a call gives back, and nothing when there is nothing to give back. Under another setting there
might have been something, so a replay has to know of the call. Every way to it ends in one of two C functions, of which
one is ``torch.accelerator``'s; they are watched for as long as somebody measures.
"""

from __future__ import annotations

import threading
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EmptyCalls"]

_NAMES = ("_cuda_emptyCache", "_accelerator_emptyCache")
_lock = threading.Lock()
_watching: list[EmptyCalls] = []
# By name, what was there before and what stands in its place: one for all that measure at once.
_stand_ins: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def empty_cache(*arguments: Any, **more: Any) -> Any:
        # Somebody may have wrapped this one, and keep it.
        if _stand_ins.get(name, (None, None))[1] is empty_cache:
            now = time.time_ns() // 1000
            for one in tuple(_watching):
                one._times.append(now)
        return original(*arguments, **more)

    return empty_cache


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
        if not hasattr(self._functions, _NAMES[0]):
            return
        with _lock:
            for name in _NAMES:
                original = getattr(self._functions, name, None)
                if original is not None and name not in _stand_ins:
                    ours = _watched(name, original)
                    # Known first: an interrupt in between leaves nothing in torch that nobody would take out.
                    _stand_ins[name] = original, ours
                    setattr(self._functions, name, ours)
            _watching.append(self)
            self._is_watching = True

    def stop(self) -> tuple[int, ...] | None:
        """Put everything back; return when the calls began (Unix microseconds), None where they could not be seen."""
        if not self._is_watching:
            return None
        self._is_watching = False
        with _lock:
            if self not in _watching:
                return None  # this module was loaded again meanwhile, and what stands there only passes calls on
            _watching.remove(self)
            there = {name: getattr(self._functions, name, None) is ours for name, (_, ours) in _stand_ins.items()}
            if not _watching:
                for name, (original, _) in _stand_ins.items():
                    if there[name]:
                        setattr(self._functions, name, original)
                _stand_ins.clear()
        return tuple(sorted(self._times)) if all(there.values()) else None
