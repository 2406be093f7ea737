"""What a user can ask of a recording."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpumem_magic._errors import BadUsageError

__all__ = ["STACK_MODES", "RecordOptions"]

STACK_MODES = ("lines", "python", "cpp", "none")

# An event costs 136 bytes in torch's ring without a stack and 600 to 900 bytes with a Python stack,
# so that either default stays under 200 MB.
_ENTRIES_WITHOUT_STACKS = 1_000_000
_ENTRIES_WITH_STACKS = 200_000
# Every event of the CPU costs 2 µs when it is read and 60 bytes in the report: a cell that makes tensors without end
# then pays a second and some 100 MB.
_CPU_ENTRIES = 500_000
_DEVICE = re.compile(r"(?:(?P<kind>[a-z]+)(?::(?P<number>\d+))?|(?P<ordinal>\d+))")
_KINDS = frozenset({"cpu", "cuda", "hip", "mps", "xpu"})


@dataclass(frozen=True)
class RecordOptions:
    """Options of one recording.

    Attributes
    ----------
    device
        ``None`` (every device that was used), an ordinal (``"1"``), or torch's notation (``"cuda:1"``, ``"cuda"``,
        ``"cpu"``).
    stacks
        One of `STACK_MODES`: which notebook line allocated (``"lines"``), torch's Python stacks too, C++ frames on
        top of them, or nothing.
    max_entries
        Most events to keep; None takes 1,000,000 without stacks, 200,000 with stacks, and 500,000 of CPU tensors.
    label
        What the user calls this recording.

    Raises
    ------
    BadUsageError
        For a value that no machine could serve.
    """

    device: str | None = None
    stacks: str = "lines"
    max_entries: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.stacks not in STACK_MODES:
            raise BadUsageError(f"stacks must be one of {', '.join(STACK_MODES)}, not {self.stacks!r}")
        if self.max_entries is not None and self.max_entries < 1:
            raise BadUsageError(f"max-entries must be at least 1, not {self.max_entries}")
        if self.device is not None:
            match = _DEVICE.fullmatch(self.device)
            if match is None or (match["kind"] is not None and match["kind"] not in _KINDS):
                raise BadUsageError(
                    f"device must be a number or torch's notation (0, cuda:1, cpu), not {self.device!r}"
                )

    @property
    def entries(self) -> int:
        """Size of the event ring."""
        if self.max_entries is not None:
            return self.max_entries
        return _ENTRIES_WITH_STACKS if self.stacks in {"python", "cpp"} else _ENTRIES_WITHOUT_STACKS

    @property
    def cpu_entries(self) -> int:
        """Most events of CPU tensors."""
        return self.max_entries if self.max_entries is not None else _CPU_ENTRIES

    @property
    def wants_cpu(self) -> bool:
        """True when the user asked for the memory of CPU tensors."""
        return self.device == "cpu"

    @property
    def ordinal(self) -> int | None:
        """Number of the accelerator asked for, or None."""
        match = _DEVICE.fullmatch(self.device or "")
        number = match and (match["number"] or match["ordinal"])
        return int(number) if number else None

    def covers(self, key: str) -> bool:
        """Tell whether device `key` (``"cuda:0"``, ``"cpu"``) was asked for."""
        if self.device is None:
            return True
        kind, _, number = key.partition(":")
        match = _DEVICE.fullmatch(self.device)
        asked_kind = match["kind"] if match else None
        if asked_kind is None:
            return number == self.device
        # ROCm devices are called cuda by torch.
        return kind == ("cuda" if asked_kind == "hip" else asked_kind) and (
            self.ordinal is None or number == str(self.ordinal)
        )
