"""Keep a library's own chatter out of the notebook without swallowing what the user writes."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["stderr_without"]

_STDERR = 2


def _held_lines() -> IO[bytes]:
    # In memory where there is such a thing: 10 µs in place of 0.2 ms.
    create = getattr(os, "memfd_create", None)
    return tempfile.TemporaryFile() if create is None else os.fdopen(create("gpumem-stderr"), "w+b")


@contextmanager
def stderr_without(is_noise: Callable[[bytes], bool]) -> Iterator[Callable[[], int]]:
    """Drop the lines of file descriptor 2 for which `is_noise` holds while the block runs; pass on all others.

    C++ code writes to the descriptor, past ``sys.stderr``, so this is the only level at which it can be filtered.
    Lines are held back until the block ends: meant for calls of milliseconds. Python warnings of the block are
    dropped too (torch turns some of its C++ warnings into them).

    Parameters
    ----------
    is_noise
        Called with each line, line end included.

    Yields
    ------
    callable
        Tells how many bytes were held back so far.
    """
    stderr = sys.stderr
    if stderr is not None:
        stderr.flush()
    try:
        saved = os.dup(_STDERR)
    except OSError:  # no descriptor 2, as under pythonw: nothing to keep clean
        yield lambda: 0
        return
    with _held_lines() as held, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            os.dup2(held.fileno(), _STDERR)
            yield lambda: os.fstat(held.fileno()).st_size
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)
            held.seek(0)
            kept = b"".join(line for line in held if not is_noise(line))
            if kept:
                os.write(_STDERR, kept)
