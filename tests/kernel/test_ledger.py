"""%gpumem_auto and %gpumem_ledger in real kernels."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LOAD = "%load_ext gpumem_magic\nimport torch"
IPYKERNEL = tuple(int(part) for part in version("ipykernel").split(".")[:2])
MIB = "torch.ones(1024, 256)"


@pytest.fixture
def auto(kernel):
    kernel.run("%gpumem_auto on")
    yield kernel
    kernel.run("%gpumem_auto off")


def test_a_line_under_cells_that_allocate_and_nothing_under_others(auto):
    cell = auto.run(f"a = {MIB}\nb = torch.ones(2048, 256)\ndel b\n'value'")
    assert cell.kinds == ["result", "report"]
    assert cell.result == "'value'"
    assert cell.report == ("gpumem: peak 3.00 MiB at line 2 `b = torch.ones(2048, 256)`, stayed 1.00 MiB")
    for quiet in ("x = 1 + 1", "x", "print('hello')", "# nothing", "def f():\n    pass", "%pwd", "a.shape"):
        assert "report" not in auto.run(quiet).kinds, quiet
    # Quiet cells do not take its place.
    assert auto.run("import gpumem_magic\ngpumem_magic.last.title").result == f"'In [{cell.number}]'"


def test_an_explicit_report_stays_a_full_one(auto):
    cell = auto.run(f"%%gpumem\nc = {MIB}")
    assert "all of it stayed" in cell.report
    assert "\n" in cell.report
    nested = auto.run(f"%%time\n%%gpumem\nd = {MIB}")
    assert nested.kinds[-1] == "report"
    assert "\n" in nested.report
    statement = auto.run(f"%gpumem e = {MIB}")
    assert "\n" in statement.report


def test_errors_awaits_and_other_magics_are_the_cells_own(auto):
    cell = auto.run(f"kept = {MIB}\n\n1 / 0")
    assert cell.kinds == ["ZeroDivisionError", "report"]
    assert "----> 3 1 / 0" in cell.traceback
    assert "gpumem_magic" not in cell.traceback
    assert "stayed 1.00 MiB" in cell.report
    awaited = auto.run(f"import asyncio\nw = {MIB}\nawait asyncio.sleep(0, result='waited')")
    assert awaited.result == "'waited'"
    assert awaited.kinds == ["result", "report"]
    timed = auto.run(f"%%time\nt = {MIB}")
    assert timed.kinds == ["stdout", "report"]
    assert "at line 2 `t = torch" in timed.report
    assert auto.run("x = )").kinds == ["SyntaxError"]
    assert auto.run("%%gpumem --nonsense\n1").kinds[-1] != "report"


def test_an_interrupted_cell_gets_its_line(auto, there):
    cell = auto.run(f"import time\nheld = {MIB}\n{there}\ntime.sleep(600)", during=auto.press_stop_there)
    assert cell.kinds == ["KeyboardInterrupt", "report"]
    assert "stayed 1.00 MiB" in cell.report


def test_off_is_off_and_status_says_so(kernel):
    assert "only cells under %%gpumem" in kernel.run("%gpumem_auto").text()
    assert "every cell is measured" in kernel.run("%gpumem_auto on").text()
    assert "every cell is measured" in kernel.run("%gpumem_auto status").text()
    assert "only cells" in kernel.run("%gpumem_auto off").text()
    assert kernel.run(f"z = {MIB}").kinds == []
    assert "neither on, off nor status" in kernel.run("%gpumem_auto maybe").text("stderr")


def test_the_ledger_tells_runs_of_a_cell_apart_and_who_holds_what(fresh_kernel):
    fresh_kernel.run(LOAD)
    assert "empty" in fresh_kernel.run("%gpumem_ledger").text()
    # Nor is there anything to compare, which says what to do and names nothing that was not typed.
    told = fresh_kernel.run("%gpumem_diff").text("stderr")
    assert "so far there is none: run a cell with %%gpumem on its first line" in told
    fresh_kernel.run("%gpumem_auto on")
    source = "rows = []\nfor _ in range(4):\n    rows.append(torch.ones(1024, 256))"
    first = fresh_kernel.run(source)
    second = fresh_kernel.run(source)
    third = fresh_kernel.run("emb = torch.ones(2048, 1024)\nemb.mean().item()")
    text = fresh_kernel.run("%gpumem_ledger").text()
    alive, runs = text.split("Runs, the highest peak first")
    assert "Alive on cpu, by the cell that made it: 12.0 MiB" in alive
    assert f"8.00 MiB  67%  In [{third.number}]   emb (last used in In [{third.number}])" in alive
    assert f"4.00 MiB  33%  In [{second.number}]   rows[" in alive
    assert f"In [{first.number}]" not in alive.split("made by measured cells")[0]
    assert "(run 1 of 2)" in next(line for line in runs.splitlines() if f"In [{first.number}]" in line)
    assert "(run 2 of 2)" in next(line for line in runs.splitlines() if f"In [{second.number}]" in line)
    assert "run" not in next(line for line in runs.splitlines() if f"In [{third.number}]" in line)
    order = [line.split("`")[0].split()[-1] for line in runs.splitlines()[2:5]]
    assert order == [f"[{cell.number}]" for cell in (third, second, first)]
    newest = fresh_kernel.run("%gpumem_ledger --newest --top 1").text()
    assert f"In [{third.number}]" in newest.split("Runs, the newest first")[1].splitlines()[2]
    assert "2 more" in newest
    assert "empty" in fresh_kernel.run("%gpumem_ledger --clear").text()


def test_unloading_ends_it(fresh_kernel):
    state = (
        "[{k: len(v) for k, v in get_ipython().events.callbacks.items()}, "
        "sorted(n for kind in get_ipython().magics_manager.magics.values() for n in kind if 'gpumem' in n)]"
    )
    fresh_kernel.run("import torch")
    before = fresh_kernel.run(state).result
    fresh_kernel.run("%load_ext gpumem_magic\n%gpumem_auto on")
    assert fresh_kernel.run(f"a = {MIB}").kinds == ["report"]
    assert fresh_kernel.run(f"b = {MIB}\n%unload_ext gpumem_magic").kinds == ["report"]
    assert fresh_kernel.run(f"c = {MIB}").kinds == []
    assert fresh_kernel.run(state).result == before


def test_cell_magics_run_as_ever(auto):
    assert auto.run("%%capture out\nprint('held back')\nc = torch.ones(1024, 256)").kinds == ["report"]
    assert "held back" in auto.run("out.stdout").result
    timed = auto.run("%%timeit -n 3 -r 2\nt = torch.ones(1024, 256)")
    assert timed.kinds == ["stdout", "report"]
    assert auto.run("%%bash\necho from the shell").text() == "from the shell\n"
    assert auto.run("%%writefile note.txt\nhello").kinds == ["stdout"]


def test_run_all_stops_at_an_error(tmp_path):
    cells = [f"{LOAD}\n%gpumem_auto on", "raise ValueError('stop here')", "never = 1"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match="stop here"):
        client.execute()
    assert notebook.cells[2].execution_count is None


@pytest.mark.skipif(IPYKERNEL < (6, 18), reason="ipykernel's comms are another kind there")
def test_a_front_end_is_told(new_kernel, tmp_path):
    there = "from comm import get_comm_manager\n'gpumem_magic' in get_comm_manager().comms"
    running = new_kernel(tmp_path)
    running.start(JPY_SESSION_NAME=str(tmp_path / "a.ipynb"))
    try:
        assert running.run(there).result == "False"
        pushed = Pushed(running)
        running.run(f"{LOAD}\n%gpumem_auto on")
        assert pushed.last["cells"] == []
        running.run(f"a = {MIB}")
        (cell,) = pushed.last["cells"]
        assert cell.pop("seconds") > 0
        assert cell == {
            **dict.fromkeys(("cellId", "freed", "leak")),
            "title": "In [3]",
            "executionCount": 3,
            "outcome": "ok",
            "line": f"a = {MIB}",
            "peak": 1 << 20,
            "stayed": 1 << 20,
            "run": 1,
            "runs": 1,
        }
        (device,) = pushed.last["alive"]
        assert device == {
            "key": "cpu",
            "total": None,
            "unsure": 0,
            "rows": [
                {
                    "cellId": None,
                    "title": "In [3]",
                    "line": f"a = {MIB}",
                    "executionCount": 3,
                    "bytes": 1 << 20,
                    "blocks": 1,
                    "names": ["a"],
                    "lastUsed": "In [3]",
                }
            ],
        }
        assert pushed.last["devices"] == []
        assert running.run(there).result == "True"
        running.run("%unload_ext gpumem_magic")
        assert pushed.last["cells"] == []
        assert running.run(there).result == "False"
        running.run("%load_ext gpumem_magic")
        assert running.run(there).result == "True"
    finally:
        running.stop()


def test_a_headless_kernel_has_no_comm(kernel):
    assert kernel.run("list(get_ipython().kernel.comm_manager.comms)").result == "[]"


class Pushed:
    """What the kernel sent on the panel's comm."""

    def __init__(self, kernel):
        self.messages: list[dict[str, Any]] = []
        original = kernel.client.handle_comm_msg

        def handle(outs, message, index):
            if message["content"].get("comm_id") == "gpumem_magic" and message["msg_type"] == "comm_msg":
                self.messages.append(message["content"]["data"])
            return original(outs, message, index)

        kernel.client.handle_comm_msg = handle

    @property
    def last(self):
        return self.messages[-1]
