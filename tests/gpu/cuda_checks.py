"""The CUDA recording against torch's own counters, on a real GPU. Run by hand: it needs a device.

``python tests/gpu/cuda_checks.py`` runs every check in a process of its own and prints one line each;
``python tests/gpu/cuda_checks.py NAME`` runs one here. A check raises ``AssertionError``; `Skip` says what is missing.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpumem_magic.analysis.build import analyse
from gpumem_magic.recording.model import Cell, Outcome, SourceKind
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.recording.model import Recording


class Skip(Exception):  # noqa: N818 - not an error
    """This machine cannot run the check."""


# -- helpers -----------------------------------------------------------------------------------------------------------


def torch_module() -> Any:
    """Import torch late: some checks must run before that."""
    import torch

    return torch


def record(run: Callable[[], Any], **options: Any) -> Recording:
    """Record a call the way a cell is recorded."""
    recorder = Recorder(RecordOptions(**options))
    error: BaseException | None = None
    recorder.start()
    try:
        run()
    except Exception as raised:  # noqa: BLE001 - judged by the check
        error = raised
    recording = recorder.stop(Cell(None, None, ""), *classify(error))
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    return recording


def truth_of(run: Callable[[], Any], **options: Any) -> tuple[Recording, dict[str, tuple[int, int, int]]]:
    """Record a call and read torch's own start, peak and end around it, for every device."""
    torch = torch_module()
    torch.cuda.init()
    start = {}
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
        start[device] = torch.cuda.memory_allocated(device)
    recording = record(run, **options)
    return recording, {
        f"cuda:{device}": (start[device], torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device))
        for device in start
    }


def compare(recording: Recording, truth: dict[str, tuple[int, int, int]]) -> None:
    """Hold the report's numbers against torch's, to the byte."""
    devices = {device.key: device.headline for device in analyse(recording).devices}
    for key, (start, peak, end) in truth.items():
        if (start, peak, end) == (0, 0, 0):
            continue
        headline = devices[key]
        told = (headline.allocated_before, headline.allocated_peak, headline.allocated_after)
        assert told == (start, peak, end), f"{key}: report {told}, torch {(start, peak, end)}; {recording.notes}"


def compare_run(run: Callable[[], Any], **options: Any) -> Recording:
    """Record, compare, and check that nothing is left behind."""
    recording, truth = truth_of(run, **options)
    compare(recording, truth)
    assert recording.source is SourceKind.CUDA
    assert not [note for note in recording.notes if note.level == "warning"], recording.notes
    nothing_left()
    return recording


def nothing_left() -> None:
    """Check that the recorder is off and every hook is gone."""
    torch = torch_module()
    assert torch._C._cuda_isHistoryEnabled() is False
    assert type(torch._C._cuda_record_memory_history).__name__ == "builtin_function_or_method"
    assert not [call for call in torch.cuda._queued_calls if "gpumem" in str(call[0])]


def small_model() -> tuple[Any, Any, Any]:
    """Build a model, an optimizer and a batch on the GPU."""
    torch = torch_module()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).cuda()
    return model, torch.optim.Adam(model.parameters()), torch.randn(256, 1024, device="cuda")


def train(model: Any, optimizer: Any, batch: Any, steps: int = 3) -> None:
    """Run a few training steps."""
    for _ in range(steps):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def lines_of(code: str) -> list[Recording]:
    """Run cells (separated by lines of dashes) in a real shell and return what was recorded."""
    from IPython.core.interactiveshell import InteractiveShell

    from gpumem_magic import _reports

    seen: list[Recording] = []
    original = _reports.build

    def keep(recording: Recording, **named: Any) -> Any:
        seen.append(recording)
        return original(recording, **named)

    _reports.build = keep
    shell = InteractiveShell.instance()
    for cell in ("%load_ext gpumem_magic", *code.split("-----\n")):
        result = shell.run_cell(cell, store_history=True)
        assert result.error_before_exec is None
        assert result.error_in_exec is None or "OutOfMemory" in type(result.error_in_exec).__name__
    return seen


# -- numbers equal torch's ---------------------------------------------------------------------------------------------


def check_training_step() -> None:
    """Forward, backward on autograd's thread, optimizer state that is created in the cell."""
    model, optimizer, batch = small_model()
    compare_run(lambda: train(model, optimizer, batch))
    compare_run(lambda: train(model, optimizer, batch))


def check_inference() -> None:
    """No graph: everything but the result goes again."""
    torch = torch_module()
    model, _, batch = small_model()
    kept = []

    def run() -> None:
        with torch.no_grad():
            kept.append(model(batch))

    compare_run(run)


def check_backward_alone() -> None:
    """Memory from before the cell is freed in it, by the backward pass."""
    model, _, batch = small_model()
    loss = model(batch).square().mean()
    compare_run(loss.backward)


