"""Two view documents as one, for a view that compares them. The format: `Compare` in the view's document.ts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.report.container import decode, encode
from gpumem_magic.report.interchange.lives import read_lives

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.analysis.diff import Diff, DiffRow

__all__ = ["merged_document"]

# The view's palette less one colour for all others.
_COLOURS = 9
_OTHER = 255
_CODE = {"line", "frame"}


def merged_document(a: bytes, b: bytes, diff: Diff) -> bytes:
    """Write one document with the devices of A and then those of B.

    Parameters
    ----------
    a, b
        View documents.
    diff
        What changed between them. Equal owners get equal colours in both, the largest ones first.
    """
    (head_a, arrays_a), (head_b, arrays_b) = decode(a), decode(b)
    devices = [*head_a["devices"], *head_b["devices"]]
    own = len(head_a["devices"])
    arrays: dict[str, NDArray[np.generic]] = dict(arrays_a)
    stacks = len(head_a["stacks"]) - 1
    for name, array in arrays_b.items():
        device, column = name.split(".", 1)
        if column == "stack":
            array = np.where(array > 0, array.astype(np.uint32) + np.uint32(stacks), 0).astype(np.uint32)  # noqa: PLW2901
        arrays[f"d{int(device[1:]) + own}.{column}"] = array
    strings, frames = len(head_a["strings"]), len(head_a["frames"])
    header = {
        **head_b,
        "title": f"{diff.a.title} → {diff.b.title}",
        "sentence": diff.sentence,
        "origin": "file",
        "outcome": None,
        "error": None,
        "cell": None,
        "notes": _notes(head_a["notes"], head_b["notes"]),
        "discloses": _discloses(head_a, head_b),
        "strings": [*head_a["strings"], *head_b["strings"]],
        "frames": [*head_a["frames"], *([f + strings, line, n + strings] for f, line, n in head_b["frames"])],
        "stacks": [*head_a["stacks"], *([frame + frames for frame in stack] for stack in head_b["stacks"][1:])],
        "devices": devices,
        "compare": {
            "titles": [diff.a.title, diff.b.title],
            "sentences": [head_a["sentence"], head_b["sentence"]],
            "devices": [_device(key, devices, arrays, own, diff) for key in diff.devices],
        },
    }
    del header["arrays"]
    return encode(header, arrays)


def _notes(a: list[dict[str, str]], b: list[dict[str, str]]) -> list[dict[str, str]]:
    """Say of which side each note is; what is said of both is said once."""
    both = {note["text"] for note in a} & {note["text"] for note in b}
    sides = [*(("A", note) for note in a), *(("B", note) for note in b if note["text"] not in both)]
    return [
        {"level": note["level"], "text": f"{'both' if note['text'] in both else side}: {note['text']}"}
        for side, note in sides
    ]


def _discloses(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    return f"A: {a['discloses']} B: {b['discloses']}"


def _device(
    key: str, devices: list[dict[str, Any]], arrays: Mapping[str, NDArray[np.generic]], own: int, diff: Diff
) -> dict[str, Any]:
    sides = [
        next((index for index in indices if devices[index]["key"] == key), None)
        for indices in (range(own), range(own, len(devices)))
    ]
    rows = [row for row in diff.rows if row.device == key]
    groups = [[] if index is None else devices[index]["groups"] for index in sides]
    held = [
        np.zeros(0, np.int64)
        if index is None
        else read_lives({"devices": devices}, arrays, index).peaks(len(own_groups))
        for index, own_groups in zip(sides, groups, strict=True)
    ]
    _paint(rows, groups, held)
    return {
        "key": key,
        "a": sides[0],
        "b": sides[1],
        "rows": [
            {
                "a": list(row.groups_a),
                "b": list(row.groups_b),
                "bytesA": row.bytes_a,
                "bytesB": row.bytes_b,
                "endA": row.end_bytes_a,
                "endB": row.end_bytes_b,
            }
            for row in rows
        ],
    }


def _paint(rows: Sequence[DiffRow], sides: Sequence[list[dict[str, Any]]], held: Sequence[NDArray[np.int64]]) -> None:
    """Give owners palette slots: equal ones the same on both sides, and no two of them one.

    Those that ever held most come first, also what holds nothing at a peak and an end: it may fill the picture between
    them. An owner keeps B's own colour where that is free.
    """
    owners: list[tuple[int, list[tuple[int, int]]]] = [
        (row.group.color, [*((0, number) for number in row.groups_a), *((1, number) for number in row.groups_b)])
        for row in rows
        if row.group.kind in _CODE
    ]
    passing: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for side, groups in enumerate(sides):
        listed = {number for row in rows for number in (row.groups_b if side else row.groups_a)}
        for number, group in enumerate(groups):
            if group["kind"] in _CODE and number not in listed:
                passing.setdefault((group["kind"], group["label"], group["file"]), []).append((side, number))
    owners += [(-1, places) for places in passing.values()]
    owners.sort(key=lambda owner: -max((int(held[side][number]) for side, number in owner[1]), default=0))
    free = list(range(_COLOURS))
    for wanted, places in owners:
        color = free.pop(free.index(wanted) if wanted in free else 0) if free else _OTHER
        for side, number in places:
            sides[side][number]["color"] = color
