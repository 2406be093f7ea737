"""Reading an exported report back: its view document is inside."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import SnapshotError
from gpumem_magic.analysis.diff import Side, side_device
from gpumem_magic.analysis.model import Group, Row
from gpumem_magic.report.container import decode
from gpumem_magic.report.html import MARKER

if TYPE_CHECKING:
    import os

__all__ = ["is_report", "side_of_report"]

_DOCUMENT = re.compile(
    rb'<script type="application/octet-stream;base64" id="gpumem-document">([A-Za-z0-9+/=]+)</script>'
)


def is_report(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a report of ours does. A file that cannot be read does not."""
    if not Path(path).is_file():  # opening a pipe would wait for its writer
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MARKER)) == MARKER
    except OSError:
        return False


def side_of_report(path: str | os.PathLike[str]) -> Side:
    """Make one side of a comparison from an exported report.

    Raises
    ------
    SnapshotError
        The file holds no readable view document.
    """
    try:
        found = _DOCUMENT.search(Path(path).read_bytes())
        if found is None:
            raise SnapshotError(f"{path}: the report holds no data; export it again")
        header: dict[str, Any] = decode(base64.b64decode(found[1]))[0]
        devices = {}
        for device in header["devices"]:
            groups = [Group(**group) for group in device["groups"]]
            peak, end = ([Row(**row) for row in device[name]] for name in ("peak", "end"))
            totals = (device["headline"]["allocatedPeak"], device["headline"]["allocatedAfter"])
            devices[device["key"]] = side_device(groups, peak, end, totals)
    except (OSError, binascii.Error, IndexError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path}: not a readable report ({error}); export it again") from error
    return Side(str(header["title"]), devices)
