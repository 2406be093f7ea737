"""``%gpumem_auto`` and ``%gpumem_ledger``: every cell measured, and the notebook's memory by the cell that made it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import publish_display_data

from gpumem_magic import _reports
from gpumem_magic._format import say
from gpumem_magic.magics.arguments import Request, options_of
from gpumem_magic.magics.cells import running_number
from gpumem_magic.magics.origins import Origins, unowned_blocks
from gpumem_magic.magics.tools import as_magic
from gpumem_magic.recording.imports import finished_torch
from gpumem_magic.recording.options import RecordOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpumem_magic.book import AliveDevice, Entry, Ledger, LedgerView, LiveBlocks, Origin, Tensors
    from gpumem_magic.holders import HolderScan
    from gpumem_magic.holders.text import Unowned
    from gpumem_magic.recording.model import Recording
    from gpumem_magic.report import Report

__all__ = ["Keeper", "LedgerMagics"]

_BRIEF = Request(record=RecordOptions(), quiet=True, brief=True)
# Cells whose text is searched for the last use of a name.
_CELLS_SEARCHED = 500
# Fewer runs of a cell prove nothing.
_LEAST_RUNS = 3
_GLANCE_SECONDS = 0.15
# What a variable holds that was used so many cells ago may well be wanted still.
_RECENT_CELLS = 2


def _cuda_is_in_use() -> bool:
    torch = finished_torch()
    return torch is not None and bool(torch.cuda.is_initialized())


class Keeper:
    """Keeps one shell's ledger, and decides which cells are measured without being asked.

    Parameters
    ----------
    shell
        The running IPython shell.

    Attributes
    ----------
    is_on
        Whether every cell is measured.
    """

    def __init__(self, shell: Any) -> None:
        self.is_on = False
        self._shell = shell
        self._ledger: Ledger | None = None
        self._origins = Origins()
        # In [n] → names that its text mentions.
        self._mentioned: dict[int, frozenset[str]] = {}
        self._cuda_since: str | None = "the extension was loaded, or earlier" if _cuda_is_in_use() else None

    @property
    def ledger(self) -> Ledger:
        """The book."""
        if self._ledger is None:
            # numpy comes with it: not needed before the first measured cell.
            from gpumem_magic.book import Ledger

            self._ledger = Ledger()
        return self._ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Measured runs, oldest first."""
        return () if self._ledger is None else self._ledger.entries

    @property
    def cuda_since(self) -> str | None:
        """The cell that first used CUDA in this process, in words; None while it is not in use."""
        return self._cuda_since

    # -- around each cell ------------------------------------------------------------------------------------------

    def request_for(self, info: Any) -> Request | None:
        """Return how to measure a cell that does not ask for it, or None."""
        if not self.is_on or not getattr(info, "store_history", True) or not (info.raw_cell or "").strip():
            return None
        self._origins.measured()
        return _BRIEF

    def before_cell(self, _info: Any) -> None:
        """Notice a use of CUDA that no cell made."""
        if self._cuda_since is None and _cuda_is_in_use():
            self._cuda_since = f"something that ran after In [{running_number(self._shell) - 1}] had ended"

    def after_cell(self, _result: Any) -> None:
        """Notice the cell that first used CUDA, and what was not measured."""
        self._origins.cell_ended()
        if self._cuda_since is None and _cuda_is_in_use():
            self._cuda_since = f"In [{running_number(self._shell)}]"

    def book(
        self, recording: Recording, report: Report, cell_id: str | None, scan: HolderScan | None, *, brief: bool
    ) -> Report:
        """Enter a measured run, and return its report with what earlier runs of the cell left.

        A run that nobody asked for gets its line. `scan` says who holds what, where somebody looked.
        """
        built = report
        self._origins.measured()
        entry = self.ledger.add(recording, report.analysis, cell_id)
        if entry is None:
            if brief and report.analysis.oom is not None:
                publish_display_data({"text/plain": report.analysis.oom.text()})
            return report
        self._origins.see(scan, self.ledger)
        if entry.run >= _LEAST_RUNS:
            entry, report = self._compared(entry, report, scan or self._glance())
        if brief:
            from gpumem_magic.book import summary_line

            verdict = report.analysis.oom
            lines = () if verdict is None else verdict.lines()
            publish_display_data({"text/plain": "\n  ".join([summary_line(entry), *lines])})
        _reports.keep(report, instead_of=built)
        return report

    def cleared(self, scan: HolderScan) -> None:
        """Correct the newest run after its cell's names were taken away: what is gone did not stay.

        Parameters
        ----------
        scan
            Who holds what after that.
        """
        self.ledger.cleared(self._blocks(), scan)

    def _compared(self, entry: Entry, report: Report, scan: HolderScan | None) -> tuple[Entry, Report]:
        """Compare a run with earlier ones of the same cell."""
        leaks = self.ledger.reruns(entry, self._blocks(), scan)
        if not leaks:
            return entry, report
        from gpumem_magic.analysis.leaks import with_leaks

        report = replace(report, analysis=with_leaks(report.analysis, leaks, scan))
        if report.leaks:
            entry = self.ledger.told(entry, max(report.leaks, key=lambda leak: leak.bytes).sentence)
        return entry, report

    def origin(self, device: str, address: int) -> Origin | None:
        """Return which run made the block at an address, as far as the ledger knows; None where there is none yet."""
        return None if self._ledger is None else self._ledger.origin(device, address)

    def origins(self, scan: HolderScan) -> dict[tuple[str, int], str]:
        """Return which cell and line made each storage of a scan, where that is certain."""
        return {} if self._ledger is None else self._origins.of(scan, self._ledger)

    def unowned(self, scan: HolderScan) -> list[Unowned]:
        """Return what the allocators count and a scan found no owner for, by the cell and line that made it."""
        return unowned_blocks(scan, self._blocks(), self.ledger)

    # -- what is alive now -----------------------------------------------------------------------------------------

    @staticmethod
    def _blocks() -> dict[str, LiveBlocks]:
        from gpumem_magic.book import LiveBlocks
        from gpumem_magic.recording.alive import allocated_blocks

        return {key: LiveBlocks(*columns) for key, columns in allocated_blocks().items()}

    def _glance(self, budget: float = _GLANCE_SECONDS) -> HolderScan | None:
        """Look what the notebook's names reach."""
        from gpumem_magic.holders import who_holds, with_bounds

        try:
            return with_bounds(who_holds(self._shell, budget=budget, quick=True), self._shell.user_ns)
        except Exception:  # noqa: BLE001 - any object may be hostile; names are not worth an error
            return None

    def alive(self, *, budget: float, quick: bool) -> tuple[tuple[AliveDevice, ...], Tensors | None]:
        """Return what is alive by the run that made it, with names, and the names themselves.

        Parameters
        ----------
        budget
            Seconds to search for names; 0 for none.
        quick
            Only names that the notebook's own variables reach.
        """
        from gpumem_magic.book import Tensors
        from gpumem_magic.holders import who_holds

        tensors: Tensors | None = None
        if budget > 0 and finished_torch() is not None:
            scan = self._glance(budget) if quick else who_holds(self._shell, budget=budget)
            if scan is not None:
                names = {(storage.device, storage.address): storage.holders[0].path for storage in scan.storages}
                tensors = Tensors(names, complete=scan.cut is None)
        devices = self.ledger.alive(self._blocks(), tensors)
        roots = {_root(name) for device in devices for row in device.rows for name in row.names}
        used = self._last_used(roots) if roots else {}
        return tuple(
            device._replace(rows=tuple(row._replace(last_used=_newest(row.names, used)) for row in device.rows))
            for device in devices
        ), tensors

    def view(self, *, newest_first: bool = False, top: int = 10, budget: float = 2.0) -> LedgerView:
        """Return the ledger as it is now."""
        from gpumem_magic.book import LedgerView, ledger_text

        alive, tensors = self.alive(budget=budget, quick=False)
        roots = {_root(name) for device in alive for row in device.rows for name in row.names}
        text = ledger_text(
            self.ledger,
            alive,
            newest_first=newest_first,
            top=top,
            last_used=self._last_used(roots) if roots else {},
            notes=self._notes(tensors),
        )
        return LedgerView(self.ledger.entries, alive, text)

    def _notes(self, tensors: Tensors | None) -> list[str]:
        notes = []
        if self._cuda_since is not None:
            notes.append(
                f"CUDA is in use since {self._cuda_since}: launches that fork (multiprocessing's fork, "
                "notebook_launcher) fail in this kernel from there on; use spawn, or restart and fork first"
            )
        if tensors is not None and not tensors.complete:
            notes.append("the search for names took too long and is incomplete: --budget SECONDS gives it more")
        if not self.is_on:
            notes.append("only cells under %%gpumem are measured: %gpumem_auto on measures every cell")
        return notes

    def idle(self, names: Collection[str]) -> dict[str, str]:
        """Return those of these variables that no recent cell mentions, with the last one that did, in words."""
        used = self._last_used(names)
        here = running_number(self._shell)
        return {
            name: f"last used in {used[name]}" if name in used else "in none of the last cells"
            for name in names
            if name not in used or here - int(used[name].strip("In []")) > _RECENT_CELLS
        }

    def _last_used(self, names: Collection[str]) -> dict[str, str]:
        """Return name → the last cell whose own text mentions it."""
        # It brings all that looks for holders, for which `%load_ext` need not wait.
        from gpumem_magic.holders.names import mentioned

        history = getattr(self._shell.history_manager, "input_hist_parsed", [])
        found: dict[str, str] = {}
        for number in range(len(history) - 1, max(0, len(history) - 1 - _CELLS_SEARCHED), -1):
            if number not in self._mentioned:
                self._mentioned[number] = frozenset(mentioned(history[number]))
            for name in self._mentioned[number].intersection(names).difference(found):
                found[name] = f"In [{number}]"
            if len(found) == len(names):
                break
        return found


