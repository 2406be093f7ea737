"""Holders that only a real kernel has: where IPython, its debugger and its event loop really keep things."""

from __future__ import annotations

import pytest

DEBUG = """
import builtins
_commands = ['p acts.shape', 'q']
builtins.input = lambda prompt='': _commands.pop(0)
{how}
"""
TRAIN = "def train():\n    acts = torch.ones({count})\n    raise ValueError('x')\ntrain()"


def who(kernel):
    return kernel.run("%gpumem_who --device cpu --budget 20").text()


def test_the_debugger_keeps_what_it_showed_after_the_next_error(kernel):
    kernel.run(TRAIN.format(count=200_000))
    shown = kernel.run(DEBUG.format(how="%debug")).text()
    assert "torch.Size([200000])" in shown
    assert "last error: ValueError in train(), local `acts` (also debugger, local `acts`)" in who(kernel)
    kernel.run("1 / 0")
    text = who(kernel)
    assert "781 KiB held by the debugger: %gpumem_free gives it back" in text
    assert "debugger, local `acts`" in text
    assert "last error: 781 KiB of tensors on cpu" in kernel.run("%gpumem_free").text()
    assert "acts" not in who(kernel)


def test_a_debugger_left_in_the_cells_own_frame_keeps_what_the_cell_ended_with(kernel):
    kernel.run(TRAIN.format(count=201_000))
    kernel.run(DEBUG.format(how="%debug").replace("p acts.shape", "up"))
    kernel.run("1 / 0")
    text = who(kernel)
    assert "785 KiB held by the debugger: %gpumem_free gives it back" in text
    assert "debugger: ValueError in train(), local `acts`" in text
    kernel.run("%gpumem_free")
    assert "acts" not in who(kernel)


def test_the_notebooks_own_machinery_is_no_way_to_what_others_keep(kernel):
    kernel.run(
        """
import asyncio, logging, threading
class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
    def emit(self, record):
        self.records.append(record)
logging.getLogger("run").addHandler(Keep())
logging.getLogger("run").warning("%s", torch.ones(70_001))
ended = threading.Event()
asyncio.get_running_loop().call_later(900, print, torch.ones(70_002))
thread = threading.Thread(target=lambda batch: ended.wait(60), args=[torch.ones(70_003)], name="mine", daemon=True)
thread.start()
del thread
"""
    )
    kernel.run("1 / 0")
    text = who(kernel)
    assert "held by the last error" not in text
    assert "asyncio loop._scheduled[0]._args[0]" in text
    assert "loggerDict['run'].handlers[0].records[0].args[0]" in text
    assert "on thread mine, local `batch`" in text
    assert [line for line in text.splitlines() if "running in" in line and "thread mine" not in line] == []
    kernel.run("ended.set(); logging.getLogger('run').handlers.clear()")
    kernel.run("[one.cancel() for one in asyncio.get_running_loop()._scheduled if one._callback is print];")


def test_what_is_shown_last_names_its_error_also_after_one_that_is_shown_in_another_way(kernel):
    kernel.run(TRAIN.format(count=230_000))
    kernel.run("x = = 1")
    text = who(kernel)
    assert "898 KiB held by the last error" in text
    assert "last error: ValueError in train(), local `acts`" in text
    kernel.run("%gpumem_free")


@pytest.mark.parametrize("line", ["%%gpumem", "%gpumem_auto on"])
def test_what_measures_the_cell_is_none_of_the_users_tensors(fresh_kernel, line):
    fresh_kernel.run("import torch\n%load_ext gpumem_magic")
    if line.startswith("%%"):
        text = fresh_kernel.run(f"{line}\nx = torch.ones(70_000)\n%gpumem_who").text()
    else:
        fresh_kernel.run(line)
        fresh_kernel.run("x = torch.ones(70_000)")
        text = who(fresh_kernel)
    assert "1 live tensor storage holds 273 KiB on cpu" in text


def test_free_says_what_the_output_history_keeps(fresh_kernel):
    fresh_kernel.run("import torch\n%load_ext gpumem_magic")
    fresh_kernel.run("torch.ones(262_144), torch.ones(262_144)")
    told = "left in Out and _, as it may be wanted: 2.00 MiB on cpu; %gpumem_free --out gives that back too"
    assert told in fresh_kernel.run("%gpumem_free").text()
    assert "output history: 2.00 MiB of tensors on cpu" in fresh_kernel.run("%gpumem_free --out").text()
    assert "left in" not in fresh_kernel.run("%gpumem_free").text()


