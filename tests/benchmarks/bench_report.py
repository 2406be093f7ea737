"""What a report costs, from a snapshot file and from a recorded cell, as ratios to unpickling the same data.

    python tests/benchmarks/bench_report.py FILE.pickle[.xz] [--rounds N]
    python tests/benchmarks/bench_report.py --deep 2000000

Rounds are interleaved with unpickling (garbage collector off); medians with their range, nothing asserted. ``--deep``
makes up a training loop with stacks of 25 frames. Memory is the peak of a process that does one thing, over that of one
that only unpickles.
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

from bench_snapshot import training  # type: ignore[import-not-found]

from gpumem_magic.report import build
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


def timed(function):
    """Return a call's seconds and its result; garbage is collected before, not during."""
    gc.collect()
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


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


def measure(path, rounds):
    """Run all rounds and print them."""
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


def main():
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deep", type=int, metavar="EVENTS")
    arguments = parser.parse_args()
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
        measure(path, arguments.rounds)


if __name__ == "__main__":
    main()
