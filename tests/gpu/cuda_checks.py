"""The CUDA recording's numbers against torch's own counters, to the byte, on a real GPU.

Run by ``run_all.py``. A check raises ``AssertionError``; `Skip` says what is missing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from shared import Skip, compare, compare_run, nothing_left, record, small_model, torch_module, train, truth_of

from gpumem_magic.analysis.build import analyse
from gpumem_magic.recording.model import Outcome


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
