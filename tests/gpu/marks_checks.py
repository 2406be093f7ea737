"""Line marks on a real GPU: right against torch's own Python stacks.

Each ``check_*`` takes nothing, asserts what must hold, and returns a line of what was measured. Run by ``run_all.py``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.analysis.lines import CLOCK_TOLERANCE_US, attribute, clock_offset
from gpumem_magic.recording import marks as line_marks
from gpumem_magic.recording.model import Cell, Outcome
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.recorder import Recorder
from gpumem_magic.trace.model import Action

if TYPE_CHECKING:
    from gpumem_magic.recording.model import Marks, Recording

QUICK = os.environ.get("GPUMEM_QUICK") == "1"

MODEL = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
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
    def __init__(self, width=64, depth=12, check=None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.check = check
    def forward(self, x):
        for block in self.blocks:
            if self.check is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.check)
        return x
def batches(count, rows, width):
    for _ in range(count):
        x = torch.randn(rows, width, device="cuda", requires_grad=True)
        yield x, torch.randn(rows, width, device="cuda")
def criterion(out, target):
    error = out - target
    return (error * error).mean()
"""

TRAIN = """
for x, target in batches(STEPS, ROWS, WIDTH):
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, target) + 0 * out.sum()
    loss.backward()
    optimizer.step()
"""
BACKWARD_LINE = 5

MORE = """
def deeper(n):
    if n == 0:
        return torch.ones(16, device="cuda")
    return deeper(n - 1) + torch.ones(16, device="cuda")
def fails(n):
    kept = torch.ones(n, device="cuda")
    raise ValueError(kept.sum())
def pairs():
    while True:
        got = yield torch.ones(8, device="cuda")
        got = (yield torch.zeros(8, device="cuda")) or torch.ones(4, device="cuda")
"""
MANY_WAYS = """
x = deeper(5) + torch.ones(16, device="cuda")
try:
    fails(32)
except ValueError:
    y = torch.ones(32, device="cuda")
g = pairs()
z = next(g) + next(g) + torch.ones(8, device="cuda")
z = next(g) + g.send(None)
parts = [torch.ones(n, device="cuda") for n in range(1, 4)]
total = sum(part.sum() for part in parts)
square = (lambda t: t * t)(total)
both = torch.cat([
    deeper(1),
    x * 2,
    torch.ones(3, device="cuda"),
])
for n in range(20_000):
    w = n
w = torch.ones(5, device="cuda")
"""


def is_cell(filename: str) -> bool:
    """Return whether code belongs to the notebook played here."""
    return filename.startswith("<cell")


class Played:
    """A notebook played in this process; cells are compiled statement by statement, as IPython does."""

    def __init__(self, *setup: str, **names: Any) -> None:
        self.namespace: dict[str, Any] = dict(names)
        self.cells = 0
        for cell in setup:
            self.run(self.compile(cell))

    def compile(self, source: str) -> list[Any]:
        """Compile a cell."""
        import ast

        self.cells += 1
        filename = f"<cell {self.cells}>"
        tree = ast.parse(source.lstrip("\n"))
        return [compile(ast.Module([node], []), filename, "exec") for node in tree.body]

    def run(self, codes: list[Any]) -> None:
        """Run a compiled cell."""
        for code in codes:
            exec(code, self.namespace)  # noqa: S102 - the checks' own cells

    def record(self, source: str, stacks: str) -> Recording:
        """Record a cell."""
        codes = self.compile(source)
        recorder = Recorder(RecordOptions(stacks=stacks), start_marks=lambda: start_marks(recorder))
        recorder.start()
        try:
            self.run(codes)
        finally:
            recorder.end()
            recording = recorder.stop(Cell(None, None, source), Outcome.OK, None)
        return recording


def start_marks(recorder: Recorder) -> Any:
    """Begin to watch the lines."""
    return line_marks.start(is_cell, progress=recorder.progress)


