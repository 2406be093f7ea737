"""How a piece of code ended, from the exception that ended it."""

from __future__ import annotations

from gpumem_magic.recording.model import Outcome
from gpumem_magic.recording.notes import one_line

__all__ = ["classify"]

# Text of torch's own errors on CUDA, ROCm, XPU, MPS and the CPU; also of a plain CUDA error.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OUT_OF_MEMORY)


def classify(error: BaseException | None) -> tuple[Outcome, str | None]:
    """Tell the outcome and write the error as ``"Type: message"`` (None when there was none).

    An error that was raised because of an out-of-memory error (``raise … from error``) counts as one.
    """
    if error is None:
        return Outcome.OK, None
    text = one_line(error)
    # By name: asyncio need not be imported for it.
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "CancelledError":
        return Outcome.INTERRUPTED, text
    cause: BaseException | None = error
    for _ in range(10):  # chains can be circular
        if cause is None:
            break
        if _is_out_of_memory(cause):
            return Outcome.OUT_OF_MEMORY, text
        cause = cause.__cause__
    return Outcome.ERROR, text
