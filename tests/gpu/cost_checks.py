"""What measuring costs on a real GPU: against a bare cell, and against torch's own recorder.

Each ``check_*`` takes nothing and returns a line of ratios from one run. Run by ``run_all.py``.

Machines of this kind are noisy by several percent, so that a difference of 1 % needs many short rounds, and steps that
are compared one by one (``tests/benchmarks/paired.py``): what is paid at each step is told apart from what is paid once
in a cell, which a cell of a few steps would count at a hundred times its share in a training of hours.
"""

from __future__ import annotations

import ast
import compileall
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marks_checks import MODEL, QUICK, TRAIN, Played, is_cell, start_marks, training

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from paired import Steps, paired, pin_to_calm_cores, steps_between, stepwise

from gpumem_magic.recording import marks as line_marks
from gpumem_magic.recording import sampler
from gpumem_magic.recording.model import Cell, Outcome
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

# Of one benchmark; whole rounds only. The first comparison is the one that has a goal: it gets three parts of four.
LONGEST_S = float(os.environ.get("GPUMEM_COST_SECONDS") or (8 if QUICK else 28))
STEPS = 3


ends: list[tuple[float, float]] = []  # when cells ended: wall, processor


def modes(played: Played, source: str) -> dict[str, Callable[[], float]]:
    """Return timed ways to run a cell: seconds of the cell alone, a synchronize at its end included."""
    torch = played.namespace["torch"]
    codes = played.compile(source + "\ntorch.cuda.synchronize()\n")

    def timed() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        played.run(codes)
        ended = time.perf_counter()
        ends.append((ended, time.process_time()))
        return ended - began

    def history(**arguments: Any) -> Callable[[], float]:
        def run() -> float:
            torch.cuda.memory._record_memory_history(max_entries=1_000_000, **arguments)
            try:
                return timed()
            finally:
                torch.cuda.memory._record_memory_history(enabled=None)

        return run

    def marks() -> float:
        found = line_marks.start(is_cell)
        try:
            return timed()
        finally:
            found.stop()

    def ours(stacks: str, *, lines: bool = True) -> Callable[[], float]:
        def run() -> float:
            recorder = Recorder(
                RecordOptions(stacks=stacks), start_marks=(lambda: start_marks(recorder)) if lines else None
            )
            recorder.start()
            try:
                return timed()
            finally:
                recorder.end()
                recorder.stop(Cell(None, None, source), Outcome.OK, None)

        return run

    def after() -> float:
        ours("lines")()
        timed()  # the code that ran under marks is put back at its next run
        return timed()

    return {
        "bare": timed,
        "torch context=None": history(context=None),
        "ours lines": ours("lines"),
        "ours without lines": ours("lines", lines=False),
        "marks": marks,
        "torch python": history(context="all", stacks="python"),
        "ours python": ours("python"),
        "bare after": after,
    }


def told_apart(played: Played, ways: dict[str, Callable[[], float]]) -> dict[str, Callable[[], Steps]]:
    """Make ways also tell what each step took: from one ``zero_grad``, which the loop begins with, to the next."""
    optimizer = played.namespace["optimizer"]
    zero_grad = optimizer.zero_grad
    times: list[tuple[float, float]] = []

    def begins() -> None:  # in this file, so that no line of the notebook is added
        times.append((time.perf_counter(), time.process_time()))
        zero_grad()

    optimizer.zero_grad = begins

    def stepped(way: Callable[[], float]) -> Callable[[], Steps]:
        def run() -> Steps:
            times.clear()
            ends.clear()
            whole = way()
            return Steps(whole, *steps_between([*times, ends[-1]]))

        return run

    return {name: stepped(way) for name, way in ways.items()}


def compared_by_step(played: Played, source: str, *pairs: tuple[str, str]) -> str:
    """Time ways against their base, step by step, and word the ratios."""
    ways = modes(played, source)
    warmed(ways["bare"])
    stepped = told_apart(played, ways)
    parts = [pin_to_calm_cores()]
    for name, base in pairs:
        found = stepwise(stepped[base], stepped[name], LONGEST_S / len(pairs))
        parts.append(f"{name} / {base}: {found}")
    return "; ".join(parts)