def check_two_devices() -> None:
    """Both devices used in one cell."""
    torch = torch_module()
    if torch.cuda.device_count() < 2:
        raise Skip("one device")
    torch.ones(1, device="cuda:1")
    kept = []

    def run() -> None:
        first = torch.ones(1 << 20, device="cuda:0")
        kept.append(first.to("cuda:1") * 2)

    compare_run(run)


def check_streams() -> None:
    """Frees that wait for another stream."""
    torch = torch_module()
    side = torch.cuda.Stream()
    kept = []

    def run() -> None:
        for _ in range(20):
            block = torch.ones(1 << 20, device="cuda")
            with torch.cuda.stream(side):
                kept.append((block * 2).sum())
            block.record_stream(side)
            del block
        torch.cuda.synchronize()

    compare_run(run)


def check_compile() -> None:
    """A compiled model, compiled inside the recorded cell."""
    torch = torch_module()
    model, optimizer, batch = small_model()
    compiled = torch.compile(model)
    compare_run(lambda: train(compiled, optimizer, batch))


def check_cuda_graph() -> None:
    """Capture and replay: the private pool counts, replays make no events."""
    torch = torch_module()
    model, _, batch = small_model()
    with torch.no_grad():
        model(batch)
    kept = []

    def run() -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side), torch.no_grad():
            model(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            kept.append(model(batch))
        for _ in range(5):
            graph.replay()
        kept.append(graph)

    compare_run(run)


def check_mem_pool() -> None:
    """A user's own memory pool."""
    torch = torch_module()
    if not hasattr(torch.cuda, "MemPool"):
        raise Skip("this torch has no MemPool")
    pool = torch.cuda.MemPool()
    kept = []

    def run() -> None:
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.ones(1 << 22, device="cuda"))

    compare_run(run)


def check_threads() -> None:
    """Two Python threads that allocate at once."""
    torch = torch_module()
    torch.ones(1, device="cuda")
    kept: list[Any] = []

    def work() -> None:
        kept.extend(torch.ones(1 << 14, device="cuda") + 1 for _ in range(200))

    def run() -> None:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    compare_run(run)