def training(*, check: bool | None = None, **sizes: int) -> Played:
    """Make a notebook with a model."""
    given = {"steps": 30, "rows": 32, "width": 64, "depth": 12} | sizes
    played = Played(MODEL, CHECK=check, **{name.upper(): value for name, value in given.items()})
    played.run(played.compile("model = Net(WIDTH, DEPTH, CHECK).cuda()"))
    played.run(played.compile("optimizer = torch.optim.AdamW(model.parameters(), foreach=False)"))
    played.run(played.compile(TRAIN.replace("STEPS", "3")))
    played.namespace["torch"].cuda.synchronize()
    return played


def folded(stack: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Fold recursion, outermost first: a repeated function continues its outermost call, as marks do."""
    result: list[tuple[str, int, str]] = []
    for entry in stack:
        same = [i for i, (file, _, name) in enumerate(result) if (file, name) == (entry[0], entry[2])]
        if same:
            del result[same[0] :]
        result.append(entry)
    return result


def agreement(recording: Recording) -> tuple[Counter[str], Counter[object], list[str]]:
    """Compare marks with stacks: how many allocations agree, where those without a stack are, what differs."""
    trace, marks = recording.trace, recording.marks
    assert trace is not None
    assert marks is not None
    counts: Counter[str] = Counter()
    without: Counter[object] = Counter()
    wrong: list[str] = []
    for device in trace.devices:
        events = device.events
        lines = attribute(marks, events.time_us)
        for index in np.flatnonzero(events.action == Action.ALLOC).tolist():
            place = int(lines.place[index])
            frames = [tuple(f) for f in trace.stacks.resolve(int(events.stack[index])) if is_cell(f.filename)]
            told = told_place(marks, place)
            if not frames:
                counts["no stack"] += 1
                without[told[0][1] if told else lines.reasons[-1 - place]] += 1
                continue
            true = folded(frames[::-1])  # type: ignore[arg-type]
            exact = [(file, first, name) for file, first, last, name in told[::-1] if first == last]
            if exact == true:
                counts["agree"] += 1
            elif holds(told[::-1], true):
                counts["coarser"] += 1
            else:
                counts["differ"] += 1
                if len(wrong) < 5:
                    wrong.append(f"marks {told or lines.reasons[-1 - place]}, stack {true}")
    return counts, without, wrong


def outermost(recording: Recording, cell: str) -> tuple[Counter[int], Counter[int], list[str]]:
    """Compare the lines of the measured cell alone.

    Returns
    -------
    tuple
        Lines on which torch's stack agrees, lines of allocations whose stack has no frame of the cell, what differs.
    """
    trace, marks = recording.trace, recording.marks
    assert trace is not None
    assert marks is not None
    right, elsewhere, wrong = Counter[int](), Counter[int](), []
    for device in trace.devices:
        places = attribute(marks, device.events.time_us).place
        for index in np.flatnonzero(device.events.action == Action.ALLOC).tolist():
            stack = trace.stacks.resolve(int(device.events.stack[index]))
            true = [frame.line for frame in stack if frame.filename == cell]
            told = [one for one in told_place(marks, int(places[index])) if one[0] == cell]
            if not true:
                elsewhere[told[-1][1] if told else -1] += 1
            elif told and told[-1][1] <= true[-1] <= told[-1][2]:
                right[true[-1]] += 1
            else:
                wrong.append(f"marks {told}, stack {stack}")
    return right, elsewhere, wrong


def holds(told: list[tuple[str, int, int, str]], true: list[tuple[str, int, str]]) -> bool:
    """Return whether a coarser place, outermost first, holds the true one."""
    pairs = zip(told, true)  # noqa: B905 - the coarser one may be shorter
    inside = [file == true_file and first <= line <= last for (file, first, last, _), (true_file, line, _) in pairs]
    return bool(told) and len(told) <= len(true) and all(inside)


def told_place(marks: Marks, place: int) -> list[tuple[str, int, int, str]]:
    """Return a place, innermost first: file, first line, last line, function."""
    if place < 0:
        return []
    pairs = zip(marks.places[place], marks.last_lines[place], strict=True)
    return [(file, line, last, name) for (file, line, name), last in pairs]


def judged(recording: Recording, backward: int | None = BACKWARD_LINE, coarser: float = 0.0) -> str:
    """Assert full agreement and that what has no stack is on the line of ``backward``; return the counts."""
    counts, without, wrong = agreement(recording)
    text = f"{dict(counts)}, without a stack at lines {dict(without)}"
    assert counts["agree"] > 0, text
    assert counts["differ"] == 0, f"{text}; {wrong}"
    assert counts["coarser"] <= coarser * counts["agree"], text
    assert set(without) <= {backward}, text
    return text


# -- right -------------------------------------------------------------------------------------------------------------


def check_marks_training_loop() -> str:
    """Launch-bound training with modules, a generator and functions of earlier cells; backward on autograd's thread."""
    return judged(training().record(TRAIN, "python"))


def check_marks_checkpoint() -> str:
    """Checkpointing without reentry leaves its recomputation by an exception (early stop)."""
    return judged(training(check=False, steps=10).record(TRAIN, "python"))


def check_marks_checkpoint_reentrant() -> str:
    """Reentrant checkpointing runs notebook code on autograd's own thread, while the main one waits in backward."""
    return judged(training(check=True, steps=10).record(TRAIN, "python"))


def check_marks_many_ways() -> str:
    """Recursion, exceptions, generators, lambdas, comprehensions, calls over several lines, a hot loop."""
    return judged(Played(MODEL, MORE).record(MANY_WAYS, "python"), backward=None)


def check_marks_compiled() -> str:
    """``torch.compile(fullgraph=True)`` under marks: compiles, and the line that calls it gets its memory."""
    played = training(steps=5)
    played.run(played.compile("model = torch.compile(model, fullgraph=True)"))
    recording = played.record(TRAIN, "python")
    counts, without, wrong = agreement(recording)
    graphs = played.namespace["torch"]._dynamo.utils.counters["graph_break"]
    assert not graphs, graphs
    right, elsewhere, wrong_lines = outermost(recording, f"<cell {played.cells}>")
    text = f"{dict(counts)}, without a stack at {dict(without)}; the cell's own lines: {dict(right)} agree, "
    text += f"{dict(elsewhere)} where the stack has none; inside, marks differ as in {wrong[:1]}"
    # torch names the code that was compiled, marks the call; the line of the cell that runs it must be the same. What
    # has no frame of the cell runs on autograd's thread.
    assert right, text
    assert not wrong_lines, f"{text}; {wrong_lines[:5]}"
    assert set(elsewhere) <= {BACKWARD_LINE}, text
    return text


def check_marks_lines_only() -> str:
    """The default mode: every allocation of a training loop has a line, and none of them is unknown."""
    recording = training().record(TRAIN, "lines")
    counts, without, _ = agreement(recording)
    assert all(isinstance(line, int) for line in without), without
    return f"{counts['no stack']} allocations at lines {dict(without)}"


def check_marks_clock() -> str:
    """The clock of torch's events is the clock of the marks, now and a while later."""
    import torch

    torch.ones(1, device="cuda")
    torch.cuda.memory._record_memory_history(context=None, max_entries=1000)
    calls, offsets = [], []
    for _ in range(20):
        before = time.time_ns() // 1000
        torch.cuda.memory.memory_snapshot(include_traces=False)
        calls.append((before, time.time_ns() // 1000))
        time.sleep(0.02 if QUICK else 0.3)
    traces = torch.cuda.memory._snapshot()["device_traces"][0]
    entries = np.array([e["time_us"] for e in traces if e["action"] == "snapshot"], np.int64)
    for call in calls:
        offset = clock_offset(entries, [call])
        assert offset is not None, (entries, calls)
        offsets.append(offset)
    torch.cuda.memory._record_memory_history(enabled=None)
    assert max(map(abs, offsets)) <= CLOCK_TOLERANCE_US, offsets
    widths = [after - before for before, after in calls]
    worst = max(map(abs, offsets))
    return f"offset at most {worst} µs in {len(offsets)} calls (each {statistics.median(widths):.0f} µs wide)"
