"""What a report costs, from a snapshot file and from a recorded cell, as ratios to unpickling the same data.

    python tests/benchmarks/bench_report.py FILE.pickle[.xz] [--rounds N] [--processor]
    python tests/benchmarks/bench_report.py --deep 2000000
    python tests/benchmarks/bench_report.py --cell 600000 [--processor]

Rounds are interleaved with unpickling (garbage collector off); medians with their range, nothing asserted. ``--deep``
makes up a training loop with stacks of 25 frames. ``--cell`` makes up what torch's own snapshot gives after a cell that
loops over two lines, and takes the steps from there to the report on screen, with line marks and without stacks. Goal:
their sum below what torch takes for the snapshot itself, for which unpickling it stands in here. ``--processor`` counts
processor time, which a busy machine changes less. Memory is the peak of
a process that does one thing, over that of one that only unpickles.
"""

from __future__ import annotations

import argparse
import gc
import lzma
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_snapshot import training  # type: ignore[import-not-found]

from gpumem_magic.recording.model import Cell, Marks, Outcome, Recording, SourceKind
from gpumem_magic.report import build
from gpumem_magic.trace.collector import paused_collector
from gpumem_magic.trace.convert import from_snapshot
from gpumem_magic.trace.reader import read_trace

_UNPICKLE = "import gc, pickle, sys; gc.disable(); pickle.loads(open(sys.argv[1], 'rb').read())"
_REPORT = "import sys; from gpumem_magic.cli import main; sys.exit(main(['report', sys.argv[1], '-o', sys.argv[2]]))"
# Not ru_maxrss: that starts with the parent's memory.
_PEAK = "; print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
# The goal: at most 2 MB of state, the view's script included; the limit that the widget sets itself.
_WIDGET = 256_000


def deep(events, frames=25):
    """A training loop whose stacks are `frames` deep."""
    snapshot = training(events)
    path = "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py"
    below = [{"filename": path, "line": 100 + depth, "name": f"_call_{depth}"} for depth in range(frames - 3)]
    for entry in snapshot["device_traces"][0]:
        if entry["frames"]:
            entry["frames"] = [entry["frames"][0], *below, *entry["frames"][1:]]
    return snapshot


def timed_by(function, clock):
    """Return a call's seconds and its result; garbage is collected before, not during."""
    gc.collect()
    begin = clock()
    result = function()
    return clock() - begin, result


def unpickle(path):
    """Unpickle with the collector off."""
    gc.disable()
    try:
        return pickle.loads(path.read_bytes())  # noqa: S301 - made here, or given by whoever measures
    finally:
        gc.enable()


