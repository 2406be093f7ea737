"""What reading and replaying a snapshot costs, as ratios to unpickling it with the garbage collector off.

    python tests/benchmarks/bench_snapshot.py [FILE] [--rounds N] [--events N]

Without FILE a training loop of 600,000 events is made up (deterministic). Every figure is the median of rounds that are
interleaved with unpickling, with the range beside it; nothing is asserted.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import io
import json
import lzma
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from gpumem_magic import cli
from gpumem_magic.allocator.replay import history
from gpumem_magic.analysis.alive import alive_at, peak_event
from gpumem_magic.trace.reader import read_trace

MIB = 2**20


def training(events):
    """A training loop: per step the same tensors of its own segments, freed in reverse, a few that stay."""
    files = [{"filename": f"/home/user/train/layer{n}.py", "line": 10 + n, "name": "forward"} for n in range(60)]
    outer = [
        {
            "filename": "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py",
            "line": 1779,
            "name": "_call_impl",
        },
        {"filename": "/home/user/train/main.py", "line": 88, "name": "main"},
    ]
    base, time_us = 0x7F00_0000_0000, 1_796_000_000_000_000
    entries: list[dict[str, object]] = []
    segments: list[tuple[int, int]] = []

    def add(action, address, size, slot):
        nonlocal time_us
        time_us += 3 + (len(entries) * 7) % 11
        entries.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": [files[slot % 60], *outer] if slot % 3 else [],
            }
        )

    slots = 200
    for slot in range(slots):
        size = 2 * MIB * (1 + slot % 17)
        segments.append((base + slot * 64 * MIB, size))
        add("segment_alloc", *segments[-1], slot)
    while len(entries) < events:
        for slot in range(slots):
            add("alloc", segments[slot][0], segments[slot][1] - 4 * (slot % 5), slot)
        for slot in reversed(range(slots)):
            for action in ("free_requested", "free_completed"):
                add(action, segments[slot][0], segments[slot][1] - 4 * (slot % 5), slot)
    final = [
        {
            "device": 0,
            "address": address,
            "total_size": size,
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [{"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}],
        }
        for address, size in segments
    ]
    return {"segments": final, "device_traces": [entries], "allocator_settings": {}, "external_annotations": []}


def timed(function, *arguments):
    started = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - started, result


def unpickle(data):
    gc.disable()
    seconds, result = timed(pickle.loads, data)  # the file of our own choice
    del result
    gc.enable()
    return seconds


def run_command(*arguments):
    with redirect_stdout(io.StringIO()) as out:
        code = cli.main(list(arguments))
    assert code == 0
    return json.loads(out.getvalue())


def peak_memory(code, path):
    """Peak resident memory of a fresh process that runs `code` with `path` as its argument, in MiB."""
    # Not getrusage: its maximum survives exec, so a child starts with its parent's.
    report = "; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code + report, path], check=True, capture_output=True, text=True)
    return int(result.stderr) / 1024


def spread(values):
    return f"{statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=600_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.file:
            raw = arguments.file.read_bytes()
            unpack = lzma.decompress if raw[:2] == b"\xfd7" else gzip.decompress if raw[:2] == b"\x1f\x8b" else bytes
            data = unpack(raw)
        else:
            data = pickle.dumps(training(arguments.events), protocol=4)
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(data)
        measure(data, path, arguments.rounds)


def measure(data, path, rounds):
    ratios: dict[str, list[float]] = {
        "read_trace": [],
        "replay": [],
        "alive at the peak": [],
        "summary, whole command": [],
        "peak, whole command": [],
    }
    seconds = []
    for _ in range(rounds):
        base = unpickle(data)
        seconds.append(base)
        took, trace = timed(read_trace, path)
        ratios["read_trace"].append(took / base)
        device = max(trace.devices, key=lambda one: len(one.events))
        took, replayed = timed(history, device, trace.settings)
        ratios["replay"].append(took / base)
        took, _ = timed(alive_at, replayed, trace.stacks, peak_event(replayed))
        ratios["alive at the peak"].append(took / base)
        events = len(device.events)
        trace = device = replayed = None
        for command in ("summary", "peak"):
            took, _ = timed(run_command, command, str(path), "--json")
            ratios[f"{command}, whole command"].append(took / base)
    print(
        f"{events:,} events, {len(data) / MIB:.1f} MiB; unpickling {statistics.median(seconds):.3f} s, {rounds} rounds"
    )
    for name, values in ratios.items():
        print(f"  {name:24} × {spread(values)}")
    loading = peak_memory("import gc, pickle, sys; gc.disable(); pickle.load(open(sys.argv[1], 'rb'))", str(path))
    command = "import sys; from gpumem_magic.cli import main; main(['summary', sys.argv[1]])"
    summary = peak_memory(command, str(path))
    print(f"  peak memory: unpickling {loading:.0f} MiB, summary {summary:.0f} MiB, × {summary / loading:.2f}")


if __name__ == "__main__":
    main()
