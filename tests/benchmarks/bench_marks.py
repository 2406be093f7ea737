"""What line marks cost, as ratios of the same cell with and without them: ``python tests/benchmarks/bench_marks.py``.

Medians of interleaved rounds with the range of the middle half, in the thread's own processor time, so that other work
on the machine counts little. On Python 3.12 and later through ``sys.monitoring``, before through the syntax tree.
"""

from __future__ import annotations

import ast
import statistics
import sys
import time
import tracemalloc
from typing import Any

import numpy as np

from gpumem_magic.analysis.lines import attribute
from gpumem_magic.recording.marks import start
from gpumem_magic.recording.model import Marks

# ruff: noqa: E501 - cells on one line each
ROUNDS = 9
LOOPS = {
    "6 M iterations, x += i": "x = 0\nfor i in range(6_000_000):\n    x += i\n",
    "6 M iterations, pass": "for i in range(6_000_000):\n    pass\n",
    "6 M iterations, while": "i = 0\nwhile i < 6_000_000:\n    i += 1\n",
    "3 M iterations, append": "a = []\nfor i in range(3_000_000):\n    a.append(i)\n",
    "3 M iterations, branch": "x = 0\nfor i in range(3_000_000):\n    if i & 1:\n        x += 1\n    else:\n        x -= 1\n",
    "3 M calls of a function": "def f(i):\n    return i\nfor i in range(3_000_000):\n    f(i)\n",
    "3 M items of a generator": "def g():\n    for i in range(3_000_000):\n        yield i\nfor i in g():\n    pass\n",
    "2 M, a rare branch every 5,000": "for i in range(2_000_000):\n    x = i\n    if i % 5000 == 0:\n        x = 0\n",
    "sort 1 M by a lambda": "r = sorted(range(1_000_000), key=lambda i: -i)\n",
    "0.3 M exceptions caught": (
        "def f():\n    raise ValueError\nfor i in range(300_000):\n    try:\n        f()\n    except ValueError:\n        pass\n"
    ),
    "300 steps of 0.3 ms, 20 lines each": (
        "for i in range(300):\n" + "".join(f"    a{n} = sum(numbers)\n" for n in range(20))
    ),
}


def is_cell(filename: str) -> bool:
    """Return whether code belongs to the cell."""
    return filename == "<cell>"


def seconds(source: str, *, marked: bool) -> tuple[float, Marks | None]:
    """Run a cell; return its processor time, the beginning and end of the marks included."""
    names: dict[str, Any] = {"numbers": list(range(3_000))}
    began = time.thread_time()
    tree: Any = ast.parse(source)
    marks = start(is_cell) if marked else None
    if marks is not None and marks.transformer is not None:
        tree = ast.fix_missing_locations(marks.transformer.visit(tree))
    for statement in tree.body:
        exec(compile(ast.Module([statement], []), "<cell>", "exec"), names)  # noqa: S102 - the benchmark's own code
    columns = marks.stop() if marks is not None else None
    return time.thread_time() - began, columns


def spread(values: list[float]) -> str:
    """Write median and middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:6.3f} ({low:.3f} to {high:.3f})"


def loops() -> None:
    """Print what each kind of loop costs."""
    for name, source in LOOPS.items():
        ratios, count = [], 0
        for _ in range(ROUNDS):
            bare, _ = seconds(source, marked=False)
            ours, columns = seconds(source, marked=True)
            ratios.append(ours / bare)
            count = len(columns.place) if columns is not None else 0
        print(f"{name:36} ratio {spread(ratios)}  {bare:.2f} s, {count:,} marks", flush=True)


def memory() -> None:
    """Print how much memory a flood of lines takes at most."""
    tracemalloc.start()
    seconds("for i in range(300_000):\n    x = abs(i)\n", marked=True)
    print(f"{'memory at the peak of a flood':36} {tracemalloc.get_traced_memory()[1] / 2**20:.1f} MiB", flush=True)
    tracemalloc.stop()


def joining() -> None:
    """Print how long a million events take to join with a million marks."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 60_000_000, 1_000_000))
    places = tuple(((("<cell>", line, "<module>"),)) for line in range(50))
    place = rng.integers(-1, 50, 1_000_000).astype(np.int32)
    marks = Marks(times, np.ones(1_000_000, np.int64), place, places)
    events = np.sort(rng.integers(0, 60_000_000, 1_000_000))
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        attribute(marks, events)
        taken.append(time.perf_counter() - began)
    print(f"{'1 M events joined with 1 M marks':36} {min(taken):.3f} s", flush=True)


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d', time.gmtime())}")
    loops()
    memory()
    joining()
