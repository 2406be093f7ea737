"""Finished reports of real CUDA work against torch's own counters.

``run_all.py`` runs each in a process of its own.
"""

from __future__ import annotations

import gc
import importlib.metadata
import itertools
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import torch_with_cuda
from steps import watch

import gpumem_magic
from gpumem_magic.allocator.replay import history
from gpumem_magic.recording.model import Cell, Outcome, Recording, SourceKind
from gpumem_magic.report import build
from gpumem_magic.trace.collector import paused_collector
from gpumem_magic.trace.convert import from_snapshot

if TYPE_CHECKING:
    from gpumem_magic.allocator.history import History
    from gpumem_magic.analysis.model import DeviceAnalysis, Row
    from gpumem_magic.report import Report
    from gpumem_magic.trace.model import DeviceTrace, Trace

MIB = 1 << 20
# Long enough for all memory of the former round to have gone back to the system.
_PAUSE_SECONDS = 2.5
SOURCE = Path(__file__).read_text("utf-8").splitlines()


def line_of(tag: str) -> int:
    """Return the number of the one line that ends with ``# <tag>``."""
    (number,) = [number for number, text in enumerate(SOURCE, 1) if text.endswith(f"# {tag}")]
    return number


def by_line(device: DeviceAnalysis, rows: tuple[Row, ...]) -> dict[int | None, int]:
    """Return bytes by line number, None for what has none."""
    result: dict[int | None, int] = {}
    for row in rows:
        line = device.groups[row.group].line
        result[line] = result.get(line, 0) + row.bytes
    return result


def assert_counters(report: Report, torch: Any, before: int) -> DeviceAnalysis:
    """Hold one device's report against torch's counters; the peak counter was reset at the start."""
    (device,) = report.devices
    headline = device.headline
    assert headline.allocated_before == before, (headline.allocated_before, before)
    assert headline.allocated_after == torch.cuda.memory_allocated(), headline
    assert headline.allocated_peak == torch.cuda.max_memory_allocated(), headline
    assert headline.reserved_after == torch.cuda.memory_reserved(), headline
    assert sum(row.bytes for row in device.peak) == headline.allocated_peak
    assert sum(row.bytes for row in device.end) == headline.allocated_after
    assert [note for note in report.notes if note.level == "warning"] == [], report.notes
    return device


def start(torch: Any) -> int:
    """Settle the allocator and torch's own peak counter; return what is allocated."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def check_training_lines() -> str:
    """Name the line of every survivor and of the peak, autograd's thread included."""
    torch = torch_with_cuda()
    kept = [torch.ones(3 * MIB, device="cuda")]
    before = start(torch)
    with gpumem_magic.record() as r:
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()  # model
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(4096, 1024, device="cuda")  # input
        for _ in range(3):
            loss = model(x).square().mean()  # forward
            loss.backward()  # backward
            optimizer.step()  # step
    device = assert_counters(r.report, torch, before)
    at_end = by_line(device, device.end)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert at_end[line_of("model")] == parameters, at_end
    assert at_end[line_of("input")] == x.numel() * 4, at_end
    # Gradients stay, made on autograd's own thread; so does cuBLAS's workspace, at the line that used it first.
    assert at_end[line_of("backward")] >= parameters, at_end
    assert at_end[line_of("step")] >= 2 * parameters, at_end
    unknown = sum(row.bytes for row in device.peak if device.groups[row.group].kind == "unknown")
    assert unknown == 0, [device.groups[row.group] for row in device.peak]
    assert by_line(device, device.peak)[line_of("forward")] > 100 * MIB
    assert r.report.to_png() is not None
    del kept, loss
    return str(r.report.sentence)


def check_inference_lines() -> str:
    """Nothing stays but what is kept."""
    torch = torch_with_cuda()
    model = torch.nn.Linear(2048, 2048).cuda()
    before = start(torch)
    with gpumem_magic.record() as r, torch.no_grad():
        for _ in range(5):
            y = model(torch.randn(512, 2048, device="cuda"))  # predict
    device = assert_counters(r.report, torch, before)
    stayed = by_line(device, device.stayed)
    assert stayed[line_of("predict")] >= y.numel() * 4, stayed
    assert set(stayed) <= {line_of("predict"), None}, stayed
    return str(r.report.sentence)


