"""A cell whose names are gone when it ends: what they held is given back, measured, and what stays is explained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic._format import format_bytes
from gpumem_magic.holders.release import forget_errors, in_steps
from gpumem_magic.holders.scan import who_holds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpumem_magic.holders.release import Freed

__all__ = ["Remains", "Scratch", "scratch_text"]

# IPython's own names: inputs, outputs and their lists.
_NOT_THE_CELLS = re.compile(r"_i{1,3}|_i\d+|_{1,3}|_\d+|_ih|_oh|_dh|In|Out|_exit_code")
_RESULTS = ("_", "__", "___")
_SCAN_SECONDS = 1.0
_MOST_SHOWN = 6


class Remains(NamedTuple):
    """What one holder keeps of what the cell allocated: bytes on a device, and how it is reached."""

    bytes: int
    device: str
    holder: str


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
        self._before = {name: id(value) for name, value in shell.user_ns.items()}
        self._outputs = set(shell.user_ns.get("_oh") or ())
        self._results = [(space, self._found(space)) for space in self._spaces()]
        self._hook = {name: getattr(getattr(shell, "displayhook", None), name, "") for name in _RESULTS}
        self.removed: tuple[str, ...] = ()
        self.rebound: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()

    def _spaces(self) -> list[dict[str, object]]:
        hidden = getattr(self._shell, "user_ns_hidden", None)
        return [self._shell.user_ns, *([hidden] if isinstance(hidden, dict) else [])]

    @staticmethod
    def _found(space: Mapping[str, object]) -> dict[str, object]:
        return {name: space[name] for name in _RESULTS if name in space}

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
        created = [name for name in space if name not in self._before and not _NOT_THE_CELLS.fullmatch(name)]
        self.removed = tuple(name for name in created if name not in self._keep)
        self.missing = tuple(sorted(name for name in self._keep if name not in space))
        self.rebound = tuple(
            name
            for name, identity in self._before.items()
            if name in space and id(space[name]) != identity and not _NOT_THE_CELLS.fullmatch(name)
        )
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

    def remains(self, stayed: Mapping[tuple[str, int], int]) -> tuple[Remains, ...]:
        """Say who still holds what the cell allocated, the largest first.

        Parameters
        ----------
        stayed
            Size in bytes of each block that was alive when the cell ended, by (device, address).
        """
        if not stayed:
            return ()
        sums: dict[tuple[str, str], int] = {}
        for storage in who_holds(self._shell, budget=_SCAN_SECONDS).storages:
            size = stayed.get((storage.device, storage.address))
            # Another tensor may lie where one was that is gone; it is then hardly of the same size.
            if size is None or not size >= storage.size > size - max(512, size // 8):
                continue
            holder = storage.holders[0]
            key = (storage.device, holder.path)
            sums[key] = sums.get(key, 0) + size
        rows = [Remains(size, device, path) for (device, path), size in sums.items()]
        return tuple(sorted(rows, key=lambda row: -row.bytes))


def scratch_text(
    scratch: Scratch, freed: Collection[Freed], remains: Collection[Remains], unowned: Mapping[str, int]
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
    """
    names = ", ".join(scratch.removed[:_MOST_SHOWN])
    more = len(scratch.removed) - _MOST_SHOWN
    names += f" and {more} more" if more > 0 else ""
    lines = [f"gpumem: scratch removed {names}" if names else "gpumem: scratch: the cell created no names"]
    for step in freed:
        parts = [f"{format_bytes(size)} on {device}" for device, size in step.tensors.items()]
        back = [f"{format_bytes(size)} back to the driver on {device}" for device, size in step.returned.items()]
        if parts or back:
            lines.append(f"  {step.step}: {', '.join([*parts, *back])}")
    if len(lines) == 1 and not remains:
        lines.append("  nothing was held by them")
    shown = list(remains)[:_MOST_SHOWN]
    lines += [f"  not freed: {format_bytes(row.bytes)} on {row.device}, held by {row.holder}" for row in shown]
    if len(remains) > len(shown):
        rest = sum(row.bytes for row in list(remains)[_MOST_SHOWN:])
        lines.append(f"  not freed: {format_bytes(rest)} more, held by {len(remains) - len(shown)} others")
    lines += [
        f"  not freed: {format_bytes(size)} on {device} that no Python object holds (a library's workspace or cache)"
        for device, size in unowned.items()
    ]
    if scratch.rebound:
        lines.append(f"  left as the cell bound them, since they were there before: {', '.join(scratch.rebound)}")
    if scratch.missing:
        lines.append(f"  ! --keep: the cell left no {', '.join(scratch.missing)}")
    return "\n".join(lines)
