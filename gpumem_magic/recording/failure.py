"""What an out-of-memory error leaves behind, as plain values: its whole text, its lines, the settings around it.

No frame, traceback or exception is kept, because they would keep the tensors that did not fit.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic.recording.model import Failure
from gpumem_magic.recording.neighbours import processes_on
from gpumem_magic.recording.readings import cpu_reading
from gpumem_magic.trace.frames import function_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumem_magic.recording.model import DeviceReading

__all__ = ["chain", "describe_failure", "is_out_of_memory", "last_error_name", "with_surroundings"]

_MOST_FRAMES = 200
# The text of a worker's error holds its traceback; the numbers stand at its end.
_LONGEST = 64 * 1024
_MOST_ERRORS = 32


# Text of torch's own errors on CUDA, ROCm, XPU, MPS and the CPU; also of a plain CUDA error, and of cuBLAS and NCCL,
# which ask the driver past torch's allocator.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "_STATUS_ALLOC_FAILED",
    "Failed to CUDA malloc",
    "Failed to CUDA calloc",
    "_STATUS_NOT_ENOUGH_WORKSPACE",
    "CUDA failure 2:",  # not 209, which is another error
    "Invalid buffer size:",  # MPS
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY",
    # Of torch's DataLoader, whose workers leave no error of their own then.
    "is killed by signal: Killed",
    "workers are out of shared memory",
)


# What no other error says, so that its type does not matter: Numba's is no RuntimeError.
_SURELY = ("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory", "RESOURCE_EXHAUSTED: Out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, whoever raised it."""
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    words = (*_OUT_OF_MEMORY, *_SURELY) if isinstance(error, RuntimeError) else _SURELY
    text = _text(error)
    return any(part in text for part in words)


def last_error_name() -> str | None:
    """Return the type of the error that the interpreter keeps for inspection, with all that its frames hold."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return None if error is None else type(error).__name__


def describe_failure(error: BaseException | None) -> Failure | None:
    """Describe the out-of-memory error that `error` is or was raised from; None when there is none."""
    found = next((one for one in chain(error) if is_out_of_memory(one)), None)
    if found is None or error is None:
        return None
    torch = sys.modules.get("torch")
    return Failure(
        text=_text(found),
        frames=_frames(found) or _frames(error),
        environment={name: value for name, value in os.environ.items() if "ALLOC_CONF" in name},
        torch_version=str(getattr(torch, "__version__", "")) or None,
    )


def with_surroundings(failure: Failure, after: Sequence[DeviceReading], previous: str | None) -> Failure:
    """Add who is on the devices now, and which error was being kept when the code began.

    Parameters
    ----------
    failure
        The error.
    after
        Readings of the devices.
    previous
        `last_error_name` before the code ran.
    """
    return replace(failure, processes=tuple(processes_on(after)), previous_error=previous, host=_host(after))


def _host(after: Sequence[DeviceReading]) -> DeviceReading:
    """Return what the host says, as an error of Python's own carries no numbers, with the limit of this process."""
    read = next((reading for reading in after if reading.device == "cpu"), None)
    return replace(read or cpu_reading(), limit=_address_space())


def _address_space() -> int | None:
    """Return the bytes that this process may address at most, None without such a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def chain(error: BaseException | None, *, on_purpose: bool = False) -> Iterator[BaseException]:
    """Yield an error, what it came from and what it groups, the nearest first.

    Both kinds of link, because a library's handler may fail in its turn; task groups put errors together. `on_purpose`
    follows only ``raise … from``: a handler's own error is then told as what it is.
    """
    seen: set[int] = set()
    pending = deque([error])
    while pending and len(seen) < _MOST_ERRORS:
        error = pending.popleft()
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        pending.append(error.__cause__)
        if not (on_purpose or error.__suppress_context__):  # ``raise … from None``: what was handled is over
            pending.append(error.__context__)
        group = getattr(error, "exceptions", None)
        pending += group if isinstance(group, tuple) else ()


def _text(error: BaseException) -> str:
    try:
        return str(error)[-_LONGEST:]
    except Exception:  # noqa: BLE001 - a class of the user's; its name is all there is then
        return type(error).__name__


def _frames(error: BaseException) -> tuple[tuple[str, int, str], ...]:
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno or 0, function_name(code.co_name)))
        traceback = traceback.tb_next
    return tuple(reversed(frames[-_MOST_FRAMES:]))