def check_out_of_memory() -> None:
    """An error in the cell: numbers hold, and the outcome is named."""
    torch = torch_module()
    torch.cuda.set_per_process_memory_fraction(0.1)
    total = torch.cuda.get_device_properties(0).total_memory
    kept = []

    def run() -> None:
        kept.append(torch.empty(total // 20, dtype=torch.uint8, device="cuda"))
        kept.append(torch.empty(total // 10, dtype=torch.uint8, device="cuda"))

    recording, truth = truth_of(run)
    compare(recording, truth)
    assert recording.outcome is Outcome.OUT_OF_MEMORY, recording.outcome
    (after,) = recording.after
    assert after.limit is not None
    assert abs(after.limit - total // 10) <= 2, (after.limit, total)
    nothing_left()


def check_expandable_segments() -> None:
    """The setting given before torch is imported."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    check_training_step()


def check_overflow() -> None:
    """A ring that is too small: said, and the end still equals torch's."""
    torch = torch_module()
    kept: list[Any] = [torch.ones(1 << 18, device="cuda")]

    def run() -> None:
        kept.extend(torch.ones(1 << 10, device="cuda") * 2 for _ in range(500))

    recording, truth = truth_of(run, max_entries=100)
    assert recording.truncated
    assert any("--max-entries" in note.text for note in recording.notes), recording.notes
    (device,) = analyse(recording).devices
    assert device.headline.allocated_after == truth["cuda:0"][2]
    assert device.headline.allocated_before == truth["cuda:0"][0]
    compare_run(lambda: kept.append(torch.ones(1 << 10, device="cuda")))


def check_python_stacks() -> None:
    """Frames of this file, and no import of torch's compiler to name them."""
    torch = torch_module()
    block = torch.ones(1, device="cuda")
    kept = []
    before = set(sys.modules)
    began = time.perf_counter()
    recording = compare_run(lambda: kept.append(block.expand(1 << 20).clone()), stacks="python")
    seconds = time.perf_counter() - began
    assert not [name for name in set(sys.modules) - before if name.startswith(("torch._inductor", "torch._dynamo"))]
    assert seconds < 2, f"{seconds:.1f} s for one allocation"
    assert recording.trace is not None
    assert any(frame.filename == __file__ for frame in recording.trace.stacks.frames)
    assert "_inductor" not in vars(torch)
    doubled = torch.compile(lambda value: value * 2)
    assert doubled(block).item() == 2


def check_peak_counters_are_the_users() -> None:
    """An old peak of the user's is still there afterwards."""
    torch = torch_module()
    high = torch.ones(1 << 26, device="cuda")
    peak = torch.cuda.max_memory_allocated()
    del high
    record(lambda: torch.ones(1 << 10, device="cuda"))
    assert torch.cuda.max_memory_allocated() == peak


# -- first use ---------------------------------------------------------------------------------------------------------


def check_first_use() -> None:
    """CUDA comes up inside the cell: recorded from its first allocation."""
    torch = torch_module()
    assert not torch.cuda.is_initialized()
    kept = []
    recording = record(lambda: kept.append(torch.ones(1 << 20, device="cuda") + 1))
    compare(recording, {"cuda:0": (0, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())})
    nothing_left()


def check_unused_leaves_nothing() -> None:
    """A cell that does not use CUDA: not initialised, nothing queued."""
    torch = torch_module()
    recording = record(lambda: torch.ones(3))
    assert not torch.cuda.is_initialized()
    assert recording.trace is None
    assert not [call for call in torch.cuda._queued_calls if "gpumem" in str(call[0])]
    record(lambda: torch.ones(3, device="cuda"))
    nothing_left()


def check_cell_imports_torch() -> None:
    """torch and CUDA both come up inside the cell."""
    assert "torch" not in sys.modules
    (recording,) = lines_of("%%gpumem\nimport torch\nkept = torch.ones(1 << 20, device='cuda') + 1")
    torch = torch_module()
    compare(recording, {"cuda:0": (0, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())})
    nothing_left()


def child_uses_cuda() -> int:
    """Fork, use CUDA in the child, and return its exit code."""
    torch = torch_module()
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(3, device="cuda").sum().item()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child that reports by its exit code
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_fork_after_loading() -> None:
    """The extension loaded, a measured cell without CUDA behind us: a fork launch works."""
    torch_module()
    lines_of("%%gpumem\nimport torch\nx = torch.ones(3)")
    assert child_uses_cuda() == 0


def check_fork_in_the_cell() -> None:
    """A fork launch inside the measured cell works, and the child is not recorded."""
    torch = torch_module()
    codes: list[int] = []
    recording = record(lambda: codes.append(child_uses_cuda()))
    assert codes == [0]
    assert recording.trace is None
    assert not torch.cuda.is_initialized()


def check_fork_after_cpu_recording() -> None:
    """``--device cpu`` where CUDA is not in use: torch's profiler would bring the driver up, so it is not started."""
    torch = torch_module()
    recording = record(lambda: torch.ones(1 << 10) + 1, device="cpu")
    assert recording.source is SourceKind.COUNTERS
    assert any("fork launches fail" in note.text for note in recording.notes), recording.notes
    assert child_uses_cuda() == 0


def check_cpu_recording_beside_cuda() -> None:
    """``--device cpu`` with CUDA in use: CPU tensors are recorded, and only they are shown."""
    torch = torch_module()
    torch.ones(1, device="cuda")
    kept = []
    recording = record(lambda: kept.append(torch.ones(1 << 10) + 1), device="cpu")
    assert recording.source is SourceKind.CPU
    (device,) = analyse(recording).devices
    assert device.key == "cpu"
    assert device.headline.stayed == 4 << 10
    nothing_left()


def check_late_visible_devices() -> None:
    """CUDA_VISIBLE_DEVICES set inside the measured cell counts."""
    torch = torch_module()
    seen: list[int] = []

    def run() -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        seen.append(torch.cuda.device_count())
        seen.append(int(torch.cuda.is_available()))

    record(run)
    assert seen == [0, 0], seen


def check_late_allocator_setting() -> None:
    """An allocator setting made inside the measured cell, before CUDA is used, counts."""
    torch = torch_module()
    kept = []

    def run() -> None:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        kept.append(torch.ones(1 << 20, device="cuda"))

    recording = record(run)
    assert recording.trace is not None
    assert all(segment.is_expandable for device in recording.trace.devices for segment in device.segments)


def check_async_allocator() -> None:
    """No events from cudaMallocAsync: counters, and the reason."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    torch = torch_module()
    kept = [torch.ones(1 << 20, device="cuda")]
    recording = record(lambda: kept.append(torch.ones(1 << 22, device="cuda")))
    assert recording.source is SourceKind.COUNTERS
    assert any("counters only" in note.text for note in recording.notes), recording.notes
    assert recording.after[0].allocated == torch.cuda.memory_allocated()
    analyse(recording)


# -- a recording of the user's own -------------------------------------------------------------------------------------


def check_users_recording_goes_on() -> None:
    """The user's history was on: still on, with all its events, and the cell's part is right."""
    torch = torch_module()
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    kept = [torch.ones(1 << 20, device="cuda")]
    recording, truth = truth_of(lambda: kept.append(torch.ones(1 << 20, device="cuda") * 3))
    compare(recording, truth)
    assert not recording.truncated
    assert torch._C._cuda_isHistoryEnabled()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    assert sum(event["action"] == "alloc" for event in events) == 3
    assert any(event.get("frames") for event in events)


def check_users_small_ring() -> None:
    """The user's ring lost events of the cell: said."""
    torch = torch_module()
    torch.cuda.memory._record_memory_history(max_entries=20, stacks="python")
    kept: list[Any] = []

    def run() -> None:
        kept.extend(torch.ones(1 << 10, device="cuda") for _ in range(100))

    recording, truth = truth_of(run)
    assert recording.truncated
    (device,) = analyse(recording).devices
    assert device.headline.allocated_after == truth["cuda:0"][2]


def check_cell_starts_a_recording() -> None:
    """The cell starts a history itself: everything before and after is in our trace, theirs goes on with theirs."""
    torch = torch_module()
    kept = [torch.ones(1 << 16, device="cuda")]

    def run() -> None:
        kept.extend(torch.ones(1 << 12, device="cuda") for _ in range(30))
        torch.cuda.memory._record_memory_history(max_entries=50, stacks="python")
        kept.extend(torch.ones(1 << 13, device="cuda") for _ in range(10))

    recording, truth = truth_of(run)
    compare(recording, truth)
    assert not recording.truncated
    assert torch._C._cuda_isHistoryEnabled()
    allocations = [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert len(allocations) == 10
    torch.cuda.memory._record_memory_history(enabled=None)
    nothing_left()


def check_cell_stops_its_recording() -> None:
    """A history that was on before is switched off by the cell: off afterwards, and nothing is lost to us."""
    torch = torch_module()
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    kept = [torch.ones(1 << 16, device="cuda")]

    def run() -> None:
        kept.append(torch.ones(1 << 12, device="cuda"))
        torch.cuda.memory._record_memory_history(enabled=None)
        kept.append(torch.ones(1 << 14, device="cuda"))

    recording, truth = truth_of(run)
    compare(recording, truth)
    assert not recording.truncated
    nothing_left()


# -- during ------------------------------------------------------------------------------------------------------------


def check_samples_and_driver() -> None:
    """A cell of more than half a second is sampled, and the driver's numbers are there."""
    torch = torch_module()
    kept = [torch.ones(1 << 20, device="cuda")]

    def run() -> None:
        for _ in range(12):
            kept.append(torch.ones(1 << 20, device="cuda"))
            time.sleep(0.1)

    recording = compare_run(run)
    assert len(recording.samples) >= 3
    assert all(s.allocated and s.reserved and s.device_used and s.process_used for s in recording.samples)
    for reading in (*recording.before, *recording.after):
        assert not reading.missing, reading.missing
        assert reading.process_used is not None
        assert reading.reserved is not None
        assert reading.process_used > reading.reserved
        assert reading.device_used is not None
        assert reading.device_used >= reading.process_used


def check_sampler_during_capture() -> None:
    """A capture under way for a second is not disturbed by the sampler."""
    torch = torch_module()
    block = torch.ones(1 << 10, device="cuda")
    block * 2

    def run() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                block * 2
                time.sleep(0.25)
        graph.replay()
        torch.cuda.synchronize()

    recording = compare_run(run)
    assert recording.outcome is Outcome.OK, recording.error
    assert recording.samples


def check_cell_lines() -> None:
    """Through the magic in a shell: numbers equal torch's there too."""
    (first, second) = lines_of(
        "import torch\ntorch.cuda.reset_peak_memory_stats() if torch.cuda.is_initialized() else None\n-----\n"
        "%%gpumem\na = torch.ones(1 << 20, device='cuda')\nb = a * 2\ndel b\n-----\n"
        "torch.cuda.reset_peak_memory_stats()\nstart = torch.cuda.memory_allocated()\n-----\n"
        "%%gpumem\nc = a + 1\nd = c + 1\ndel c\n"
    )
    torch = torch_module()
    start = (1 << 20) * 4
    compare(first, {"cuda:0": (0, 2 * start, start)})
    compare(second, {"cuda:0": (start, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())})


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


def run_one(name: str) -> tuple[str, str]:
    """Run one check in a fresh process; return ("ok" | "skipped" | "FAILED", detail)."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), name], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode == 0:
        return "ok", ""
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return ("skipped", last.partition(": ")[2]) if done.returncode == 77 else ("FAILED", done.stderr[-3000:] or last)


def main() -> int:
    """Run the checks named on the command line, or all of them, each in a process of its own."""
    if len(sys.argv) > 1:
        try:
            CHECKS[sys.argv[1]]()
        except Skip as skipped:
            print(f"Skip: {skipped}", file=sys.stderr)
            return 77
        finally:
            gc.collect()
        return 0
    failed = 0
    for name in CHECKS:
        began = time.perf_counter()
        outcome, detail = run_one(name)
        failed += outcome == "FAILED"
        print(f"{outcome:8}{name:36}{time.perf_counter() - began:6.1f} s  {detail}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