def peak_mib(code, *arguments):
    """Return the peak memory of a process that runs `code`."""
    code = code.replace("sys.exit(main", "(main") + _PEAK
    command = [sys.executable, "-c", code, *map(str, arguments)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(output.split()[-1]) / 1024


def line(name, seconds, base):
    """Print one figure."""
    ratios = [own / other for own, other in zip(seconds, base, strict=True)]
    print(
        f"{name:44} {statistics.median(seconds):7.3f} s   {statistics.median(ratios):5.2f}x"
        f" ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def measure(path, rounds, clock):
    """Run all rounds and print them."""

    def timed(function):
        return timed_by(function, clock)

    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        results = {"unpickle (collector off)": timed(lambda: unpickle(path))[0]}
        results["read"], trace = timed(lambda: read_trace(path))
        results["analyse (replay included)"], report = timed(lambda trace=trace: build(trace, title=path.name))
        results["text"] = timed(report.to_text)[0]
        results["picture"] = timed(report.to_png)[0]
        results["widget's document"], small = timed(lambda report=report: report.to_document(_WIDGET))
        results["HTML (picture ready)"], html = timed(report.to_html)
        results["report: read to HTML"] = sum(results[name] for name in results if name[0] in "ratpH")
        for name, seconds in results.items():
            figures.setdefault(name, []).append(seconds)
    base = figures["unpickle (collector off)"]
    for name, seconds in figures.items():
        line(name, seconds, base)
    events = sum(device.events for device in report.devices)
    print(f"{events:,} events, {path.stat().st_size / 2**20:.1f} MiB pickle")
    print(f"HTML {len(html):,} B; {max(len(html) - 400_000, 0) / events:.2f} B an event over 400 kB (goal 12)")
    print(f"widget's document {len(small):,} B, picture {len(report.to_png()):,} B")
    with tempfile.TemporaryDirectory() as folder:
        own = peak_mib(_REPORT, path, Path(folder) / "out.html")
    bare = peak_mib(_UNPICKLE, path)
    print(f"peak memory {own:.0f} MiB, unpickling alone {bare:.0f} MiB: {own / bare:.2f}x (goal 3)")


FILE = "/tmp/ipykernel_1/1234.py"  # noqa: S108 - a name, not a file
SOURCE = "a = torch.ones(8, device='cuda')\nfor n in range(100_000):\n    b = a + 1\n    c = b + 1"


def loop(events):
    """What torch has after a loop over two allocations, and the line marks of it."""
    base, time_us = 0x7F00_0000_0000, 1_796_000_000_000_000
    entries, moments, places = [], [time_us - 5], [0]
    free, live = [3, 2, 1, 0], []

    def add(action, slot):
        nonlocal time_us
        time_us += 3
        entry = {"action": action, "addr": base + 512 * slot, "size": 32, "stream": 0, "time_us": time_us}
        entries.append({**entry, "compile_context": "N/A", "user_metadata": ""})

    while len(entries) < events:
        number = len(moments)
        moments += [time_us + 1] if number % 3 == 1 else []
        places += [1] if number % 3 == 1 else []
        moments.append(time_us + 2)
        places.append(2 + (number % 3 != 1))
        live.append(free.pop())
        add("alloc", live[-1])
        if len(live) > 2:
            slot = live.pop(0)
            add("free_requested", slot)
            add("free_completed", slot)
            free.append(slot)
    blocks: list[dict[str, object]] = [
        {
            "address": base + 512 * slot,
            "size": 512 if slot < 4 else 2 * 2**20 - 2048,
            "requested_size": 32,
            "state": "active_allocated" if slot in live else "inactive",
            "frames": [],
        }
        for slot in range(5)
    ]
    segment = {"device": 0, "address": base, "total_size": 2 * 2**20, "stream": 0, "segment_type": "small"}
    snapshot = {"segments": [{**segment, "blocks": blocks}], "device_traces": [entries], "external_annotations": []}
    marks = Marks(
        np.array(moments, np.int64),
        np.full(len(moments), 7, np.int64),
        np.array(places, np.int32),
        tuple(((FILE, line, "<module>"),) for line in range(1, 5)),
    )
    return snapshot, marks


def recorded(trace, marks):
    """Make the recording that the recorder makes of it."""
    times = trace.devices[0].events.time_us
    cell = Cell(execution_count=1, label=None, source=SOURCE, filenames=(FILE,))
    start, end = int(times[0]) - 5, int(times[-1]) + 1
    return Recording(cell, SourceKind.CUDA, Outcome.OK, start, end, trace=trace, marks=marks)


def measure_cell(events, rounds, clock):
    """Run all rounds of a cell's end and print them."""

    def step(function):
        return timed_by(function, clock)

    def to_columns(snapshot):
        return from_snapshot(snapshot, kind="cuda", is_whole=True, has_stacks=False)

    figures: dict[str, list[float]] = {}
    made, marks = loop(events)
    data = pickle.dumps(made, protocol=4)
    del made
    for _ in range(rounds):
        gc.collect()
        with paused_collector():
            results = {}
            results["unpickle (collector off)"], snapshot = step(lambda: pickle.loads(data))  # noqa: S301
            results["to columns"], trace = step(lambda snapshot=snapshot: to_columns(snapshot))
            results["analyse"], report = step(lambda trace=trace: build(recorded(trace, marks)))
            results["text, picture, fallback"] = step(report.static_bundle)[0]
            results["widget's document"] = step(lambda report=report: report.to_document(_WIDGET))[0]
            results["all of ours"] = sum(list(results.values())[1:])
        for name, seconds in results.items():
            figures.setdefault(name, []).append(seconds)
    print(f"{events:,} events, {len(marks.time_us):,} line marks")
    for name, seconds in figures.items():
        line(name, seconds[1:], figures["unpickle (collector off)"][1:])


def main():
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deep", type=int, metavar="EVENTS")
    parser.add_argument("--cell", type=int, metavar="EVENTS")
    parser.add_argument("--processor", action="store_true")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.processor else time.perf_counter
    if arguments.cell:
        measure_cell(arguments.cell, arguments.rounds + 1, clock)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        if arguments.deep:
            path.write_bytes(pickle.dumps(deep(arguments.deep), protocol=4))
        elif arguments.file is None:
            parser.error("give FILE or --deep EVENTS")
        elif arguments.file.suffix == ".xz":
            path.write_bytes(lzma.decompress(arguments.file.read_bytes()))
        else:
            path.write_bytes(arguments.file.read_bytes())
        measure(path, arguments.rounds, clock)


if __name__ == "__main__":
    main()
