"""The CUDA recording in a session: CUDA's first use, a recording of the user's own, samples, on a real GPU.

Run by ``run_all.py``. Most need a process in which nothing has happened yet.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

from shared import compare, compare_run, lines_of, nothing_left, record, torch_module, truth_of

from gpumem_magic.analysis.build import analyse
from gpumem_magic.recording.model import Outcome, SourceKind

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
    # What this process holds is asked of the driver only where torch does not count.
    assert all(s.allocated and s.reserved and s.device_used for s in recording.samples)
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
