"""Whether a recording keeps the promise that it leaks nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpumem_magic._errors import BadUsageError
from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.leaks.evidence import LEAST_ITERATIONS

if TYPE_CHECKING:
    from gpumem_magic.analysis.model import Analysis

__all__ = ["broken_promise", "nothing_to_judge", "read_allowance"]

_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMG])(?:i?B)?|B)?\s*", re.IGNORECASE)
_EXPONENTS = {"": 0, "K": 1, "M": 2, "G": 3}


def read_allowance(text: str) -> int:
    """Read how many bytes may leak: ``0``, ``4096``, ``64KiB``, ``1.5 GB``; units are binary.

    Raises
    ------
    BadUsageError
        When it is no number of bytes.
    """
    match = _BYTES.fullmatch(text)
    if match is None:
        raise BadUsageError(f"assert-no-leak takes bytes, as 4096 or 64KiB, not {text!r}")
    return int(float(match[1]) * 1024 ** _EXPONENTS[(match[2] or "").upper()])


def broken_promise(analysis: Analysis, allowed: int) -> str | None:
    """Return what leaks, in one line, when it is more than `allowed` bytes; else None."""
    leaks = sorted(analysis.leaks, key=lambda leak: -leak.bytes)
    total = sum(leak.bytes for leak in leaks)
    if not leaks or total <= allowed:
        return None
    limit = f" ({format_bytes(allowed)} allowed)" if allowed else ""
    return f"{format_bytes(total)} leaked{limit}: {'; '.join(leak.sentence for leak in leaks)}"


def nothing_to_judge(analysis: Analysis) -> str | None:
    """Say why there was no evidence either way, or return None when there was."""
    looked = [device.growth for device in analysis.devices if device.growth is not None]
    if not looked:
        return "assert-no-leak had nothing to judge: no allocations were recorded"
    if analysis.leaks or any(growth.iterations >= LEAST_ITERATIONS for growth in looked):
        return None
    if not any(device.headline.stayed for device in analysis.devices):
        return None  # nothing that stayed can leak
    return (
        f"assert-no-leak had nothing to judge: no loop of at least {LEAST_ITERATIONS} iterations was seen, nor as many "
        "runs of this cell"
    )