def check_out_of_memory() -> str:
    """Say what the failing line asked for, not the segment that torch wanted."""
    torch = torch_with_cuda()
    torch.ones(1, device="cuda")
    before = start(torch)
    wanted = torch.cuda.get_device_properties(0).total_memory * 2
    reports = []
    try:
        with gpumem_magic.record() as r:
            reports.append(r)
            a = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")  # fits
            torch.empty(wanted, dtype=torch.uint8, device="cuda")  # fails
    except torch.cuda.OutOfMemoryError:
        pass
    report = reports[0].report
    device = assert_counters(report, torch, before)
    assert device.oom_request is not None
    assert abs(device.oom_request - wanted) < 512
    assert device.oom_group is not None
    assert device.oom_group.line == line_of("fails")
    assert device.oom_held == before + 64 * MIB
    assert report.sentence.startswith(f"Out of memory at line {line_of('fails')} `"), report.sentence
    del a
    return str(report.sentence)


def check_first_use() -> str:
    """A process that first uses CUDA inside the block is recorded from its first allocation."""
    torch = torch_with_cuda()
    with gpumem_magic.record() as r:
        x = torch.ones(5 * MIB, device="cuda")  # first
    (device,) = r.report.devices
    assert device.headline.allocated_before == 0
    assert device.headline.allocated_after == torch.cuda.memory_allocated() == x.numel() * 4
    assert by_line(device, device.end) == {line_of("first"): x.numel() * 4}
    return str(r.report.sentence)


def check_overflow() -> str:
    """A ring that overflowed still closes to torch's counters, and says what it lost."""
    torch = torch_with_cuda()
    start(torch)
    with gpumem_magic.record(max_entries=500) as r:
        spike = torch.ones(200 * MIB, device="cuda")
        del spike
        kept = [torch.ones(1000, device="cuda") for _ in range(2000)]
    (device,) = r.report.devices
    assert device.headline.allocated_after == torch.cuda.memory_allocated()
    assert device.headline.allocated_peak == torch.cuda.max_memory_allocated(), device.headline
    assert sum(row.bytes for row in device.end) == device.headline.allocated_after
    assert sum(row.bytes for row in device.peak) == device.headline.allocated_peak
    said = [note.text for note in r.report.notes]
    assert said == ["more than 500 events overflowed the ring: the beginning is missing; --max-entries 1000 keeps more"]
    assert len(kept) == 2000
    return str(r.report.sentence)