@pytest.mark.parametrize("how", ["import pdb; pdb.pm()", "from IPython.core.debugger import Pdb; Pdb().set_trace()"])
def test_a_debugger_that_was_left_keeps_nothing_of_its_own(kernel, how):
    kernel.run(TRAIN.format(count=210_000))
    kernel.run(DEBUG.format(how=how))
    kernel.run("1 / 0")
    kernel.run("%gpumem_free")
    assert "acts" not in who(kernel)


def test_inside_the_debugger_its_frames_are_named_as_the_debuggers(kernel):
    code = """
import builtins
_commands = ["get_ipython().run_line_magic('gpumem_who', '--budget 20')", 'q']
builtins.input = lambda prompt='': _commands.pop(0)
from IPython.core.debugger import Pdb
def step():
    acts = torch.ones(220_000)
    Pdb().set_trace()
    del acts
step()
"""
    text = kernel.run(code).text()
    assert "in step(), local `acts`" in text
    assert "interaction()" not in text
    kernel.run("%gpumem_free")
    assert "acts" not in who(kernel)


def test_a_handled_error_is_named_while_it_is_handled(kernel):
    code = """
def fail():
    acts = torch.ones(230_000)
    raise KeyError('missing')
try:
    fail()
except KeyError:
    get_ipython().run_line_magic('gpumem_who', '--budget 20')
"""
    assert "error being handled: KeyError in fail(), local `acts`" in kernel.run(code).text()
    kernel.run("%gpumem_free")


def test_a_task_that_waits_on_the_kernels_loop(kernel):
    kernel.run(
        "import asyncio\nasync def serve():\n    buffer = torch.ones(240_000)\n    await asyncio.sleep(3600)\n"
        "asyncio.ensure_future(serve()).set_name('server'); None\nawait asyncio.sleep(0)"
    )
    assert "asyncio task server (coroutine serve, local `buffer`)" in who(kernel)
    kernel.run("[task.cancel() for task in asyncio.all_tasks() if task.get_name() == 'server']; await asyncio.sleep(0)")
    assert "buffer" not in who(kernel)


def test_a_thread_and_a_pool(kernel):
    kernel.run(
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\ngo = threading.Event()\n"
        "def work():\n    batch = torch.ones(250_000)\n    ready.set()\n    go.wait()\n"
        "ready = threading.Event()\npool = ThreadPoolExecutor(1, 'worker')\nfuture = pool.submit(work)\nready.wait()\n"
        "done = ThreadPoolExecutor(1).submit(torch.ones, 260_000)\n_ = done.result().numel()"
    )
    text = who(kernel)
    assert "running in work() on thread worker_0, local `batch`" in text
    assert "done._result" in text
    kernel.run("go.set(); future.result(); del done")
    assert "batch" not in who(kernel)


def test_out_of_memory_on_the_cpu_because_of_what_out_keeps_and_the_way_back(fresh_kernel):
    kernel = fresh_kernel
    kernel.run("import torch, resource, psutil, gc\n%load_ext gpumem_magic\ntorch.ones(8)")
    # What the first report loads might not fit later, and what does not is told in a line of its own.
    assert kernel.run("%%gpumem\ntorch.ones(1 << 20);").kinds == ["report"]
    kernel.run("torch.zeros(150 << 20)")  # 600 MiB, kept by Out
    # Virtual memory: torch takes and gives back blocks of this size by mapping them. Threads that only start later map
    # 64 MiB and more each: without room for some, looking for holders may find none.
    kernel.run(
        "limit = psutil.Process().memory_info().vms + (250 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))"
    )
    asks = "%%gpumem\nx = torch.empty(75 << 20)"  # 300 MiB
    cell = kernel.run(asks)
    assert cell.kinds == ["RuntimeError", "report"], cell.text()
    first = cell.report.splitlines()[0]
    assert "Out of memory at line 2 `x = torch.empty(75 << 20)`: it asked for 300 MiB" in first
    assert "was kept by accident, by the output history (Out[" in first
    assert "do: run `%gpumem_free --out` in a cell of its own, then this cell again" in cell.report
    assert "output history: 600 MiB of tensors on cpu" in kernel.run("%gpumem_free --out").text()
    assert kernel.run(asks).kinds == ["report"]


