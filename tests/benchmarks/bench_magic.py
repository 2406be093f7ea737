"""What measuring costs: loading, a cell that allocates nothing, a plain loop, tiny CPU steps, a flood of tensors.

``python tests/benchmarks/bench_magic.py [loading] [in_kernel] [flood]``: ratios, as medians of interleaved rounds with
the range of the middle half.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
TINY_STEPS = 5_900  # 22 allocations each: 130,000


def spread(values: list[float], unit: float = 1.0) -> str:
    """Write median and middle half."""
    quarters = statistics.quantiles(values, n=4)
    return f"{statistics.median(values) * unit:.2f} ({quarters[0] * unit:.2f} to {quarters[2] * unit:.2f})"


def row(name: str, goal: str, value: str) -> None:
    """Print one result."""
    print(f"{name:58} {value:32} goal {goal}", flush=True)


def loading() -> None:
    """Time ``%load_ext`` in fresh processes with IPython up."""
    code = (
        "import time, sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "ip = InteractiveShell.instance()\n"
        "t = time.perf_counter()\n"
        "ip.run_line_magic('load_ext', 'gpumem_magic')\n"
        "print(time.perf_counter() - t, 'torch' in sys.modules)\n"
    )
    times = []
    for _ in range(7):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, torch = done.stdout.split()
        assert torch == "False"
        times.append(float(seconds))
    row("%load_ext gpumem_magic, ms", "50", spread(times, 1e3))


class Kernel:
    """A kernel driven by hand, to time from request to idle."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=tempfile.mkdtemp())
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> float:
        """Run a cell; return seconds from request to idle."""
        began = time.perf_counter()
        error = ""
        ours = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=300)
            if message["parent_header"].get("msg_id") != ours:
                continue
            if message["msg_type"] == "error":
                error = message["content"]["ename"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                if error:
                    raise RuntimeError(error)
                return time.perf_counter() - began

    def stop(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def compared(kernel: Kernel, body: str, rounds: int = ROUNDS, **magics: str) -> dict[str, list[float]]:
    """Time a body bare and under magics, interleaved."""
    times: dict[str, list[float]] = {"bare": [], **{name: [] for name in magics}}
    for magic in ("", *magics.values()):
        kernel.run(f"{magic}\n{body}".strip())
    for _ in range(rounds):
        for name, magic in (("bare", ""), *magics.items()):
            times[name].append(kernel.run(f"{magic}\n{body}".strip()))
    return times


def in_kernel() -> None:
    """Time cells in a real kernel."""
    kernel = Kernel()
    kernel.run("import torch\n%load_ext gpumem_magic")
    first = kernel.run("%%gpumem\nx = 1")
    row("first measured cell, allocates nothing, ms", "", f"{first * 1e3:.1f}")
    times = compared(kernel, "x = 1 + 1", rounds=60, measured="%%gpumem")
    more = [measured - bare for bare, measured in zip(times["bare"], times["measured"], strict=True)]
    row("cell that allocates nothing: more, ms", "5", spread(more, 1e3))
    spent: dict[str, list[float]] = {"": [], "%%gpumem\n": []}
    for _ in range(40):
        for magic, seconds in spent.items():
            began = value(kernel, "__import__('time').process_time()")
            kernel.run(f"{magic}x = 1 + 1")
            seconds.append(value(kernel, "__import__('time').process_time()") - began)
    more = [measured - bare for bare, measured in zip(spent[""], spent["%%gpumem\n"], strict=True)]
    row("  the same in CPU time of the kernel, ms", "5", spread(more, 1e3))
    loop = (
        "import time\nbegan = time.process_time()\ns = 0\nfor i in range(6_000_000):\n    s += i & 3\n"
        "took = time.process_time() - began"
    )
    spent = {"": [], "%%gpumem\n": [], "%%gpumem --stacks none\n": []}
    for _ in range(7):
        for magic, seconds in spent.items():
            kernel.run(magic + loop)
            seconds.append(value(kernel, "took"))
    for magic in ("%%gpumem\n", "%%gpumem --stacks none\n"):
        ratios = [measured / bare for bare, measured in zip(spent[""], spent[magic], strict=True)]
        row(f"plain loop of 6 M iterations, {magic.strip()}: CPU time, ratio", "1.05", spread(ratios))
    kernel.run(
        "import time\nmodel = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\nbatch = torch.randn(4, 8)"
    )
    steps = (
        "began = time.process_time()\n"
        f"for i in range({TINY_STEPS}):\n"
        "    loss = model(batch).square().mean()\n    optimizer.zero_grad()\n    loss.backward()\n"
        "    optimizer.step()\n"
        "ended = time.process_time()\ntook = ended - began"
    )
    tiny_steps(kernel, steps)
    kernel.stop()


def flood() -> None:
    """Run an endless loop of tensors, interrupt it, and look at memory and at how long the way back takes."""
    kernel = Kernel()
    kernel.run("import os\nimport torch\n%load_ext gpumem_magic")
    process = psutil.Process(int(value(kernel, "os.getpid()")))
    before = process.memory_info().rss
    for call in ("torch.ones(1000)", "torch.ones(1000)", "torch.ones(1000)", "torch.empty(1)"):
        pressed: list[float] = []

        def press(pressed: list[float] = pressed) -> None:
            pressed.append(time.perf_counter())
            process.send_signal(signal.SIGINT)

        most, running = [0], threading.Event()

        def watch(most: list[int] = most, running: threading.Event = running) -> None:
            while not running.wait(0.02):
                most[0] = max(most[0], process.memory_info().rss)

        watcher = threading.Thread(target=watch)
        watcher.start()
        threading.Timer(10, press).start()
        with contextlib.suppress(RuntimeError):  # the interrupt
            kernel.run(f"%%gpumem\nwhile True:\n    {call}")
        took = time.perf_counter() - pressed[0]
        running.set()
        watcher.join()
        time.sleep(0.5)  # requests that follow an error at once are turned down
        row(f"10 s of {call}: s from the button to idle", "2", f"{took:.2f}")
        row(
            "  most memory meanwhile, and afterwards, over the start, MB",
            "1000",
            (f"{(most[0] - before) / 1e6:.0f}, {(process.memory_info().rss - before) / 1e6:.0f}"),
        )
    kernel.stop()


def tiny_steps(kernel: Kernel, steps: str) -> None:
    """Time the loop from inside, and what follows it, in CPU time of the kernel."""
    magics = ("", "%%gpumem", "%%gpumem --stacks none")
    inside: dict[str, list[float]] = {magic: [] for magic in magics}
    after: dict[str, list[float]] = {magic: [] for magic in magics}
    for number in range(ROUNDS + 1):
        for magic in magics:
            kernel.run(f"{magic}\n{steps}".strip())
            now = value(kernel, "time.process_time()")
            if number:  # the first round warms up
                inside[magic].append(value(kernel, "took"))
                after[magic].append(now - value(kernel, "ended"))
    kernel.run("import gpumem_magic\nallocations = gpumem_magic.last.devices[0].events")
    events = int(value(kernel, "allocations"))
    for magic in magics[1:]:
        ratios = [measured / bare for bare, measured in zip(inside[""], inside[magic], strict=True)]
        row(f"CPU, {events:,} events in training steps, {magic}: ratio", "1.15", spread(ratios))
        row(f"  CPU time from the last step to the report, {magic}, s", "1.5", spread(after[magic]))


def value(kernel: Kernel, name: str) -> float:
    """Read a number from the kernel."""
    reply = kernel.client.execute_interactive(
        "", silent=True, user_expressions={"v": name}, output_hook=lambda _message: None, timeout=60
    )
    return float(reply["content"]["user_expressions"]["v"]["data"]["text/plain"])


def main() -> None:
    """Run everything."""
    parts: tuple[Callable[[], None], ...] = (loading, in_kernel, flood)
    asked = sys.argv[1:]
    for part in parts:
        if not asked or part.__name__ in asked:
            part()


if __name__ == "__main__":
    main()
