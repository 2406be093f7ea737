"""speedscope's file format: who was alive at each device's peak and at its end, as flame graphs of bytes.

The schema: https://www.speedscope.app/file-format-schema.json. Each profile is of type "sampled": a sample is a stack,
outermost frame first, and its weight the bytes that it allocated; the weights add up to the device's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.report.interchange.lives import owner_name, read_lives, stack_frames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from gpumem_magic.report.interchange.lives import Lives

__all__ = ["profiles"]

# A stack, outermost first, as numbers of frames, and bytes.
_Sample = tuple[list[int], int]
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """Frames of all profiles, numbered in order of first use."""

    def __init__(self) -> None:
        self.shared: list[dict[str, Any]] = []
        self._known: dict[tuple[str, str | None, int | None], int] = {}

    def number(self, name: str, file: str | None = None, line: int | None = None) -> int:
        key = (name, file, line)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.shared)
            frame: dict[str, Any] = {"name": name}
            if file is not None:
                frame["file"] = file
            if line:
                frame["line"] = line
            self.shared.append(frame)
        return found


def profiles(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Write a decoded view document as profiles: two a device, the one with the highest peak in front."""
    frames = _Frames()
    found = []
    peaks = []
    for index, device in enumerate(header["devices"]):
        lives = read_lives(header, arrays, index)
        name = device["key"] if device["name"] is None else f"{device['key']} {device['name']}"
        peaks.append(device["headline"]["allocatedPeak"] or 0)
        for what, alive, time in (
            ("at the peak", lives.at_peak(), lives.peak_us),
            ("at the end", lives.end < 0, int(device["endUs"])),
        ):
            samples = _samples(header, device["groups"], lives, alive, frames)
            samples += _summed(device["groups"], lives, time, frames)
            found.append(_profile(f"{name}, {what}", samples))
    active = 2 * int(np.argmax(peaks)) if peaks else 0
    return {
        "$schema": _SCHEMA,
        "exporter": f"gpumem-magic {header['package']}",
        "name": header["title"],
        "activeProfileIndex": active,
        "shared": {"frames": frames.shared},
        "profiles": found,
    }


def _owner(owner: Mapping[str, Any], frames: _Frames) -> int:
    return frames.number(owner_name(owner), owner["file"], owner["line"])


def _samples(
    header: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    lives: Lives,
    alive: NDArray[np.bool_],
    frames: _Frames,
) -> list[_Sample]:
    pairs = np.stack([lives.group[alive], lives.stack[alive]], axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, inverse.reshape(-1), lives.bytes[alive])
    samples = []
    for (group, stack), size in zip(distinct.tolist(), sums.tolist(), strict=True):
        path = [frames.number(*frame) for frame in stack_frames(header, stack)]
        # An owner that is itself a frame of the stack would split what the stacks have in common.
        if not path or groups[group]["kind"] != "frame":
            path.insert(0, _owner(groups[group], frames))
        samples.append((path, size))
    return samples


def _summed(groups: Sequence[Mapping[str, Any]], lives: Lives, time_us: int, frames: _Frames) -> list[_Sample]:
    """Return what the document keeps as sums only."""
    return [
        ([_owner(groups[group], frames), frames.number("small allocations, summed")], size)
        for group, size in zip(lives.sum_group.tolist(), lives.sums_at(time_us).tolist(), strict=True)
        if size > 0
    ]


def _profile(name: str, samples: list[_Sample]) -> dict[str, Any]:
    samples = sorted(samples, key=lambda sample: -sample[1])
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(size for _, size in samples),
        "samples": [path for path, _ in samples],
        "weights": [size for _, size in samples],
    }
