"""What memory was for, on a real GPU: sums by storage, nothing without an owner, and the cost of watching modules.

Each ``check_*`` takes nothing, asserts what must hold, and returns a line of what was measured. Run by ``run_all.py``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import torch_with_cuda

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from paired import Steps, pin_to_calm_cores, steps_between, stepwise

import gpumem_magic
from gpumem_magic.analysis.categories import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.analysis.categories import Categories, CategoryRow
    from gpumem_magic.analysis.model import DeviceAnalysis

MIB = 1 << 20


def make(torch: Any, *, checkpoints: bool = False, width: int = 512, depth: int = 6) -> Any:
    """Make a transformer on the GPU."""
    nn = torch.nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
            self.second = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.mlp(self.second(x))

    class Transformer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(8000, width)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.head = nn.Linear(width, 8000)
            self.register_buffer("mask", torch.ones(256, 256))

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpoints else block(x)
            return self.head(x)

    return Transformer().cuda()


def train(torch: Any, model: Any, optimizer: Any, steps: int = 6, *, autocast: bool = False) -> None:
    """Train for some steps; gradients of the last one stay."""
    for _ in range(steps):
        ids = torch.randint(0, 8000, (16, 129), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 8000), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()


def categories(device: DeviceAnalysis) -> Categories:
    """Return a device's categories, whose rows must add up to its numbers."""
    found = device.categories
    assert found is not None
    assert sum(row.bytes for row in found.peak) == device.headline.allocated_peak
    assert sum(row.bytes for row in found.end) == device.headline.allocated_after
    return found


def row(rows: tuple[CategoryRow, ...], kind: str) -> tuple[int, int]:
    """Return bytes and inferred bytes of a category."""
    return next(((one.bytes, one.inferred) for one in rows if KINDS[one.category] == kind), (0, 0))


def bytes_of(tensors: list[Any]) -> int:
    """Sum what tensors asked of the allocator, each storage once."""
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def asked_at_the_end(device: DeviceAnalysis, kind: str) -> int:
    """Sum what a category's allocations that are alive at the end asked for."""
    found, timeline = categories(device), device.timeline
    chosen = (found.category == KINDS.index(kind)) & (timeline.end == -1)
    return int(timeline.requested[chosen].sum())


def spoken(found: Categories) -> str:
    """Say the peak's shares."""
    total = sum(one.bytes for one in found.peak)
    return ", ".join(
        f"{KINDS[one.category]} {one.bytes / total:.1%} ({one.inferred / total:.1%} inferred)" for one in found.peak
    )


def held_against_storages(device: DeviceAnalysis, model: Any, optimizer: Any) -> str:
    """Compare the end with what model and optimizer really hold; at the peak, 2 percent may be unknown."""
    found = categories(device)
    parameters = list(model.parameters())
    expected = {
        "parameter": bytes_of(parameters),
        "buffer": bytes_of(list(model.buffers())),
        "gradient": bytes_of([parameter.grad for parameter in parameters if parameter.grad is not None]),
        "optimizer": bytes_of(
            [v for state in optimizer.state.values() for v in state.values() if hasattr(v, "is_cuda") and v.is_cuda]
        ),
    }
    for kind, size in expected.items():
        told, inferred = row(found.end, kind)
        assert inferred == 0, (kind, told, inferred)
        assert asked_at_the_end(device, kind) == size, (kind, asked_at_the_end(device, kind), size)
    total = sum(one.bytes for one in found.peak)
    lost = row(found.peak, "unknown")[0] + row(found.peak, "before")[0]
    assert lost <= 0.02 * total, spoken(found)
    return f"peak {total / MIB:.0f} MiB: {spoken(found)}; {lost / total:.2%} without an owner"


def measured(work: Callable[[], None]) -> DeviceAnalysis:
    """Record some work and return the GPU's analysis."""
    with gpumem_magic.record() as r:
        work()
    device: DeviceAnalysis = r.report.devices[0]
    assert device.kind == "cuda"
    return device


def check_category_training() -> str:
    """Everything is made inside the cell."""
    torch = torch_with_cuda()
    kept: list[Any] = []

    def work() -> None:
        model = make(torch)
        optimizer = torch.optim.AdamW(model.parameters())
        kept.extend([model, optimizer])
        train(torch, model, optimizer)

    device = measured(work)
    return held_against_storages(device, *kept)


