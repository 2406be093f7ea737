"""Which variable torch reads, and which torch is installed: package metadata only, torch is not imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic._errors import BadUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEWEST", "Environment", "TorchVersion", "from_environment", "installed_torch"]

_CUDA = "PYTORCH_CUDA_ALLOC_CONF"
_COMMON = "PYTORCH_ALLOC_CONF"
_HIP = "PYTORCH_HIP_ALLOC_CONF"


class TorchVersion(NamedTuple):
    """A torch release; `build` is the local part (``"cpu"``, ``"cu130"``, ``"rocm6.3"``) or empty."""

    major: int
    minor: int
    micro: int = 0
    build: str = ""

    @classmethod
    def parse(cls, text: str) -> TorchVersion:
        """Read ``"2.11"``, ``"2.11.0"`` or ``"2.11.0+cu130"``.

        Raises
        ------
        BadUsageError
            When the text is no such version.
        """
        match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?[^+]*(?:\+(.*))?", text.strip())
        if match is None:
            raise BadUsageError(f"'{text}' is no torch version; write for example 2.11")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0), match[4] or "")

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor, as options are dated."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: The newest release whose options are known here.
NEWEST = TorchVersion(2, 15)


def installed_torch() -> TorchVersion | None:
    """Return the installed torch's version by its package metadata, or None when there is none."""
    # A fifth of what `%load_ext` would take, for a question that most sessions never ask.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return TorchVersion.parse(version("torch"))
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Environment:
    """The settings variable that counts.

    Attributes
    ----------
    variable
        Its name, None when no variable is set.
    text
        Its value, empty when none is set.
    notes
        What else is set, and why it does not count.
    """

    variable: str | None
    text: str
    notes: tuple[str, ...]


def from_environment(environ: Mapping[str, str], version: TorchVersion) -> Environment:
    """Find the variable that torch `version` reads.

    ``PYTORCH_ALLOC_CONF`` exists since 2.9. With both set ``PYTORCH_CUDA_ALLOC_CONF`` wins (tried on 2.11, 2.13 and
    2.14).
    """
    rocm = version.build.startswith("rocm")
    order = [_CUDA]
    if version.release >= (2, 9):
        order.append(_COMMON)
    if rocm or version.release >= (2, 13):
        order.append(_HIP)
    present = [name for name in order if environ.get(name)]
    notes = [
        f"{name} is set, but torch {version} does not read it: use {_CUDA}"
        for name in (_COMMON, _HIP)
        if environ.get(name) and name not in order
    ]
    if not present:
        return Environment(None, "", tuple(notes))
    winner, *losers = present
    for name in losers:
        same = environ[name] == environ[winner]
        notes.append(
            f"{name} is set too, to the same value"
            if same
            else f"{name} is set too and loses: torch {version} reads {winner}; unset one of them"
        )
    text = environ[winner]
    if winner == _COMMON and version[:3] == (2, 9, 1) and "expandable_segments" in text:
        notes.append(f"torch 2.9.1 ignores expandable_segments in {_COMMON}: use {_CUDA}")
    return Environment(winner, text, tuple(notes))
