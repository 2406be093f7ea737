"""Whose code a frame is: the notebook's, the user's files, a library's, or the notebook machinery's.

Paths are judged as recorded, on whatever system they were recorded, so both separators count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.trace.model import Frame

__all__ = [
    "function_name",
    "is_library",
    "is_native",
    "is_notebook_cell",
    "is_notebook_machinery",
    "trim",
    "user_frame",
]

# ipykernel 6 and 7, xeus-python, and plain IPython in a terminal (with and without its session's number).
_CELL = re.compile(r"[/\\](?:ipykernel|xpython)_\d+[/\\]-?\d+\.py$|^<ipython-input-\d+-[^>]*>$")
# The others are compiled by `re` when a stack is first asked for: lines alone have none, and the first report of a
# process would wait 2 ms for them.
# Other people's code: installed packages, the standard library, generated code (Inductor's cache, FX, attrs).
_LIBRARY = (
    r"[/\\](?:site|dist)-packages[/\\]"
    r"|[/\\]lib(?:64)?[/\\](?:python|pypy)\d[\d.]*t?[/\\]"
    r"|[/\\][Ll]ib[/\\](?:asyncio|concurrent|contextlib\.py|functools\.py|runpy\.py|threading\.py|unittest)\b"
    # Windows: Python writes its own folder "Lib"; conda's is "lib" too, which a project's folder may also be.
    r"|\\Lib\\|\\(?:ana|mini)(?:conda|forge)\d?\\(?:envs\\[^\\]+\\)?lib\\"
    r"|[/\\]torchinductor_[^/\\]*[/\\]"
    r"|^<(?:(?:frozen|attrs generated|__array_function__|decorator-gen)\b[^>]*|eval_with_key|string|template)>"
)
_NATIVE = r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hxx|inl|S|pyx|pxd)$|\.(?:so|dylib|dll|pyd)(?:\.[\d.]+)?$"
# Frames above the cell's own in every stack of a notebook: 20 to 25 of them.
_MACHINERY = (
    r"[/\\](?:IPython|ipykernel|traitlets|tornado|zmq|jupyter_client|comm|debugpy)[/\\]"
    r"|[/\\]asyncio[/\\]|[/\\](?:runpy|contextlib|threading|selectors)\.py$|[/\\]ipykernel_launcher\.py$"
    r"|^<frozen runpy>$|[/\\](?:nest_asyncio|gpumem_magic)[/\\.]"
)


def function_name(name: str) -> str:
    """Return a function's name, "<module>" for a cell's own code: IPython 7.31 to 8 calls it ``<cell line: 3>``."""
    return "<module>" if name.startswith("<cell line: ") else name


def is_notebook_cell(filename: str) -> bool:
    """Tell whether a file name stands for the text of a notebook cell (``…/ipykernel_<pid>/<hash>.py``)."""
    return _CELL.search(filename) is not None


def is_native(filename: str) -> bool:
    """Tell whether a frame is compiled code: C++ sources and libraries, and frames without a file."""
    return filename in {"", "??"} or re.search(_NATIVE, filename) is not None


def is_library(filename: str) -> bool:
    """Tell whether a frame is code that the user did not write: packages, the standard library, compiled code."""
    return is_native(filename) or re.search(_LIBRARY, filename) is not None or is_notebook_machinery(filename)


def is_notebook_machinery(filename: str) -> bool:
    """Tell whether a frame belongs to what runs cells: IPython, ipykernel, the event loop, this package."""
    return re.search(_MACHINERY, filename) is not None and not is_notebook_cell(filename)


def trim(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Drop what lies above the outermost notebook cell.

    Parameters
    ----------
    frames
        A stack, innermost first.

    Returns
    -------
    tuple of Frame
        Up to and including the outermost frame of a cell; where there is none, without the machinery at the outer
        end, and never empty for a stack that was not.
    """
    end = next((index for index in range(len(frames) - 1, -1, -1) if is_notebook_cell(frames[index].filename)), -1)
    if end < 0:
        end = next(
            (index for index in range(len(frames) - 1, -1, -1) if not is_notebook_machinery(frames[index].filename)),
            len(frames) - 1,
        )
    return tuple(frames[: end + 1])


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the frame to name in a table: the innermost of the user's own code.

    Falls back to the innermost Python frame, then to the innermost of all; None for an empty stack.
    """
    for frame in frames:
        if not is_library(frame.filename):
            return frame
    for frame in frames:
        if not is_native(frame.filename):
            return frame
    return frames[0] if frames else None
