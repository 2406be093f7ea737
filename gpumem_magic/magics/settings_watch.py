"""Which cell set the allocator's variables, imported torch, and first used CUDA."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpumem_magic.recording.settings import cuda_is_used, settings_in_force

if TYPE_CHECKING:
    from gpumem_magic.allocator.conf import TorchVersion
    from gpumem_magic.allocator.conf.in_session import SessionFacts

__all__ = ["SettingsWatch"]

# Before the first cell that was watched; others have their number.
_BEFORE = -1
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


class SettingsWatch:
    """Which cell set the variables, imported torch and first used CUDA: looked at after every cell, for a microsecond.

    What is so when the watch begins happened before the extension was loaded.
    """

    def __init__(self) -> None:
        self._values = _environment()
        self._set_at = {name: _BEFORE for name, value in self._values.items() if value}
        self._imported: int | None = None
        self._used: int | None = None
        self._look(_BEFORE)

    def after_cell(self, number: int) -> None:
        """Note what cell `number` changed."""
        values = _environment()
        for name, value in values.items():
            if value != self._values[name]:
                self._set_at[name] = number
        self._values = values
        self._look(number)

    def _look(self, now: int) -> None:
        if self._used is not None:
            return
        is_used = cuda_is_used()
        if is_used is not None:
            self._imported = now if self._imported is None else self._imported
        if is_used:
            self._used = now

    def facts(self, number: int, version: TorchVersion) -> SessionFacts:
        """Return what is known in the middle of cell `number`."""
        # What knows the settings is a fifth of what loading the extension would import.
        from gpumem_magic.allocator.conf.in_session import Moment, SessionFacts

        def moment(cell: int) -> Moment:
            return Moment(None if cell == _BEFORE else cell)

        self.after_cell(number)
        in_force = settings_in_force()
        return SessionFacts(
            environ=dict(os.environ),
            version=version,
            in_force=in_force.text,
            reason=in_force.reason,
            imported=None if self._imported is None else moment(self._imported),
            used=None if self._used is None else moment(self._used),
            set_at={name: moment(cell) for name, cell in self._set_at.items()},
        )


def _environment() -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in _VARIABLES}