def _events(torch: Any, count: int) -> None:
    # An allocation and its free leave three events.
    for _ in range(count // 3):
        torch.empty(1000, device="cuda")


def check_cost_report() -> str:
    """From the end of a block to the finished bundle, over torch's own snapshot of as many events.

    Both begin alike: after a block and a pause. The second to fourth snapshot in a row took a sixth less.
    """
    torch = torch_with_cuda()
    torch.ones(1, device="cuda")
    parts = []
    for count in (20_000, 600_000):
        snapshots: list[float] = []
        ours: list[float] = []
        rounds: list[dict[str, float]] = []
        for _ in range(3):
            snapshots.append(_own_snapshot(torch, count))
            recorder = gpumem_magic.record()
            recorder.__enter__()
            _events(torch, count)
            seconds, restore = watch()
            begin = time.perf_counter()
            recorder.__exit__(None, None, None)
            recorder.report.static_bundle()
            recorder.report.to_document(256_000)
            ours.append(time.perf_counter() - begin)
            restore()
            rounds.append(seconds)
            # A block lets go of torch's entries half a second after its report.
            time.sleep(_PAUSE_SECONDS)
        snapshot = statistics.median(snapshots[1:])
        first, rest = ours[0], statistics.median(ours[1:])
        ratio = statistics.median(own / base for own, base in zip(ours[1:], snapshots[1:], strict=True))
        parts.append(
            f"{count:,} events: snapshot {snapshot:.3f} s, end to report {rest:.3f} s (first {first:.3f} s), "
            f"{rest - snapshot:+.3f} s, {ratio:.2f}x ("
            + ", ".join(f"{name} {statistics.median(one[name] for one in rounds[1:]):.3f}" for name in rounds[1])
            + ")"
        )
    return "; ".join(parts)


def _own_snapshot(torch: Any, count: int) -> float:
    """Return what torch itself takes for the snapshot of a block of as many events."""
    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    _events(torch, count)
    begin = time.perf_counter()
    taken = torch.cuda.memory._snapshot()
    seconds = time.perf_counter() - begin
    torch.cuda.memory._record_memory_history(enabled=None)
    del taken
    time.sleep(_PAUSE_SECONDS)
    return seconds


def _resident() -> float:
    """Return this process's memory in MiB."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def check_memory_of_long_cells() -> str:
    """Of 300,000 events stays what the report needs; torch's 110 MiB of entries go without a collection."""
    from IPython.core.interactiveshell import InteractiveShell

    torch_with_cuda()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumem_magic")
    cell = "%%gpumem --quiet\nimport torch\na = torch.ones(8, device='cuda')\nfor n in range(100_000):\n    b = a + 1"
    sizes = []
    with paused_collector():
        for _ in range(4):
            assert shell.run_cell(cell, store_history=True).success
            sizes.append(_resident())
    grown = [later - former for former, later in itertools.pairwise(sizes)]
    assert gpumem_magic.last is not None
    assert gpumem_magic.last.events > 299_000, gpumem_magic.last
    kept = gpumem_magic.last.nbytes / MIB
    assert min(grown) < kept + 55, (kept, sizes)
    told = ", ".join(f"{size:+.0f} MiB" for size in grown)
    return f"{gpumem_magic.last.events:,} events a cell, whose report takes {kept:.0f} MiB: {told}"


def _replay(device: DeviceTrace, trace: Trace) -> History:
    return history(device, trace.settings, from_torch=True)


def _as_recorded(trace: Trace) -> Recording:
    times = trace.devices[0].events.time_us
    cell = Cell(execution_count=1, label=None, source="")
    return Recording(cell, SourceKind.CUDA, Outcome.OK, int(times[0]), int(times[-1]), trace=trace)


def check_cost_steps() -> str:
    """Each step between the end of a block and its report, as multiples of torch's own snapshot of as many events."""
    torch = torch_with_cuda()
    torch.ones(1, device="cuda")
    parts = []
    for count in (20_000, 600_000):
        rounds: list[dict[str, float]] = []
        for _ in range(4):
            torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
            _events(torch, count)
            steps: dict[str, float] = {}

            def step(name: str, function: Any, steps: dict[str, float] = steps) -> Any:
                begin = time.perf_counter()
                result = function()
                steps[name] = time.perf_counter() - begin
                return result

            with paused_collector():
                taken = step("snapshot", torch.cuda.memory._snapshot)
                convert = partial(from_snapshot, taken, kind="cuda", is_whole=True, has_stacks=False)
                trace = step("convert", convert)
                step("stop torch", partial(torch.cuda.memory._record_memory_history, enabled=None))
                step("replay", lambda trace=trace: [_replay(one, trace) for one in trace.devices])
                report = step("replay and analyse", partial(build, _as_recorded(trace)))
                step("picture", report.to_png)
                step("bundle", report.static_bundle)
                step("document", partial(report.to_document, 256_000))
                del taken
            rounds.append(steps)
        medians = {name: statistics.median(one[name] for one in rounds[1:]) for name in rounds[0]}
        base = medians.pop("snapshot")
        medians["all of ours"] = sum(medians.values()) - medians["replay"]
        words = ", ".join(f"{name} {value / base:.2f}x" for name, value in medians.items())
        parts.append(f"{count:,} events: snapshot {base:.3f} s, {words}")
    names = ("numpy", "matplotlib", "pillow")
    return "; ".join(parts) + "; " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