def warmed(run: Callable[[], float], seconds: float = 1.5) -> None:
    """Run until the clocks are up and torch has met everything."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        run()


def compared(played: Played, source: str, *pairs: tuple[str, str]) -> str:
    """Time ways against their base, both names of `modes`, and word the ratios."""
    ways = modes(played, source)
    warmed(ways["bare"])
    shares = [1.0] if len(pairs) == 1 else [0.75, *[0.25 / (len(pairs) - 1)] * (len(pairs) - 1)]
    parts = []
    for (name, base), share in zip(pairs, shares, strict=True):
        found = paired(ways[base], ways[name], share * LONGEST_S)
        parts.append(f"{name} / {base} {found}, {base} {found.base * 1e3:.1f} ms")
    return "; ".join(parts)


def check_cost_launch_bound() -> str:
    """Goal: a step with lines at most +1 % over torch's own recorder with ``context=None``."""
    played = training(steps=STEPS, depth=16)
    return compared_by_step(played, TRAIN, ("ours lines", "torch context=None"))


def check_cost_python_stacks() -> str:
    """Goal: a step with ``--stacks python`` at most +1 % over torch's own recorder with the same arguments."""
    played = training(steps=STEPS, depth=16)
    return compared_by_step(played, TRAIN, ("ours python", "torch python"))


def check_cost_recorders() -> str:
    """What torch's own recorder takes, without and with Python's stacks."""
    played = training(steps=STEPS, depth=16)
    return compared_by_step(played, TRAIN, ("torch context=None", "bare"), ("torch python", "bare"))


def check_cost_parts() -> str:
    """Where the cost of the lines comes from: the marks alone, and the rest of what we record."""
    played = training(steps=STEPS, depth=16)
    return compared_by_step(played, TRAIN, ("marks", "bare"), ("ours without lines", "torch context=None"))


def check_cost_live_line() -> str:
    """The sampler of cells longer than half a second, at fifty times a second in place of five."""
    played = training(steps=2 * STEPS, depth=16)
    ours = modes(played, TRAIN)["ours lines"]
    ticks, cells = [0], [0]
    read, usual = Recorder._sample, sampler._PERIOD_SECONDS

    def counted(recorder: Any) -> Any:
        ticks[0] += 1
        return read(recorder)

    def at(delay: float) -> Callable[[], float]:
        def run() -> float:
            sampler._DELAY_SECONDS = delay
            cells[0] += delay == 0
            return ours()

        return run

    setattr(Recorder, "_sample", counted)  # noqa: B010 - this process ends with the check
    sampler._PERIOD_SECONDS = 0.02
    warmed(at(0))
    ticks[0] = cells[0] = 0
    found = paired(at(60), at(0), LONGEST_S)
    per_cell = ticks[0] / cells[0]
    low, middle, high = (value / per_cell for value in found.more)
    return (
        f"a tick takes {middle * 1e6:.0f} µs of the cell ({low * 1e6:.0f} to {high * 1e6:.0f}), so the live line "
        f"{100 * middle / (usual + 0.01):+.2f} %; {per_cell:.1f} ticks a cell of {found.base * 1e3:.0f} ms"
    )


def check_cost_after_unloading() -> str:
    """Goal: nothing within the noise, once a recording has ended."""
    return compared(training(steps=STEPS, depth=16), TRAIN, ("bare after", "bare"))


def check_cost_gpu_bound() -> str:
    """Goal: ours lines at most +0.5 % over bare."""
    played = training(steps=2, rows=8192, width=2048, depth=4)
    return compared(played, TRAIN, ("ours lines", "bare"), ("torch context=None", "bare"))


def check_cost_tiny_lines() -> str:
    """Lines of a few µs that allocate each time: the worst case that is still marked line by line."""
    source = "a = torch.ones(8, device='cuda')\nfor n in range(10_000):\n    b = a + 1\n    c = b * 2\n"
    return compared(Played(MODEL), source, ("ours lines", "torch context=None"), ("torch context=None", "bare"))


def check_cost_plain_loop() -> str:
    """Goal: at most +5 % on 6 M iterations of plain Python, recorder on."""
    source = "x = 0\nfor n in range(6_000_000):\n    x += n\n"
    played = Played(MODEL)
    played.run(played.compile("torch.ones(1, device='cuda')"))
    return compared(played, source, ("ours lines", "bare"))


# -- a real kernel -----------------------------------------------------------------------------------------------------