def test_old_variables_and_a_name_bound_anew_are_named_on_the_cpu(kernel):
    kernel.run("%gpumem_free --out")
    text = (
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot "
        "allocate memory)"
    )
    kernel.run(
        "class Model:\n    def __init__(self, fail=False):\n        self.w = torch.ones(70 << 20)\n        if fail:\n"
        f"            raise RuntimeError({text!r})"
    )
    kernel.run("model = Model()")
    cell = kernel.run("%%gpumem\nmodel = Model(fail=True)")
    assert "kept by accident: 280 MiB by the old value of `model`" in cell.report
    kernel.run("del model\nforgotten = torch.ones(72 << 20)")
    for number in range(12):
        kernel.run(f"y = {number}")
    cell = kernel.run(f"%%gpumem\nraise RuntimeError({text!r})")
    assert "288 MiB by old variables that this cell does not use: `forgotten`" in cell.report
    kernel.run("del forgotten")


def test_a_look_that_was_cut_short_is_said_under_the_report(kernel):
    kernel.run(
        "from gpumem_magic.magics import measurement as _how\n_glance, _how._GLANCE_SECONDS = _how._GLANCE_SECONDS, 0.0"
    )
    cell = kernel.run("%%gpumem\nkept = torch.ones(300_000)")
    kernel.run("_how._GLANCE_SECONDS = _glance")
    told = "who holds what stayed: stopped after 0 s: holders found so far are right, others may be missing"
    assert f"{told}; %gpumem_who --budget 10 looks longer" in cell.report
    assert "who holds what stayed" not in kernel.run("%%gpumem\nkept = torch.ones(300_000)").report


FAILING = """\
class Failing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.big = torch.nn.Linear(1024, 600)
    def forward(self, x):
        raise ValueError('a bad batch')"""


def test_a_run_that_begins_beside_its_former_runs_model_says_so(kernel):
    kernel.run(FAILING)
    cell = "%%gpumem\nmodel = Failing()\nmodel(torch.ones(1024))"
    assert "when this run began" not in kernel.run(cell).report
    told = (
        "2.35 MiB of this cell's previous run were still alive on cpu via last error: ValueError in forward(), local "
    )
    again = kernel.run(cell)
    assert f"when this run began, {told}`self` (class Failing, " in again.report
    assert "instances alive now): %gpumem_free before the run gives it back" in again.report
    # Another cell is told which run it was; and what a variable still reaches is no error's doing.
    number = int(kernel.run("len(In) - 2").result)
    other = kernel.run("%%gpumem\nmodel = torch.ones(300_000)").report
    assert f"2.35 MiB that In [{number}] made were still alive on cpu via last error: " in other
    kernel.run("kept = Failing()\nkept(torch.ones(1024))")
    assert "when this run began" not in kernel.run("%%gpumem\nother = torch.ones(300_000)").report
    kernel.run("%gpumem_free")
    kernel.run("del kept")


def test_a_checkpoint_that_stays_beside_its_model_is_told(kernel):
    kernel.run("net = torch.nn.Linear(1024, 700)")
    cell = kernel.run("%%gpumem\nckpt = {'model': {name: value.clone() for name, value in net.state_dict().items()}}")
    told = (
        "note: `ckpt` duplicates 100% of `net`'s parameters on cpu (same shapes), 2.74 MiB: if it is a checkpoint that"
    )
    assert f"{told} was loaded, del ckpt" in cell.report
    assert "duplicates" not in kernel.run("%%gpumem\nother = torch.ones(300_000)").report
    kernel.run("del net, ckpt, other")


ANSWERS = """\
import builtins, pdb
_input, answers = builtins.input, ["get_ipython().run_line_magic('gpumem_who', '')", 'q']
builtins.input = lambda prompt='': answers.pop(0)
"""


def test_a_post_mortem_debugger_is_named_while_it_is_open(kernel):
    kernel.run("def train():\n    activations = torch.ones(310_000)\n    raise ValueError('a bad batch')")
    kernel.run("train()")
    inside = kernel.run(f"{ANSWERS}pdb.pm()\nbuiltins.input = _input").text()
    assert "last error: ValueError in train(), local `activations` (also debugger, local `activations`)" in inside
    kernel.run("1 / 0")
    freed = kernel.run("%gpumem_free").text()
    assert "1.18 MiB of tensors on cpu" in freed
    assert "activations" not in kernel.run("%gpumem_who").text()


def test_a_function_that_is_being_debugged_uses_what_it_holds(kernel):
    kernel.run("def train():\n    activations = torch.ones(310_000)\n    pdb.set_trace()\n    return 1")
    inside = kernel.run(ANSWERS.replace("'q'", "'c'") + "train()\nbuiltins.input = _input").text()
    assert "running in train(), local `activations`" in inside
    assert "held by the debugger" not in inside
    kernel.run("%gpumem_free")
    assert "activations" not in kernel.run("%gpumem_who").text()
