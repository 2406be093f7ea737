"""A recording in the formats of other tools: Perfetto and Chrome (trace JSON), speedscope.

Both are written from the view document, so that whatever has one can be exported: a file, a cell, an HTML report.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from gpumem_magic._errors import BadUsageError
from gpumem_magic.report.container import decode
from gpumem_magic.report.interchange.perfetto import trace_events
from gpumem_magic.report.interchange.speedscope import profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["FORMATS", "Format", "exported"]

Format = Literal["perfetto", "speedscope"]
FORMATS: dict[str, Callable[[Mapping[str, Any], Mapping[str, NDArray[Any]]], dict[str, Any]]] = {
    "perfetto": trace_events,
    "speedscope": profiles,
}


def exported(document: bytes, to: str) -> bytes:
    """Write a view document in another tool's format.

    Parameters
    ----------
    document
        A container (see `report.container`), complete or not: what it sums is exported as sums.
    to
        ``"perfetto"`` (also for ``chrome://tracing``) or ``"speedscope"``.

    Returns
    -------
    bytes
        JSON, UTF-8.

    Raises
    ------
    BadUsageError
        Another format, or a comparison, which is no recording.
    SnapshotError
        It is no view document.
    """
    if to not in FORMATS:
        raise BadUsageError(f"{to}: not a format that is known; there are {' and '.join(FORMATS)}")
    header, arrays = decode(document)
    if header.get("compare") is not None:
        raise BadUsageError("a comparison is no recording: export its two sides")
    return json.dumps(FORMATS[to](header, arrays), ensure_ascii=False, separators=(",", ":")).encode()
