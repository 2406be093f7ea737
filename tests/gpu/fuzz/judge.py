"""Does the model do what a recording shows? What a snapshot from a GPU, or from `synth`, is held against."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.settings_model import Course, from_torch
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.trace.convert import from_snapshot


def judge(played: dict[str, Any], conf: str) -> dict[str, Any]:
    """Replay one recording.

    Returns
    -------
    dict
        ``events``, ``segments`` (events of segments), ``deviation`` (None or event, expected, recorded), ``wrong``
        (counters that differ from torch's), ``settings`` (what torch says it used, when that is not `conf`).
    """
    trace = from_snapshot(played["snapshot"])
    result: dict[str, Any] = {"events": 0, "segments": 0, "deviation": None, "wrong": [], "settings": None}
    said = from_torch(trace.settings)
    if not played["changes"] and said != parse_settings(conf):
        result["settings"] = str(said)
    for device in trace.devices:
        lab = Lab(trace, device, recorded_limit=played["limit"], course=_course(played, conf, device.events.time_us))
        result["events"] += len(device.events)
        result["segments"] += int(((device.events.action >= 3) & (device.events.action <= 6)).sum())
        deviation = lab.first_deviation
        if deviation is not None:
            result["deviation"] = [deviation.event, deviation.expected, deviation.recorded]
        for name, true in played["counters"].items():
            told = told_counter(lab, name)
            if told is not None and told != true:
                result["wrong"].append([name, told, true])
    return result


def _course(played: dict[str, Any], conf: str, times: Any) -> Course | None:
    """Return the settings over a trace that changed them; each change starts at the first event after its time."""
    if not played["changes"]:
        return None
    changes = [(int(np.searchsorted(times, at)), parse_settings(text)) for at, text in played["changes"]]
    return Course(parse_settings(conf), tuple(changes))


def told_counter(lab: Lab, name: str) -> int | None:
    """Return what the replay says of one of torch's counters, None where it does not tell."""
    if name == "num_ooms":
        return int((lab.device.events.action == 7).sum())
    if name == "num_alloc_retries":
        return lab.recorded_retries
    return int(getattr(lab.history, name).max())
