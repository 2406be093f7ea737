"""The limit that a recorded process had, and what cannot be replayed at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.allocator.replay import reserved_bytes
from gpumem_magic.allocator.settings_model import from_torch
from gpumem_magic.allocator.sizes import segment_size
from gpumem_magic.report.whatif.model import Cap
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.allocator.settings_model import AllocatorSettings
    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.trace.model import DeviceTrace

__all__ = ["limit_of_failure", "natural_cap", "stated_cap", "why_not"]


def why_not(analysis: Analysis, device: DeviceAnalysis | None = None) -> str | None:
    """Return why there is nothing to replay, or None when there is.

    Parameters
    ----------
    analysis
        A report's.
    device
        One of its devices; None: any will do.
    """
    devices = analysis.devices if device is None else (device,)
    if any(one.memory is not None and len(one.memory.device.events) for one in devices):
        return None
    if not devices:
        return "nothing was recorded, so there is nothing to replay"
    first = devices[0]
    if first.kind in {"cpu", "host"}:
        return f"memory on {first.key} does not come from torch's caching allocator, so no setting can change it"
    if first.sampled is not None or not first.events:
        return (
            f"{first.key}: only counters were read here, no events, so there is nothing to replay; "
            "the notes of the report say why"
        )
    return f"{first.key}: the recording has no final state of the allocator, so it cannot be replayed"


def natural_cap(device: DeviceAnalysis) -> Cap | None:
    """Return the limit that the recorded process had, as far as it is known.

    A memory fraction counts as it is. Without one the device's memory is the limit, less what others and the libraries
    of this process hold at the end. A recorded out-of-memory error says at least that much. What ran to its end has
    fitted.
    """
    cap: Cap | None = None
    headline = device.headline
    if device.limit is not None and device.total is not None:
        if device.limit < device.total:
            cap = Cap(device.limit, "this process's memory fraction")
        else:
            outside = max((headline.device_used or 0) - (headline.reserved_after or 0), 0)
            cap = Cap(device.total - outside, "what the device has for torch", collects=False)
    memory = device.memory
    if memory is None:
        return cap
    if cap is None or not cap.collects:
        found = limit_of_failure(memory.device, from_torch(memory.settings))
        if found is not None and (cap is None or found.bytes < cap.bytes):
            return found
    if cap is not None and cap.bytes < (headline.reserved_peak or 0):
        cap = replace(cap, bytes=headline.reserved_peak or 0)
    return cap


def stated_cap(device: DeviceTrace) -> Cap | None:
    """Return the limit that a file states, None when it states none; torch's own snapshots do not."""
    beside = device.beside
    if beside is None or beside.limit is None or beside.total is None:
        return None
    # What ran to its end has fitted.
    most = max(beside.limit, int(reserved_bytes(device).max()))
    if beside.fraction is not None:
        return Cap(most, "the recorded process's memory fraction")
    return Cap(most, "the recorded device's memory", collects=False)


def limit_of_failure(device: DeviceTrace, settings: AllocatorSettings) -> Cap | None:
    """Return the least limit under which the recording's failed requests fail, None when none failed.

    The event says what the driver had left. Less than the request needed: the device was full, and that is the limit.
    More: a memory fraction stopped it, somewhere from what was reserved on to just under what was needed. The least of
    that range is taken, so that nothing is said to fit that may not.

    Parameters
    ----------
    device
        The recording of one device.
    settings
        The allocator's in that recording.
    """
    events = device.events
    failures = np.flatnonzero(events.action == Action.OOM).tolist()
    if not failures:
        return None
    reserved = reserved_bytes(device)
    most = int(reserved.max())
    last = failures[-1]
    left, wanted = int(events.addr[last]), segment_size(int(events.size[last]), settings)
    if left < wanted:
        full = int(reserved[last]) + left
        return Cap(max(full, most), "what the device had when the recorded run ran out of memory", collects=False)
    return Cap(most, "what the recorded run held at most before it ran out of memory", collects=True)
