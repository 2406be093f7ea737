"""gpumem_magic: where did the GPU memory go, cell by cell, and what to do about it.

In a notebook::

    %load_ext gpumem_magic

    %%gpumem
    loss = model(x).sum()

Anywhere else::

    with gpumem_magic.record() as r:
        loss = model(x).sum()
    print(r.report.to_text())

`last` is the newest report of this process, `find` an older one by its label or cell number, and `read_snapshot` makes
one of a file. Importing this package imports neither torch nor IPython.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumem_magic._errors import LeakError
    from gpumem_magic._reports import find, read_snapshot
    from gpumem_magic.blocks import record
    from gpumem_magic.book import LedgerView

__all__ = [
    "LeakError",
    "__version__",
    "find",
    "last",
    "ledger",
    "load_ipython_extension",
    "read_snapshot",
    "record",
    "unload_ipython_extension",
]

_PACKAGE = "gpumem-magic"


def __getattr__(name: str) -> Any:
    """Look up what would be too slow, or too early, to have at import."""
    if name == "record":
        from gpumem_magic.blocks import record

        return record
    if name in {"find", "read_snapshot"}:
        from gpumem_magic import _reports

        return getattr(_reports, name)
    if name == "LeakError":
        from gpumem_magic._errors import LeakError

        return LeakError
    if name == "last":
        from gpumem_magic import _reports

        return _reports.last()
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(_PACKAGE)
        except PackageNotFoundError:  # a source tree on sys.path
            return "0+unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def ledger(*, budget: float = 2.0) -> LedgerView:
    """Return the notebook's ledger as it is now: the measured runs, and what is alive by the cell that made it.

    Parameters
    ----------
    budget
        Seconds to search for the names that hold memory; 0 for none.

    Raises
    ------
    RecordingError
        When the extension is not loaded in this process.
    """
    from gpumem_magic import magics

    return magics.ledger_now(budget)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Serve ``%load_ext gpumem_magic``."""
    began = time.perf_counter()
    from gpumem_magic import magics

    magics.load(shell, began)


def unload_ipython_extension(shell: Any) -> None:
    """Serve ``%unload_ext gpumem_magic``."""
    from gpumem_magic import magics

    magics.unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell ``jupyter-builder develop`` where the front end is."""
    return [{"src": "labextension", "dest": _PACKAGE}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell Jupyter Server what to load."""
    from gpumem_magic import server

    return server.extension_points()
