"""What one event of ours costs, and what all of them cost a training step: ``python tests/benchmarks/bench_events.py``.

A line, a call of a notebook's function, the call of a module, a tick of the live sampler; each as what a loop of them
takes more, divided by their number, in the thread's own processor time. Then a launch-bound training step on the CPU
with the lines, the modules, and both. Python 3.12 or later for lines in functions and modules; torch for the steps.
"""

from __future__ import annotations

import ast
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

from paired import paired

from gpumem_magic.recording import marks
from gpumem_magic.recording.model import Sample
from gpumem_magic.recording.sampler import live_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from paired import Paired

SECONDS = 4.0
CELL = "<cell 1>"

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
    def forward(self, x):
        y = self.norm(x)
        y = torch.nn.functional.gelu(self.up(y))
        return x + self.down(y)
class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
model = Net(8, 16)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
batch = torch.randn(4, 8)
"""
STEP = """
for _ in range(STEPS):
    optimizer.zero_grad()
    out = model(batch)
    loss = (out * out).mean()
    loss.backward()
    optimizer.step()
"""
# The torch-free likeness of a model's forward: classes that call each other through __call__.
CHAIN = """
class Part:
    def __init__(self, *parts):
        self.parts = parts
    def __call__(self, x):
        return self.forward(x)
    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
net = Part(*[Part(Part(), Part(), Part()) for _ in range(16)])
"""


def is_cell(filename: str) -> bool:
    """Return whether code belongs to the notebook."""
    return filename.startswith("<cell")


def compiled(source: str, transformer: ast.NodeTransformer | None = None) -> list[CodeType]:
    """Compile a cell statement by statement, as IPython does."""
    tree: Any = ast.parse(source.lstrip("\n"))
    if transformer is not None:
        tree = ast.fix_missing_locations(transformer.visit(tree))
    return [compile(ast.Module([node], []), CELL, "exec") for node in tree.body]


def run(codes: list[CodeType], names: dict[str, Any]) -> float:
    """Run a cell; return its processor time."""
    began = time.thread_time()
    for code in codes:
        exec(code, names)  # noqa: S102 - the benchmark's own code
    return time.thread_time() - began


class Lines:
    """A cell with and without line marks, which never go quiet, as if each line allocated."""

    def __init__(self, source: str, names: dict[str, Any]) -> None:
        self.source, self.names = source, names
        self.codes = compiled(source)
        self.marks = 0

    def bare(self) -> float:
        """Run without."""
        return run(self.codes, self.names)

    def marked(self) -> float:
        """Run with."""
        watch = marks.start(is_cell, progress=itertools.count(0, 1_000_000).__next__)
        codes = self.codes if watch.transformer is None else compiled(self.source, watch.transformer)
        try:
            return run(codes, self.names)
        finally:
            columns = watch.stop()
            self.marks = 0 if columns is None else len(columns.time_us)


def tell(name: str, found: Paired, events: int = 0, per: str = "event") -> None:
    """Print a line."""
    low, middle, high = found.more
    if events:
        text = f"{middle / events * 1e9:6.0f} ns a {per} ({low / events * 1e9:.0f} to {high / events * 1e9:.0f})"
    else:
        text = f"{middle * 1e6:6.0f} µs more of {found.base * 1e3:.2f} ms: {found}"
    print(f"{name:46} {text}", flush=True)


def lines() -> None:
    """Lines, and calls of functions."""
    body = "".join(f"    x = {number}\n" for number in range(100))
    many = Lines("for i in range(50):\n" + body, {})
    found = paired(many.bare, many.marked, SECONDS)
    tell("a line of a loop", found, many.marks, "mark")
    names: dict[str, Any] = {}
    run(compiled("def f():\n    pass\n" + CHAIN), names)
    calls = Lines("for i in range(50):\n" + "    f(); f(); f(); f()\n" * 25, names)
    found = paired(calls.bare, calls.marked, SECONDS)
    tell("a call: start, line and return", found, 50 * 100, "call")
    chain = Lines("for i in range(20):\n    net(1)\n", names)
    found = paired(chain.bare, chain.marked, SECONDS)
    tell("nested calls without torch, all of them marked", found, chain.marks, "mark")


def modules(torch: Any) -> None:
    """Calls of modules that do nothing else."""
    from gpumem_magic.recording.marks.calls import CallMarks

    net = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(60)))
    count = 20 * 61

    def bare() -> float:
        began = time.thread_time()
        for _ in range(20):
            net(1)
        return time.thread_time() - began

    def watched(make: Callable[[], Any]) -> Callable[[], float]:
        def run_watched() -> float:
            calls = CallMarks(torch)
            try:
                for module in make():
                    module(1)
                return bare()
            finally:
                calls.stop()

        return run_watched

    tell("a module's call and its end", paired(bare, watched(lambda: [net]), SECONDS), count, "call")

    def fresh() -> float:
        began = time.thread_time()
        for _ in range(500):
            torch.nn.Identity()(1)
        return time.thread_time() - began

    def fresh_watched() -> float:
        calls = CallMarks(torch)
        try:
            return fresh()
        finally:
            calls.stop()

    tell("a module made on the fly", paired(fresh, fresh_watched, SECONDS), 500, "call")


def steps(torch: Any, count: int) -> None:
    """Launch-bound steps on the CPU."""
    from gpumem_magic.holders.roles import RoleBook
    from gpumem_magic.recording.marks.calls import CallMarks

    torch.set_num_threads(1)
    names: dict[str, Any] = {"STEPS": count}
    run(compiled(MODEL), names)
    cell = Lines(STEP, names)
    tell(f"{count} steps, lines", paired(cell.bare, cell.marked, SECONDS))
    if hasattr(sys, "monitoring"):

        def watched(looks: Any) -> Callable[[], float]:
            def run_watched() -> float:
                calls = CallMarks(torch, looks() if looks is not None else None)
                try:
                    return cell.bare()
                finally:
                    calls.stop()

            return run_watched

        tell(f"{count} steps, modules", paired(cell.bare, watched(None), SECONDS))
        tell(
            f"{count} steps, modules and what memory is for",
            paired(cell.bare, watched(lambda: RoleBook(dict)), SECONDS),
        )


def ticks() -> None:
    """What the live line's tick does on the processor, the driver left out."""
    from gpumem_magic.recording.readings import cpu_reading

    sample = [Sample(1, "cuda:0", 1 << 30, 2 << 30, 3 << 30, None)]
    for name, work in (
        ("a sample of the host", cpu_reading),
        ("the live line's text", lambda: live_line(sample, 12.3, {"cuda:0": 80 << 30})),
    ):
        taken = []
        for _ in range(200):
            began = time.thread_time_ns()
            work()
            taken.append(time.thread_time_ns() - began)
            time.sleep(0.001)  # as cold as a tick is
        print(f"{name:46} {sorted(taken)[100] / 1e3:6.0f} µs", flush=True)


def main() -> None:
    """Print everything."""
    print(f"Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d', time.gmtime())}")
    lines()
    ticks()
    try:
        import torch
    except ImportError:
        print("no torch: the steps are left out")
        return
    if hasattr(sys, "monitoring"):
        modules(torch)
    for count in (1, 10):
        steps(torch, count)


if __name__ == "__main__":
    main()
