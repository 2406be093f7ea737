"""Write a trace as a torch memory snapshot, for torch's own viewer and for every tool that reads those."""

from __future__ import annotations

import gzip
import lzma
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import ExportError
from gpumem_magic.trace.beside import KEY, written
from gpumem_magic.trace.collector import paused_collector
from gpumem_magic.trace.model import Action, BlockState
from gpumem_magic.trace.times import has_times

if TYPE_CHECKING:
    import os

    from gpumem_magic.trace.model import DeviceTrace, Segment, Trace

__all__ = ["pickled", "to_snapshot", "write_snapshot"]

# The viewer at pytorch.org/memory_viz shows nothing for protocol 5.
_PROTOCOL = 4
_STATES = {
    BlockState.INACTIVE: "inactive",
    BlockState.ACTIVE_ALLOCATED: "active_allocated",
    BlockState.ACTIVE_PENDING_FREE: "active_pending_free",
}


def write_snapshot(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` to `path`, packed when the name ends in ``.gz`` or ``.xz``.

    Raises
    ------
    ExportError
        When the file cannot be written.
    """
    path = Path(path)
    data = pickled(trace)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".xz":
        data = lzma.compress(data)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror or error}") from error


def pickled(trace: Trace) -> bytes:
    """Return the pickle of `trace`, protocol 4."""
    with paused_collector():
        return pickle.dumps(to_snapshot(trace), protocol=_PROTOCOL)


def to_snapshot(trace: Trace) -> dict[str, Any]:
    """Return the dict that ``torch.cuda.memory._snapshot()`` would have returned.

    Stacks and frames that are equal are one object, as in torch's own, so that the pickle stays small. What a `Trace`
    does not hold (compile context, user metadata) has torch's defaults. What torch has no place for stands under a key
    of our own (`gpumem_magic.trace.beside`).
    """
    frames = [{"name": frame.name, "filename": frame.filename, "line": frame.line} for frame in trace.stacks.frames]
    stacks = [[frames[index] for index in stack] for stack in trace.stacks.stacks]
    on_device = [device for device in trace.devices if device.kind in {"cuda", "xpu"}]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max((one.device for one in on_device), default=-1) + 1)]
    for device in on_device:
        traces[device.device] = _entries(device, stacks)
    snapshot: dict[str, Any] = {
        "segments": [_segment(device, one, stacks) for device in on_device for one in device.segments],
        "device_traces": traces,
        "allocator_settings": dict(trace.settings),
        "external_annotations": _annotations(trace),
    }
    if not all(device.has_snapshot for device in on_device):
        del snapshot["segments"]
    beside = {device.key: written(device.beside) for device in on_device if device.beside is not None}
    if beside:
        snapshot[KEY] = beside
    return snapshot


def _entries(device: DeviceTrace, stacks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    events = device.events
    names = {int(action): action.name.lower() for action in Action}
    timed = has_times(events.time_us)
    entries = []
    for action, addr, size, stream, time_us, stack, pool in zip(
        events.action.tolist(),
        events.addr.tolist(),
        events.size.tolist(),
        events.stream.tolist(),
        events.time_us.tolist(),
        events.stack.tolist(),
        events.pool.tolist(),
        strict=True,
    ):
        entry: dict[str, Any] = {
            "action": names.get(action, "unknown"),
            "device_free" if action == Action.OOM else "addr": addr,
            "size": size,
            "stream": stream,
            "compile_context": "N/A",
            "user_metadata": "",
        }
        if timed:
            entry["time_us"] = time_us
        if stack:
            entry["frames"] = stacks[stack]
        if pool >= 0:
            entry["pool_id"] = device.pool_ids[pool]
        entries.append(entry)
    return entries


def _segment(device: DeviceTrace, segment: Segment, stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    active = [block for block in segment.blocks if block.state != BlockState.INACTIVE]
    return {
        "device": device.device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(block.size for block in active if block.state == BlockState.ACTIVE_ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": segment.pool_id,
        "is_expandable": segment.is_expandable,
        "frames": stacks[segment.stack],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _STATES[block.state],
                "frames": stacks[block.stack],
            }
            for block in segment.blocks
        ],
    }


def _annotations(trace: Trace) -> list[dict[str, Any]]:
    edges = []
    for region in trace.regions:
        for stage, time_us in (("START", region.start_us), ("END", region.end_us)):
            if time_us is not None:
                edges.append({"name": region.name, "stage": stage, "device": region.device, "time_us": time_us})
    return sorted(edges, key=lambda edge: edge["time_us"])