def check_category_second_run() -> str:
    """Model, optimizer and gradients were there before the cell."""
    torch = torch_with_cuda()
    model = make(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    train(torch, model, optimizer, 2)
    device = measured(lambda: train(torch, model, optimizer))
    return held_against_storages(device, model, optimizer)


def check_category_checkpoint_amp() -> str:
    """bfloat16 and activation checkpoints: forwards run again on autograd's thread."""
    torch = torch_with_cuda()
    model = make(torch, checkpoints=True)
    optimizer = torch.optim.AdamW(model.parameters())
    train(torch, model, optimizer, 2, autocast=True)
    device = measured(lambda: train(torch, model, optimizer, autocast=True))
    return held_against_storages(device, model, optimizer)


def check_category_modules() -> str:
    """Module paths are the model's own, and parameters, gradients and activations are found under them."""
    torch = torch_with_cuda()
    model = make(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    train(torch, model, optimizer, 2)
    device = measured(lambda: train(torch, model, optimizer))
    found = categories(device)
    paths = {name for name, _ in model.named_modules()}
    told = {found.module_names[one.module] for one in found.modules}
    unknown = set()
    for path in told:
        # The root is named after its class: there is no notebook here.
        below = path.partition(".")[2].replace("[", ".").replace("]", "").lstrip(".")
        if below not in paths:
            unknown.add(path)
    assert not unknown, unknown
    in_modules, total = sum(one.bytes for one in found.modules), sum(one.bytes for one in found.peak)
    assert any("mlp[0]" in path for path in told), told
    assert found.backward, "no backward allocation was joined to a forward line"
    return (
        f"{len(told)} module paths hold {in_modules / total:.0%} of the peak; backward by line: {len(found.backward)}"
    )


def check_category_compiled() -> str:
    """torch.compile(fullgraph=True) is not disturbed, and the peak is owned."""
    torch = torch_with_cuda()
    model = make(torch, depth=2)
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    device = measured(lambda: train(torch, compiled, optimizer))
    return held_against_storages(device, model, optimizer)


def check_category_workspaces() -> str:
    """cuBLAS's workspace belongs to no tensor and is named as what it is."""
    torch = torch_with_cuda()
    kept: list[Any] = []

    def work() -> None:
        a = torch.randn(512, 512, device="cuda")
        kept.append(a @ a)

    found = categories(measured(work))
    size, inferred = row(found.end, "workspace")
    assert size >= MIB, spoken(found)
    assert size == inferred
    assert row(found.end, "unknown")[0] == 0, spoken(found)
    return f"workspaces {size / MIB:.2f} MiB"


def check_category_workspace_of_no_module() -> str:
    """Workspaces that the first forward and the first backward take are charged to no module and no forward line."""
    torch = torch_with_cuda()
    nn = torch.nn
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.ReLU()).cuda()
    x = torch.randn(64, 1024, device="cuda")

    def work() -> None:
        model(x).square().mean().backward()

    device = measured(work)
    found = categories(device)
    size, _ = row(found.peak, "workspace")
    assert size >= 2 * MIB, spoken(found)
    kind = KINDS.index("workspace")
    in_modules = sum(part for one in found.modules for name, part in one.by_category if name == kind)
    assert in_modules == 0, [(found.module_names[one.module], one.by_category) for one in found.modules]
    assert int((found.forward[found.category == kind] >= 0).sum()) == 0
    paths = {found.module_names[one.module]: one.bytes for one in found.modules}
    relu = sum(size for path, size in paths.items() if path.endswith(("[1]", "[3]")))
    assert relu < 8 * MIB, paths
    return f"workspaces {size / MIB:.1f} MiB of no module; both ReLUs {relu / MIB:.2f} MiB"


def check_category_out_of_memory() -> str:
    """In the middle of a forward: what the graph holds is told as activations."""
    torch = torch_with_cuda()
    model = make(torch, depth=12)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1500 * MIB / total)
    recorder = gpumem_magic.record()
    try:
        with recorder:
            ids = torch.randint(0, 8000, (64, 256), device="cuda")
            loss = model(ids).square().mean()
            loss.backward()
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("it did not run out of memory")
    found = categories(recorder.report.devices[0])
    whole = sum(one.bytes for one in found.peak)
    assert row(found.peak, "activation")[0] > 0.5 * whole, spoken(found)
    assert row(found.peak, "unknown")[0] <= 0.02 * whole, spoken(found)
    return spoken(found)


def check_cost_modules() -> str:
    """Goal: module marks at most +2 % on a launch-bound step, over the same recording without them."""
    torch = torch_with_cuda()
    from gpumem_magic.holders.roles import RoleBook
    from gpumem_magic.recording.model import Cell
    from gpumem_magic.recording.options import RecordOptions
    from gpumem_magic.recording.recorder import Recorder

    model = make(torch, width=64, depth=6)
    optimizer = torch.optim.SGD(model.parameters(), 0.001, foreach=False)
    zero_grad = optimizer.zero_grad
    times: list[tuple[float, float]] = []
    looked: list[float] = []

    def begins() -> None:
        times.append((time.perf_counter(), time.process_time()))
        zero_grad()

    optimizer.zero_grad = begins

    def run() -> Steps:
        torch.cuda.synchronize()
        times.clear()
        began = time.perf_counter()
        train(torch, model, optimizer, 3)
        torch.cuda.synchronize()
        times.append((time.perf_counter(), time.process_time()))
        return Steps(times[-1][0] - began, *steps_between(times))

    def recorded(book: Any) -> Steps:
        recorder = Recorder(RecordOptions(), roles=book)
        recorder.start()
        try:
            return run()
        finally:
            recorder.stop(Cell(None, None, ""))
            if book is not None:
                looked.append(book._spent)

    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        run()
    seconds = float(os.environ.get("GPUMEM_COST_SECONDS") or (8 if os.environ.get("GPUMEM_QUICK") == "1" else 28))
    pinned = pin_to_calm_cores()
    found = stepwise(lambda: recorded(None), lambda: recorded(RoleBook(dict)), seconds)
    looks = statistics.median(looked) * 1e3
    return f"{pinned}; with modules and roles: {found}; looks at roles {looks:.1f} ms of each cell"
