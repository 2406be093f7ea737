"""How a piece of code ended, from the exception that ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.recording.failure import chain, describe_failure, is_out_of_memory
from gpumem_magic.recording.model import Outcome
from gpumem_magic.recording.notes import one_line

if TYPE_CHECKING:
    from gpumem_magic.recording.model import Failure

__all__ = ["classify"]


def classify(error: BaseException | None) -> tuple[Outcome, str | None, Failure | None]:
    """Tell the outcome, write the error as ``"Type: message"``, and describe it when memory ran out (else None each).

    An error that was raised because of an out-of-memory error (``raise … from error``) counts as one.
    """
    if error is None:
        return Outcome.OK, None, None
    text = one_line(error)
    # By name: asyncio need not be imported for it.
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "CancelledError":
        return Outcome.INTERRUPTED, text, None
    failure = describe_failure(error)
    is_it = any(is_out_of_memory(one) for one in chain(error, on_purpose=True))
    return Outcome.OUT_OF_MEMORY if is_it else Outcome.ERROR, text, failure
