"""The notebook's side: IPython calls in, a report comes out.

arguments    the magic's line
gpumem       the registered magics: help, completion, nested use
session      what is being measured in one shell; IPython's events and the input transformer
measurement  one measurement: recorder, live line, report
cells        the notebook's cells as IPython numbers and names them
code         text that another magic hands us, run as the cell would have run it
kernel_feed  what the sidebar is told
auto         every cell measured, and the ledger of all that was
tools, diff, timeline, whatif  the line magics beside it
live, show   what appears while the cell runs, and after it

Nothing outside this folder touches IPython.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import RecordingError
from gpumem_magic.magics import auto, diff, show, timeline, tools, whatif
from gpumem_magic.magics.gpumem import GpumemMagics
from gpumem_magic.magics.kernel_feed import feed_for
from gpumem_magic.magics.warmup import warm_up_while_loading
from gpumem_magic.recording.ticker import shut_down

if TYPE_CHECKING:
    from gpumem_magic.book import LedgerView
    from gpumem_magic.magics.kernel_feed import KernelFeed

__all__ = ["ledger_now", "load", "unload"]

# IPython hands "%%gpumem" below other code to a line magic of the name "%gpumem".
_MISPLACED = "%gpumem"
_loaded: dict[int, tuple[Any, GpumemMagics, KernelFeed | None]] = {}


def load(shell: Any, began: float | None = None) -> None:
    """Make the magics known to `shell`; loading twice is loading once.

    Parameters
    ----------
    shell
        The running IPython shell.
    began
        When loading began, by `time.perf_counter`, where what remains of its time shall be used.
    """
    if id(shell) in _loaded:
        return
    magics = GpumemMagics(shell)
    shell.register_magic_function(magics.gpumem, "line_cell", "gpumem")
    shell.register_magic_function(magics.misplaced, "line", _MISPLACED)
    tools.register(shell, magics.keeper)
    diff.register(shell)
    whatif.register(shell)
    show.register(shell)
    timeline.register(shell, magics.keeper)
    shell.input_transformers_cleanup.append(magics.session.strip_magic)
    shell.events.register("pre_run_cell", magics.session.before_cell)
    shell.events.register("post_run_cell", magics.session.after_cell)
    auto.register(shell, magics.keeper)
    feed = feed_for(shell, magics.keeper)
    if feed is not None:
        feed.start()
    _loaded[id(shell)] = (shell, magics, feed)
    if began is not None:
        warm_up_while_loading(began)


def ledger_now(budget: float) -> LedgerView:
    """Return the ledger of this process's notebook."""
    for _, magics, _ in _loaded.values():
        return magics.keeper.view(budget=budget)
    raise RecordingError("no ledger is kept here: %load_ext gpumem_magic in the notebook begins one")


def unload(shell: Any) -> None:
    """Leave `shell` as it was before `load`."""
    _, magics, feed = _loaded.pop(id(shell), (None, None, None))
    if magics is None:
        return
    after_cell = magics.session.after_cell
    magics.session.close(lambda: shell.events.unregister("post_run_cell", after_cell))
    shell.events.unregister("pre_run_cell", magics.session.before_cell)
    shell.input_transformers_cleanup.remove(magics.session.strip_magic)
    tools.unregister(shell)
    diff.unregister(shell)
    whatif.unregister(shell)
    show.unregister(shell)
    timeline.unregister(shell)
    if feed is not None:
        feed.stop()
    auto.unregister(shell, magics.keeper)
    shut_down()
    manager = shell.magics_manager
    for kind, name in (("line", "gpumem"), ("cell", "gpumem"), ("line", _MISPLACED)):
        manager.magics[kind].pop(name, None)
