"""A cell whose names are gone when it ends: what they held is given back, measured, and what stays is explained."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic._format import format_bytes
from gpumem_magic.holders.release import forget_errors, in_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpumem_magic.holders.model import HolderScan
    from gpumem_magic.holders.release import Freed

__all__ = ["Remains", "Scratch", "scratch_text"]

# IPython's own names: inputs, outputs and their lists.
_NOT_THE_CELLS = re.compile(r"_i{1,3}|_i\d+|_{1,3}|_\d+|_ih|_oh|_dh|In|Out|_exit_code")
_RESULTS = ("_", "__", "___")
_MOST_SHOWN = 6


class Remains(NamedTuple):
    """What one holder keeps of what the cell allocated: bytes on a device, how it is reached, and why it was left."""

    bytes: int
    device: str
    holder: str
    why: str = ""


class Scratch:
    """Remembers a notebook's names before a cell, and removes those that it created.

    Names that were there before and were bound anew are left as the cell left them: their former values are gone, and
    taking the new ones away would leave less than there was.

    Parameters
    ----------
    shell
        IPython's shell.
    keep
        Names to leave; ``_`` among them leaves the cell's result.
    """

    def __init__(self, shell: Any, keep: Collection[str] = ()) -> None:
        self._shell = shell
        self._keep = frozenset(keep)
        self._before = {name: _same(value) for name, value in shell.user_ns.items()}
        self._outputs = set(shell.user_ns.get("_oh") or ())
        self._results = [(space, self._found(space)) for space in self._spaces()]
        self._hook = {name: getattr(getattr(shell, "displayhook", None), name, "") for name in _RESULTS}
        self._left: list[str] | None = None
        self.removed: tuple[str, ...] = ()
        self.rebound: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()

    def _spaces(self) -> list[dict[str, object]]:
        hidden = getattr(self._shell, "user_ns_hidden", None)
        return [self._shell.user_ns, *([hidden] if isinstance(hidden, dict) else [])]

    @staticmethod
    def _found(space: Mapping[str, object]) -> dict[str, object]:
        return {name: space[name] for name in _RESULTS if name in space}

    def seal(self) -> None:
        """Note the end of the code in question: what is created after this is not its own."""
        space = self._shell.user_ns
        # What is no string (globals()[5] = …) is no name either, and stays.
        names = {name: None for name in space if isinstance(name, str) and not _NOT_THE_CELLS.fullmatch(name)}
        self._left = [name for name in names if name not in self._before]
        self.rebound = tuple(
            name for name, is_same in self._before.items() if name in names and not is_same(space[name])
        )

    def end(self, *, failed: bool) -> tuple[Freed, ...]:
        """Remove what the cell created.

        Parameters
        ----------
        failed
            The cell ended in an error, whose frames hold its memory too: they are let go, and ``%debug`` finds nothing.

        Returns
        -------
        tuple
            What each step freed, measured.
        """
        space = self._shell.user_ns
        if self._left is None:
            self.seal()
        self.removed = tuple(name for name in self._left or () if name not in self._keep and name in space)
        self.missing = tuple(sorted(name for name in self._keep if name not in space))
        steps = [("names", self._forget_names)]
        if "_" not in self._keep:
            steps.append(("result", self._forget_result))
        if failed:
            steps.append(("error", lambda: forget_errors(self._shell)))
        freed = in_steps(steps)
        self._results.clear()
        self._hook.clear()
        return freed

    def _forget_names(self) -> None:
        for name in self.removed:
            self._shell.user_ns.pop(name, None)

    def _forget_result(self) -> None:
        history = self._shell.user_ns.get("_oh")
        made = [number for number in history if number not in self._outputs] if isinstance(history, dict) else []
        for number in made:
            history.pop(number, None)
            for space in self._spaces():
                space.pop(f"_{number}", None)
        if not made:
            return
        for space, former in self._results:
            for name in _RESULTS:
                if name in former:
                    space[name] = former[name]
                else:
                    space.pop(name, None)
        hook = getattr(self._shell, "displayhook", None)
        for name, value in self._hook.items():
            if hasattr(hook, name):
                setattr(hook, name, value)
        last = getattr(self._shell, "last_execution_result", None)
        if last is not None:
            last.result = None

    def remains(self, stayed: Mapping[tuple[str, int], int], scan: HolderScan) -> tuple[Remains, ...]:
        """Say who still holds what the cell allocated, and why it was left to them, the largest first.

        Parameters
        ----------
        stayed
            Size in bytes of each block that was alive when the cell ended, by (device, address).
        scan
            Who holds what, looked up after `end`.
        """
        sums: dict[tuple[str, str], int] = {}
        why: dict[str, str] = {}
        for storage in scan.storages:
            size = stayed.get((storage.device, storage.address))
            # Another tensor may lie where one was that is gone; it is then hardly of the same size.
            if size is None or not size >= storage.size > size - max(512, size // 8):
                continue
            holder = storage.holders[0]
            key = (storage.device, holder.path)
            sums[key] = sums.get(key, 0) + size
            why[holder.path] = self._why(holder.root)
        rows = [Remains(size, device, path, why[path]) for (device, path), size in sums.items()]
        return tuple(sorted(rows, key=lambda row: -row.bytes))

    def _why(self, root: str) -> str:
        """Say why what hangs on a name was not removed."""
        if root in self._keep:
            return "--keep"
        if root in self.rebound:
            return "a name from before the cell, which bound it anew"
        return "a name from before the cell" if root in self._before else ""


def _same(value: object) -> Callable[[object], bool]:
    """Return what tells whether an object is this one; where it can be, without being misled by its id used again."""
    try:
        return _Is(weakref.ref(value))
    except TypeError:
        identity = id(value)
        return lambda other: id(other) == identity


class _Is:
    """Compares with an object that is not kept alive."""

    __slots__ = ("_known",)

    def __init__(self, known: weakref.ref[Any]) -> None:
        self._known = known

    def __call__(self, other: object) -> bool:
        return self._known() is other


def scratch_text(
    scratch: Scratch,
    freed: Collection[Freed],
    remains: Collection[Remains] = (),
    unowned: Mapping[str, int] | None = None,
    *,
    unknown: str | None = None,
) -> str:
    """Write what became of a scratch cell's memory.

    Parameters
    ----------
    scratch
        After its `end`.
    freed
        What `end` freed.
    remains
        What is still held.
    unowned
        Bytes by device that are still allocated, and that no Python object was found to hold.
    unknown
        Why it is not known, or not in full, what is still held; None when it is.
    """
    names = _some(scratch.removed)
    lines = [f"gpumem: scratch removed {names}" if names else "gpumem: scratch: the cell created no names"]
    for step in freed:
        freed_here = ", ".join(f"{format_bytes(size)} on {device}" for device, size in step.tensors.items())
        parts = [f"freed {freed_here}"] if freed_here else []
        back = [f"{format_bytes(size)} back to the driver on {device}" for device, size in step.returned.items()]
        if parts or back:
            lines.append(f"  {step.step}: {', '.join([*parts, *back])}")
        if step.failed is not None:
            lines.append(f"  ! {step.step}: {step.failed}")
    if len(lines) == 1 and names and not remains and unknown is None:
        lines.append("  nothing was held by them")
    shown = list(remains)[:_MOST_SHOWN]
    for row in shown:
        why = f" ({row.why})" if row.why else ""
        lines.append(f"  not freed: {format_bytes(row.bytes)} on {row.device}, held by {row.holder}{why}")
    if len(remains) > len(shown):
        rest = sum(row.bytes for row in list(remains)[_MOST_SHOWN:])
        lines.append(f"  not freed: {format_bytes(rest)} more, held by {len(remains) - len(shown)} others")
    lines += [
        f"  not freed: {format_bytes(size)} on {device} that no Python object holds (a library's workspace or cache)"
        for device, size in (unowned or {}).items()
    ]
    if unknown is not None:
        lines.append(f"  ! who holds the rest is not known: {unknown}")
    if scratch.rebound:
        lines.append(f"  left as the cell bound them, since they were there before: {_some(scratch.rebound)}")
    if scratch.missing:
        lines.append(f"  ! --keep: the cell left no {', '.join(scratch.missing)}")
    return "\n".join(lines)


def _some(names: Collection[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(list(names)[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
