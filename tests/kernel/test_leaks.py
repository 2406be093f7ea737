"""Leaks, promises and scratch cells in real kernels."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LEAK = "kept = []\nfor i in range(6):\n    kept.append(torch.ones(1024, 256))"
CLEAN = "for i in range(6):\n    z = torch.ones(1024, 256)"
LOAD = "import torch\n%load_ext gpumem_magic"


def test_a_leak_is_the_first_thing_said_and_a_plain_object(kernel):
    cell = kernel.run(f"%%gpumem\n{LEAK}")
    line = "line 4 `kept.append(torch.ones(1024, 256))` keeps 1.00 MiB more each iteration, 6 times: 6.00 MiB, "
    assert cell.report.startswith(f"gpumem: Leak: {line}held by `kept`. Peak 6.00 MiB")
    # Once, not as a note below as well.
    assert cell.report.count("keeps 1.00 MiB more") == 1
    text = "import gpumem_magic\n(leak,) = gpumem_magic.last.leaks\n(leak.bytes, leak.grown, leak.keepers[0].path)"
    assert kernel.run(text).result == "(6291456, 6, 'kept[0]')"
    held = "[(row.path, row.bytes) for row in gpumem_magic.last.devices[0].held]"
    assert kernel.run(held).result == "[('kept[0]', 6291456)]"


def test_a_training_loop_is_told_what_came_once(kernel):
    kernel.run(
        "from torch import nn\nmodel = nn.Linear(512, 512)\n"
        "optimizer = torch.optim.Adam(model.parameters())\nlosses = []"
    )
    cell = kernel.run(
        "%%gpumem --assert-no-leak\nfor i in range(5):\n    optimizer.zero_grad()\n"
        "    loss = model(torch.ones(8, 512)).pow(2).mean()\n    loss.backward()\n    optimizer.step()\n"
        "    losses.append(loss.item())"
    )
    assert cell.kinds == ["report"]
    assert "leak" not in cell.report.lower()
    # 512 × 512 weights and 512 biases, two moments of each, and a counter for both.
    assert "once: optimizer state: 2.00 MiB at line 6 `optimizer.step()` in the first iteration, 2.0 ×" in cell.report
    cell = kernel.run(
        "%%gpumem\nfor i in range(5):\n    loss = model(torch.ones(8, 512)).pow(2).mean()\n    losses.append(loss)"
    )
    assert "held by `losses` with" in cell.report
    assert "put there at line 4 `losses.append(loss)`" in cell.report


def test_the_first_step_is_forecast_once_there_are_gradients(kernel):
    kernel.run("from torch import nn\nwide = nn.Linear(1024, 1024)\nfirst = torch.optim.Adam(wide.parameters())")
    told = "the first step of Adam will add 8.01 MiB of state on cpu: 2.0 × the parameters that it trains, once"
    assert told not in kernel.run("%%gpumem\nloss = wide(torch.ones(8, 1024)).sum()").report
    assert told in kernel.run("%%gpumem\nloss.backward()").report
    assert told not in kernel.run("%%gpumem\nother = torch.ones(1024, 1024)").report
    stepped = kernel.run("%%gpumem\nfirst.step()").report
    assert "the first step of" not in stepped
    assert "Peak 16.0 MiB" in stepped or "8.01 MiB stayed" in stepped
    kernel.run("del wide, first, loss")


def test_an_optimizer_that_cannot_be_looked_at_costs_the_report_one_note(kernel):
    kernel.run("class Odd(torch.optim.Adam):\n    __dict__ = property(lambda self: 1 / 0)")
    kernel.run("wide = torch.nn.Linear(1024, 1024)\nodd = Odd(wide.parameters())")
    told = kernel.run("%%gpumem\nwide(torch.ones(8, 1024)).sum().backward()").report
    assert "models and optimizers were not looked at (ZeroDivisionError: division by zero)" in told
    assert "4.00 MiB stayed" in told
    kernel.run("del wide, odd, Odd")


@pytest.mark.parametrize("above", ["", "%%time\n"])
def test_a_broken_promise_fails_the_cell_once_and_shows_its_report_first(kernel, above):
    cell = kernel.run(f"{above}%%gpumem --assert-no-leak\n{LEAK}")
    assert cell.kinds[-2:] == ["report", "LeakError"]
    assert cell.traceback.startswith("LeakError: 6.00 MiB leaked: line")
    assert len(cell.traceback.splitlines()) == 1
    # The names are there all the same, and the next cell runs.
    assert kernel.run("len(kept)").result == "6"


def test_a_kept_promise_says_nothing(kernel):
    assert kernel.run(f"%%gpumem --assert-no-leak\n{CLEAN}").kinds == ["report"]
    assert kernel.run(f"%%gpumem --assert-no-leak 8MiB\n{LEAK}").kinds == ["report"]
    assert kernel.run("%gpumem --assert-no-leak y = torch.ones(4096)").kinds == ["report"]
    cell = kernel.run("%%gpumem --assert-no-leak\ny = torch.ones(4096)")
    assert "! assert-no-leak had nothing to judge: no loop of at least 3 iterations" in cell.report


def test_an_error_of_the_cells_own_comes_first(kernel):
    cell = kernel.run(f"%%gpumem --assert-no-leak\n{LEAK}\n1 / 0")
    assert cell.kinds == ["ZeroDivisionError", "report"]
    assert "takes bytes" in kernel.run("%%gpumem --assert-no-leak lots\n1").text("stderr")


def test_run_all_stops_at_a_broken_promise(tmp_path):
    cells = [LOAD, f"%%gpumem --assert-no-leak\n{LEAK}", "never = 1"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match=r"LeakError: 6\.00 MiB leaked"):
        client.execute()
    assert notebook.cells[2].execution_count is None


def test_runs_of_a_cell_that_each_leave_something(kernel):
    kernel.run("results = []")
    source = "%%gpumem --assert-no-leak\nresults.append(torch.ones(2048, 256))"
    assert [kernel.run(source).kinds[-1] for _ in range(3)] == ["report", "report", "LeakError"]
    cell = kernel.run(source)
    assert "each of the last 4 runs of this cell left 2.00 MiB of line 2" in cell.report
    clean = "%%gpumem --assert-no-leak\nresult = torch.ones(2048, 256)\nother = result * 2"
    assert {kernel.run(clean).kinds[-1] for _ in range(4)} == {"report"}


def test_a_scratch_cell(kernel):
    kernel.run("registry = {}\nold = torch.ones(10)")
    cell = kernel.run(
        "%%gpumem --scratch --keep b\na = torch.ones(1024, 256)\nb = torch.ones(512, 256)\n"
        "registry['x'] = torch.ones(256, 256)\nold = torch.ones(20)\na"
    )
    assert cell.kinds == ["result", "stdout", "report"]
    assert "scratch removed a\n" in cell.text()
    assert "what stayed is as the cell left it, before --scratch freed it" in cell.report
    assert "result: freed 1.00 MiB on cpu" in cell.text()
    assert "not freed: 512 KiB on cpu, held by b (--keep)\n" in cell.text()
    assert "not freed: 256 KiB on cpu, held by registry['x'] (a name from before the cell)\n" in cell.text()
    assert "left as the cell bound them, since they were there before: old" in cell.text()
    assert kernel.run(f"('a' in globals(), b.shape[0], old.shape[0], {cell.number} in Out)").result == (
        "(False, 512, 20, False)"
    )
    failed = kernel.run("%%gpumem --scratch\ndef f():\n    c = torch.ones(1024, 256)\n    raise ValueError('x')\nf()")
    assert failed.kinds == ["ValueError", "stdout", "report"]
    assert "error: freed 1.00 MiB on cpu" in failed.text()
    assert "--keep goes with --scratch" in kernel.run("%%gpumem --keep a\n1").text("stderr")


def test_what_a_scratch_cell_freed_did_not_stay_in_the_ledger(fresh_kernel):
    fresh_kernel.run(f"{LOAD}\nimport gpumem_magic\nregistry = {{}}")
    fresh_kernel.run("%%gpumem --scratch\na = torch.ones(1024, 256)\nregistry['x'] = torch.ones(256, 256)")
    stayed = "(entry,) = gpumem_magic.ledger().entries\n(entry.peak, entry.stayed)"
    assert fresh_kernel.run(stayed).result == "(1310720, 262144)"
    alive = "[(row.bytes, row.names) for device in gpumem_magic.ledger().alive for row in device.rows]"
    assert fresh_kernel.run(alive).result == "[(262144, (\"registry['x']\",))]"
    assert fresh_kernel.run("[device.unsure for device in gpumem_magic.ledger().alive]").result == "[0]"


@pytest.mark.parametrize("failure", ["RuntimeError('no')", "KeyboardInterrupt"])
def test_a_scratch_cells_names_go_although_its_report_fails(fresh_kernel, failure):
    fresh_kernel.run(f"{LOAD}\nimport gpumem_magic.report\nkept = gpumem_magic.report.build")
    fresh_kernel.run(f"def broken(*_, **__):\n    raise {failure}\ngpumem_magic.report.build = broken")
    cell = fresh_kernel.run("%%gpumem --scratch --assert-no-leak\na = torch.ones(1024, 256)\na")
    assert "scratch removed a\n" in cell.text()
    assert "result: freed 1.00 MiB on cpu" in cell.text()
    assert "who holds the rest is not known: there is no report of the cell" in cell.text()
    if failure == "KeyboardInterrupt":
        assert cell.kinds[-1] == "KeyboardInterrupt"
    else:
        assert (
            "the report failed (RuntimeError: no); the cell itself is not affected, and whether it leaks" in cell.text()
        )
    assert fresh_kernel.run("('a' in globals(), len(Out))").result == "(False, 0)"


def test_a_scratch_statement_takes_only_its_own_names(kernel):
    cell = kernel.run("%gpumem --scratch first = torch.ones(1024, 256)\nsecond = first[0]")
    assert "scratch removed first\n" in cell.text()
    assert "not freed: 1.00 MiB on cpu, held by second" in cell.text()
    assert kernel.run("('first' in globals(), second.shape[0])").result == "(False, 256)"


def test_who_names_the_cell_and_line_only_where_that_is_certain(fresh_kernel):
    fresh_kernel.run(LOAD)
    made = fresh_kernel.run("%%gpumem\nx = torch.ones(1024, 256)\ny = x * 2")
    fresh_kernel.run("z = torch.ones(1024, 128)\ny = None\ny = torch.ones(1024, 256)")
    rows = {line.split()[-1]: line for line in fresh_kernel.run("%gpumem_who").text().splitlines()}
    assert f"In [{made.number}] line 2" in rows["x"]
    # Whatever lies where the first `y` was, was made by something that nobody measured.
    assert "In [" not in rows["y"]
    assert "In [" not in rows["z"]


def test_the_ledger_as_an_object(fresh_kernel):
    fresh_kernel.run(LOAD)
    fresh_kernel.run("import gpumem_magic\n%gpumem_auto on")
    fresh_kernel.run("x = torch.ones(1024, 256)")
    fresh_kernel.run("x.mean().item()")
    text = "(row,) = gpumem_magic.ledger().alive[0].rows\n(row.bytes, row.names, row.last_used, row.entry.run)"
    assert fresh_kernel.run(text).result == "(1048576, ('x',), 'In [4]', 1)"


_WITHOUT_A_CELL = """
import torch
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumem_magic")
shell.user_ns["torch"] = torch
for end in ("1 / 0", ""):
    try:
        shell.run_cell_magic("gpumem", "--quiet --assert-no-leak", {leak!r} + chr(10) + end)
    except Exception as error:
        print(type(error).__name__)
"""


def test_an_error_of_the_users_own_passes_before_a_broken_promise():
    source = _WITHOUT_A_CELL.format(leak=LEAK)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-2:] == ["ZeroDivisionError", "LeakError"]
