"""Trace Event JSON, which Perfetto and ``chrome://tracing`` open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format"). Each
device is a process: counters for what was allocated, in all and by owner, and for torch's and the driver's numbers;
measured cells and `record_function` regions as slices. Its largest allocations are asynchronous slices of a process
beside it, since they take many rows.

Perfetto asks for more than the format: the slices of a thread must nest, and a thread's number be its own among all
processes (https://perfetto.dev/docs/getting-started/other-formats).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic.report.interchange.lives import owner_name, read_lives, stack_frames

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray

    from gpumem_magic.report.interchange.lives import Lives

__all__ = ["trace_events"]

# A counter with more points than any screen has columns is thinned to its extremes.
_POINTS = 20_000
_OWNER_POINTS = 4_000
_OWNERS = 12
# Each takes a row of its own while it lives; more than these cannot be looked through.
_SINGLE = 5_000
# A device's own thread has its process's number; its threads of slices have this many numbers.
_THREADS = 1_000

Event = dict[str, "Any"]
# Name, begin and end (µs), what else is known.
_Span = tuple[str, int, int, dict[str, str]]


def trace_events(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Write a decoded view document as a trace."""
    events: list[Event] = []
    left_out = []
    timed = all(device["startUs"] > 0 for device in header["devices"])
    for index, device in enumerate(header["devices"]):
        lives = read_lives(header, arrays, index)
        pid = index + 1
        name = device["key"] if device["name"] is None else f"{device['key']} {device['name']}"
        events.append(_named("process_name", pid, pid, f"{name} (gpumem)"))
        events += _counter(pid, "allocated", *lives.curve(), _POINTS)
        events += _owners(pid, device, lives)
        for number, lane in enumerate(device["lanes"]):
            time = device["startUs"] + arrays[f"d{index}.lane{number}.t"].astype(np.int64)
            events += _counter(pid, lane["name"], time, arrays[f"d{index}.lane{number}.v"].astype(np.int64), _POINTS)
        events += _slices(pid, header, device)
        events += [
            {"ph": "i", "s": "p", "pid": pid, "tid": pid, "ts": marker["timeUs"], "name": marker["kind"],
             "cat": "marker", "args": {"text": marker["text"]}}
            for marker in device["markers"]
        ]  # fmt: skip
        beside = len(header["devices"]) + pid
        shown, more = _singles(beside, header, device, lives)
        if shown:
            events.append(_named("process_name", beside, beside, f"{name}: its largest allocations (gpumem)"))
            events += shown
        if more:
            left_out.append(f"{device['key']}: {more:,} smaller allocations are in the counters only")
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "title": header["title"],
            "sentence": header["sentence"],
            "generator": f"gpumem-magic {header['package']}",
            "units": f"bytes; ts {'in Unix microseconds' if timed else 'counts events: no times were recorded'}",
            "left_out": left_out,
        },
    }


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _thinned(time: NDArray[np.int64], value: NDArray[np.int64], points: int) -> NDArray[np.int64]:
    """Return which points to keep: first, lowest, highest and last of each of equally many in a row."""
    count = len(time)
    if count <= points:
        return np.arange(count)
    edges = np.linspace(0, count, points // 4 + 1).astype(np.int64)
    bin_of = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    order = np.lexsort((value, bin_of))
    return np.unique(np.concatenate([edges[:-1], edges[1:] - 1, order[edges[:-1]], order[edges[1:] - 1]]))


def _counter(pid: int, name: str, time: NDArray[np.int64], value: NDArray[np.int64], points: int) -> Iterator[Event]:
    for at in _thinned(time, value, points).tolist():
        yield {"ph": "C", "pid": pid, "tid": pid, "ts": int(time[at]), "name": name, "args": {"bytes": int(value[at])}}


def _owners(pid: int, device: Mapping[str, Any], lives: Lives) -> Iterator[Event]:
    """Write a counter for each of the owners that held most."""
    peaks = lives.peaks(len(device["groups"]))
    # A curve takes a pass over all changes, and a long recording has thousands of owners.
    for number in np.argsort(-peaks, kind="stable")[:_OWNERS].tolist():
        if peaks[number] > 0:
            name = owner_name(device["groups"][number])
            yield from _counter(pid, f"by {name}", *lives.curve(number), _OWNER_POINTS)


def _slices(pid: int, header: Mapping[str, Any], device: Mapping[str, Any]) -> list[Event]:
    """Write measured cells and regions, each kind as a thread of its own."""
    cells: list[_Span] = [
        (span["title"], span["startUs"], span["endUs"], {"report": span["sentence"]})
        for span in header.get("cells", [])
    ]
    regions: list[_Span] = [
        (one["name"], one["startUs"] or device["startUs"], one["endUs"] or device["endUs"], {})
        for one in device["regions"]
    ]
    events = []
    tid = _THREADS * pid
    for name, spans in (("cells", cells), ("regions", regions)):
        for number, thread in enumerate(_nested(spans)):
            tid += 1
            events.append(_named("thread_name", pid, tid, name if not number else f"{name} {number + 1}"))
            events += [
                {"ph": "X", "pid": pid, "tid": tid, "ts": first, "dur": last - first, "name": title, "cat": name,
                 "args": args}
                for title, first, last, args in thread
            ]  # fmt: skip
    return events


def _fits(ends: list[int], first: int, last: int) -> bool:
    """Return whether a slice nests in the open ones of a thread, which end at `ends`; those that ended go."""
    while ends and ends[-1] <= first:
        ends.pop()
    return not ends or last <= ends[-1]


def _nested(spans: list[_Span]) -> list[list[_Span]]:
    """Return slices, outer ones first, in as few threads as let those of each nest: two threads' may overlap."""
    threads: list[tuple[list[_Span], list[int]]] = []
    for title, first, end, args in sorted(spans, key=lambda span: (span[1], -span[2])):
        last = max(first, end)
        free = next((one for one in threads if _fits(one[1], first, last)), None)
        if free is None:
            free = [], []
            threads.append(free)
        free[0].append((title, first, last, args))
        free[1].append(last)
    return [thread for thread, _ in threads]


def _singles(pid: int, header: Mapping[str, Any], device: Mapping[str, Any], lives: Lives) -> tuple[list[Event], int]:
    """Write the allocations with the most bytes × time one by one; return how many are left out, too."""
    weight = lives.bytes * (lives.end_us - lives.start_us + 1.0)
    chosen = np.sort(np.argsort(-weight, kind="stable")[:_SINGLE])
    names = [owner_name(group) for group in device["groups"]]
    rest = device["timeline"]["rest"]
    events = []
    for nth in chosen.tolist():
        # A local id: Perfetto would put global ones of all devices together, as "legacy events".
        place = {"id2": {"local": f"{nth:#x}"}, "pid": pid, "tid": pid}
        common = {"cat": "allocation", **place, "name": names[lives.group[nth]]}
        stack = [f"{function} ({file}:{line})" for function, file, line in stack_frames(header, int(lives.stack[nth]))]
        args: dict[str, Any] = {"bytes": int(lives.bytes[nth])}
        if lives.start[nth] < 0:
            args["there"] = "before the recording"
        if lives.end[nth] < 0:
            args["stays"] = "alive at the end"
        if stack:
            args["stack"] = stack
        events.append({"ph": "b", **common, "ts": int(lives.start_us[nth]), "args": args})
        events.append({"ph": "e", **common, "ts": int(lives.end_us[nth])})
    return events, len(weight) - len(chosen) + (int(rest["lifetimes"]) if rest else 0)