def _root(path: str) -> str:
    return path.split(".", 1)[0].split("[", 1)[0]


def _newest(names: Iterable[str], used: Mapping[str, str]) -> str | None:
    """Return the last cell that mentions any of the names: ``"In [9]"``."""
    cells = [used[_root(name)] for name in names if _root(name) in used]
    return max(cells, key=lambda cell: int(cell.strip("In []")), default=None)


class LedgerMagics:
    """The line magics of one shell's ledger."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    @as_magic(
        "gpumem_auto",
        argument("state", nargs="?", default="status", metavar="on|off|status", help="Default: status."),
    )
    def gpumem_auto(self, line: str) -> None:
        """Measure every cell as %%gpumem does, and show one line under each that moved memory.

        The cells run exactly as without it. A cell under %%gpumem keeps its full report; the full report of the last
        cell that moved memory is gpumem_magic.last. %gpumem_ledger shows what is alive by the cell that made it.
        """
        state = options_of(self.gpumem_auto, line, "%gpumem_auto").state
        if state not in {"on", "off", "status"}:
            raise UsageError(f"%gpumem_auto: {state!r} is neither on, off nor status")
        keeper = self._keeper
        if state != "status":
            keeper.is_on = state == "on"
        count = len(keeper.entries)
        runs = f"{count} {'run' if count == 1 else 'runs'} in the ledger"
        if keeper.cuda_since is not None:
            runs += f"; CUDA is in use since {keeper.cuda_since}"
        if keeper.is_on:
            say(f"gpumem: every cell is measured from the next one on; {runs} (%gpumem_ledger)")
        else:
            say(f"gpumem: only cells under %%gpumem are measured; {runs} (%gpumem_ledger)")

    @as_magic(
        "gpumem_ledger",
        argument("--newest", action="store_true", help="runs by time, the newest first; else by their peak."),
        argument("--top", type=int, default=10, metavar="N", help="rows of each table. Default: 10."),
        argument("--budget", type=float, default=2.0, metavar="SECONDS", help="search names no longer. Default: 2."),
        argument("--clear", action="store_true", help="forget all runs."),
    )
    def gpumem_ledger(self, line: str) -> None:
        """Show what is alive now by the cell that made it, and the runs by their peak.

        Covers cells under %%gpumem and, after %gpumem_auto on, every cell.
        """
        found = options_of(self.gpumem_ledger, line, "%gpumem_ledger")
        if found.clear:
            self._keeper.ledger.clear()
        say(self._keeper.view(newest_first=found.newest, top=max(1, found.top), budget=max(0.0, found.budget)).text)


_NAMES = ("gpumem_auto", "gpumem_ledger")


def register(shell: Any, keeper: Keeper) -> None:
    """Make the line magics known to `shell`, and watch for CUDA's first use."""
    magics = LedgerMagics(keeper)
    for name in _NAMES:
        function: Callable[[str], None] = getattr(magics, name)
        shell.register_magic_function(function, "line", name)
    shell.events.register("pre_run_cell", keeper.before_cell)
    shell.events.register("post_run_cell", keeper.after_cell)


def unregister(shell: Any, keeper: Keeper) -> None:
    """Take them back."""
    keeper.is_on = False
    shell.events.unregister("pre_run_cell", keeper.before_cell)
    shell.events.unregister("post_run_cell", keeper.after_cell)
    for name in _NAMES:
        shell.magics_manager.magics["line"].pop(name, None)
