"""A measured cell shows what it shows without the magic, and a report behind it: the same cells in two kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CELLS = r'''
import asyncio, sys, warnings
from IPython.display import HTML, clear_output, display
async def seven(): return 7
1 + 1
####
1 + 1;
####
print("a"); sys.stderr.write("err\n"); sys.stdout.write("out")
####
display(HTML("<b>x</b>")); print("mid"); display({"text/plain": "plain"}, raw=True)
####
print("one"); clear_output(); print("two")
####
await seven()
####
[await seven() for _ in range(3)]
####
1 / 0
####
def outer():
    def inner(): raise ValueError("deep")
    inner()
outer()
####
try:
    1 / 0
except ZeroDivisionError:
    raise RuntimeError("chained")
####
raise KeyboardInterrupt
####
raise SystemExit("bye")
####
%time 3 + 4
####
!echo hello
####
captured = !echo captured
captured
####
%%time
5
####
%%capture kept
print("x"); 3
####
kept.stdout, len(kept.outputs)
####
%%bash
echo from bash
####
%%html
<i>hi</i>
####
_, __
####
Out.get(1), len(In)
####
%xmode Minimal
####
1 / 0
####
%xmode Context
####
class Shown:
    def __repr__(self): return "<shown>"
Shown()
####
"""only a string"""
####
if True:
    z = 4
    z
####
get_ipython().run_cell("print('inner'); 6").result
####
exec("made = 2"); made
####
%who_ls function
####
warnings.warn("careful")
####
    indented = 1; indented
####
>>> 3 + 4
####
"""
%%gpumem
"""
####
# only a comment
####
del captured
captured
####
import threading
thread = threading.Thread(target=lambda: print("in a thread")); thread.start(); thread.join()
####
import inspect
def source(): return 42
inspect.getsource(source)
####
from dataclasses import dataclass
@dataclass
class Point: x: int = 1
Point()
####
import torch
ones = torch.ones(3); ones
####
torch.ones(3) @ torch.ones(4)
####
%%markdown
# title
'''.strip("\n").split("\n####\n")  # fmt: skip

# What differs from run to run: places, times, addresses.
RUNS = re.compile(r"0x[0-9a-f]+|/tmp/ipykernel_\d+/\d+\.py:\d+|\d\S* ?[nuμµm]?s\b", re.IGNORECASE)


def shown(cell: Any) -> list[Any]:
    """What a cell showed, as far as two runs can agree on it; reports are left out."""
    found: list[Any] = []
    for output, kind in zip(cell.outputs, cell.kinds, strict=True):
        if output.output_type == "stream":
            found.append((kind, RUNS.sub("~", output.text)))
        elif output.output_type == "error":
            found.append((kind, output.evalue))
        elif kind != "report":
            found.append((kind, sorted(output.data), RUNS.sub("~", output.data.get("text/plain", ""))))
    return found


def test_each_cell_shows_the_same_and_one_report_last(new_kernel: Callable[..., Any], tmp_path):
    kernels = []
    for name in ("bare", "measured"):
        (tmp_path / name).mkdir()
        kernels.append(new_kernel(tmp_path / name))
    bare, measured = kernels
    try:
        for kernel in kernels:
            kernel.start()
            kernel.run("%load_ext gpumem_magic")
        for source in CELLS:
            without, with_magic = bare.run(source), measured.run(f"%%gpumem\n{source}")
            assert shown(with_magic) == shown(without), source
            assert with_magic.kinds.count("report") == 1, source
            assert with_magic.kinds[-1] == "report", source
            assert with_magic.number == without.number
    finally:
        for kernel in kernels:
            kernel.stop()
