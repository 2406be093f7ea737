"""Two view documents as one, for a view that compares them. The format: `Compare` in the view's document.ts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.report.container import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpumem_magic.analysis.diff import Diff

__all__ = ["merged_document"]

# The view's palette less one colour for all others.
_COLOURS = 9
_OTHER = 255


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
            "devices": [_device(key, devices, own, diff) for key in diff.devices],
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


def _device(key: str, devices: list[dict[str, Any]], own: int, diff: Diff) -> dict[str, Any]:
    sides = [
        next((index for index in indices if devices[index]["key"] == key), None)
        for indices in (range(own), range(own, len(devices)))
    ]
    rows = [row for row in diff.rows if row.device == key]
    slots = _slots(rows)
    for at, index in enumerate(sides):
        if index is None:
            continue
        for number, row in enumerate(rows):
            for group in row.groups_b if at else row.groups_a:
                devices[index]["groups"][group]["color"] = slots.get(number, _OTHER)
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


def _slots(rows: list[Any]) -> dict[int, int]:
    """Give palette slots to the owners that hold or move most; B's own colour where it is free."""
    code = [number for number, row in enumerate(rows) if row.group.kind in {"line", "frame"}]
    code.sort(key=lambda n: -max(rows[n].bytes_a, rows[n].bytes_b, rows[n].end_bytes_a, rows[n].end_bytes_b))
    slots: dict[int, int] = {}
    free = list(range(_COLOURS))
    for number in code[:_COLOURS]:
        wanted = rows[number].group.color
        slots[number] = free.pop(free.index(wanted) if wanted in free else 0)
    return slots