class Kernel:
    """A kernel driven by hand."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.manager.start_kernel(cwd=tempfile.mkdtemp(), env={**os.environ, "PYTHONPATH": path})
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, code: str) -> tuple[float, str, float | None]:
        """Run a cell; return seconds from request to idle, the text of its outputs, and when its report came."""
        began = time.perf_counter()
        ours = self.client.execute(code)
        text, shown = "", None
        while True:
            message = self.client.get_iopub_msg(timeout=300)
            if message["parent_header"].get("msg_id") != ours:
                continue
            content = message["content"]
            if message["msg_type"] == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            text += content.get("text", "") + content.get("data", {}).get("text/plain", "")
            if message["msg_type"] == "display_data" and "gpumem" in content["data"].get("text/plain", ""):
                shown = time.time()
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return time.perf_counter() - began, text, shown

    def stop(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


_READY = "import torch\ntorch.ones(8, device='cuda').sum().item()\n%load_ext gpumem_magic"


def check_cost_first_cell() -> str:
    """Goal: the first measured cell is no slower than the tenth by more than 0.3 s, also when it comes at once."""
    # As every installer leaves it: compiling 130 modules anew takes as long as all other imports of the first cell.
    compileall.compile_dir(Path(__file__).resolve().parents[2] / "gpumem_magic", quiet=1)
    cell = "%%gpumem\nx = torch.ones(1 << 20, device='cuda')\ny = (x * 2).sum()\ndel x"
    parts = []
    # The first kernel finds files that nothing has read yet, where nothing ran before this check.
    for name, pause in (("at once", 0.0), ("again", 0.0), ("after 2 s", 2.0)):
        kernel = Kernel()
        try:
            kernel.run(_READY)
            # torch loads a kernel when it is first used, with the magic or without.
            kernel.run(cell.partition("\n")[2])
            time.sleep(pause)
            seconds = [kernel.run(cell)[0] for _ in range(10)]
            python = [kernel.run(cell.replace("%%gpumem", "%%gpumem --stacks python"))[0] for _ in range(3)]
        finally:
            kernel.stop()
        tenth = statistics.median(seconds[5:])
        parts.append(
            f"{name}: first {seconds[0]:.3f} s, {seconds[0] - tenth:+.3f} over the later ones, "
            f"all {[round(s, 3) for s in seconds]}, with --stacks python {[round(s, 3) for s in python]}"
        )
    return "; ".join(parts)


LOOP = """
import time
a = torch.ones(8, device='cuda')
for n in range({count}):
    b = a + 1
    c = b + 1
torch.cuda.synchronize()
ended = time.time()
"""
_OWN = """
import time
torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
{loop}
began = time.perf_counter()
taken = torch.cuda.memory._snapshot()
took = time.perf_counter() - began
events = sum(map(len, taken["device_traces"]))
torch.cuda.memory._record_memory_history(enabled=None)
del taken
print(took, events)
"""


def check_cost_end_of_cell() -> str:
    """Goal: cell's end to report at most torch's _snapshot() plus 0.3 s (20 k events), plus 1x (600 k events).

    Both begin alike: after a cell and a pause. The second to fourth snapshot in a row took a sixth less.
    """
    kernel = Kernel()
    try:
        kernel.run(_READY)
        kernel.run("%%gpumem\ntorch.ones(8, device='cuda')")
        folder = str(Path(__file__).resolve().parent)
        kernel.run(f"import sys\nsys.path.insert(0, {folder!r})\nfrom steps import watch\nsteps, _ = watch()")
        # Long enough for all memory of the former round to have gone back to the system.
        counts = (3_400, 0.2), (100_000 if not QUICK else 10_000, 0.5)
        return "; ".join([_end_of_cell(kernel, LOOP.format(count=count), pause) for count, pause in counts])
    finally:
        kernel.stop()


def _end_of_cell(kernel: Kernel, loop: str, pause: float) -> str:
    """Take turns with torch's own snapshot of as many events, and word both.

    A machine that others use changes its speed within seconds: each of ours is held against torch's before and after.
    """
    ours: list[float] = []
    owns: list[float] = []
    steps: list[dict[str, float]] = []
    events = "0"

    def own() -> None:
        nonlocal events
        took, events = kernel.run(_OWN.format(loop=loop))[1].split()
        owns.append(float(took))
        time.sleep(pause)

    own()
    for _ in range(4):
        kernel.run("steps.clear()")
        shown = kernel.run("%%gpumem\n" + loop)[2]
        ended, found = kernel.run("print(repr(ended), steps)")[1].split(" ", 1)
        ours.append((shown or 0) - float(ended))
        steps.append(ast.literal_eval(found))
        time.sleep(pause)
        own()
    bases = [statistics.mean(pair) for pair in itertools.pairwise(owns)][1:]
    base, rest = statistics.median(bases), statistics.median(ours[1:])
    ratios = [mine / its for mine, its in zip(ours[1:], bases, strict=True)]
    words = ", ".join(f"{name} {statistics.median(one[name] for one in steps[1:]):.3f}" for name in steps[1])
    return (
        f"{int(events):,} events: torch's _snapshot {base:.3f} s, ours {rest:.3f} s (first {ours[0]:.3f} s), "
        f"{rest - base:+.3f} s, {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}; {words})"
    )
