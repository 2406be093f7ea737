"""Loading, unloading, interrupts, errors that stop a run, long cells, and failures of our own."""

from __future__ import annotations

import IPython
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LOAD = "%load_ext gpumem_magic"


def test_loading_imports_neither_torch_nor_numpy(fresh_kernel):
    cell = fresh_kernel.run(f"import sys\n{LOAD}\n[m for m in ('torch', 'numpy', 'pynvml') if m in sys.modules]")
    assert cell.result == "[]"
    plain = fresh_kernel.run("%%gpumem\nx = 1")
    assert plain.kinds == ["report"]
    assert "torch" in plain.report
    assert fresh_kernel.run("'torch' in sys.modules").result == "False"


def test_a_cell_that_imports_torch_is_recorded_from_there(fresh_kernel):
    fresh_kernel.run(LOAD)
    cell = fresh_kernel.run("%%gpumem\nimport torch\na = torch.ones(1024, 1024)")
    assert "4.00 MiB at line 3 `a = torch.ones(1024, 1024)`" in cell.report
    kept = fresh_kernel.run(
        "import sys\n[type(f).__name__ for f in sys.meta_path if 'gpumem' in type(f).__module__], "
        "type(torch.__spec__.loader).__module__.startswith('gpumem')"
    )
    assert kept.result == "([], False)"


def test_unloading_leaves_nothing_and_reloading_doubles_nothing(fresh_kernel):
    state = (
        "ip = get_ipython()\n"
        "[len(ip.input_transformers_cleanup), {k: len(v) for k, v in ip.events.callbacks.items()}, "
        "sorted(n for kind in ip.magics_manager.magics.values() for n in kind if 'gpumem' in n), "
        "len(ip.ast_transformers)]"
    )
    # Showing a report loads ipywidgets, whose own hooks stay.
    fresh_kernel.run("import ipywidgets, torch")
    before = fresh_kernel.run(state).result
    fresh_kernel.run(LOAD)
    assert fresh_kernel.run(state).result != before
    fresh_kernel.run("%reload_ext gpumem_magic")
    assert fresh_kernel.run("%%gpumem\n1").kinds == ["result", "report"]
    fresh_kernel.run("%unload_ext gpumem_magic")
    assert fresh_kernel.run(state).result == before
    assert "not found" in fresh_kernel.run("%%gpumem\n1").text("stderr")
    fresh_kernel.run(LOAD)
    assert fresh_kernel.run("%%gpumem\n1").kinds == ["result", "report"]


def test_reloading_inside_a_measured_cell(kernel):
    cell = kernel.run("%%gpumem\nx = torch.ones(1024)\n%reload_ext gpumem_magic\nx.numel()")
    assert cell.kinds == ["result", "report"]
    assert kernel.run("%%gpumem\ny = torch.ones(1024)").kinds == ["report"]
    callbacks = "[len(v) for k, v in get_ipython().events.callbacks.items() if k.endswith('run_cell')]"
    before = kernel.run(callbacks).result
    cell = kernel.run("%%gpumem\nx = torch.ones(1024)\n%unload_ext gpumem_magic\nx.numel()")
    assert cell.kinds == ["result", "report"]
    kernel.run(LOAD)
    assert kernel.run(callbacks).result == before


def test_lazy_loading_by_configuration(fresh_kernel):
    fresh_kernel.run("get_ipython().magics_manager.lazy_magics['gpumem'] = 'gpumem_magic'")
    first = fresh_kernel.run("%%gpumem\nx = 20 + 22\nx")
    assert first.result == "42"
    assert first.kinds.count("report") == 1
    assert fresh_kernel.run("%%gpumem\nx").kinds == ["result", "report"]


def test_run_all_stops_at_an_error_in_a_measured_cell(tmp_path):
    # In IPython 7, %%time swallows the error by itself.
    under_time = ("%%gpumem\n%%time", "%%time\n%%gpumem") if IPython.version_info >= (8,) else ()
    for magics in ("%%gpumem", *under_time):
        cells = [LOAD, f"{magics}\nraise ValueError('stop here')", "never = 1"]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
        with pytest.raises(CellExecutionError, match="stop here"):
            client.execute()
        assert notebook.cells[1].execution_count == 2
        assert sum(output.output_type == "error" for output in notebook.cells[1].outputs) == 1
        assert notebook.cells[2].execution_count is None


def test_an_interrupted_cell_reports(kernel, there):
    source = f"%%gpumem\nimport time\nheld = torch.ones(1024, 1024)\n{there}\ntime.sleep(600)"
    cell = kernel.run(source, during=kernel.press_stop_there)
    assert cell.kinds == ["KeyboardInterrupt", "report"]
    assert "4.00 MiB" in cell.report
    assert "nterrupted" in cell.report
    assert kernel.run("%%gpumem\n1").kinds == ["result", "report"]


def test_an_interrupted_await_reports(kernel, there):
    source = (
        f"%%gpumem\nimport asyncio\nheld = torch.ones(512, 1024)\n{there}\n"
        "for _ in range(6000):\n    await asyncio.sleep(0.1)"
    )
    cell = kernel.run(source, during=kernel.press_stop_there)
    assert cell.kinds[-1] == "report"
    assert "2.00 MiB" in cell.report
    assert kernel.run("%%gpumem\n1").kinds == ["result", "report"]


def test_a_syntax_error_is_the_cells_alone(kernel):
    cell = kernel.run("%%gpumem\nx = (")
    assert len(cell.kinds) == 1
    assert kernel.run("%%gpumem\n1").kinds == ["result", "report"]


def test_quiet_and_last(kernel):
    assert kernel.run("%%gpumem --quiet --label 'silent обучение' # why\na = torch.ones(1024)").kinds == []
    cell = kernel.run("import gpumem_magic\nprint(gpumem_magic.last.title, gpumem_magic.last.sentence)")
    assert cell.text().startswith("silent обучение ")
    assert "4.00 KiB" in cell.text()


def test_the_last_report_keeps_no_tensor_alive(kernel):
    kernel.run(
        "%%gpumem\nimport weakref\na = torch.ones(1024)\nwatch = weakref.ref(a.untyped_storage())\n"
        "def fail(t):\n    raise ValueError('x')\nfail(a)"
    )
    kernel.run(
        "import gc, sys\ndel a\nfor n in ('last_value', 'last_traceback', 'last_exc'):\n    sys.__dict__.pop(n, None)\n"
        "get_ipython().InteractiveTB.tb = None"
    )
    # Only now has IPython let go of the failed cell's own result.
    assert kernel.run("gc.collect()\nwatch() is None").result == "True"


def test_export_writes_beside_the_notebook(kernel):
    cell = kernel.run("%%gpumem --export step.html\na = torch.ones(1024)")
    assert cell.kinds == ["stdout", "report"]
    written = kernel.run("from pathlib import Path\nPath('step.html').read_text()[:15].lower()")
    assert written.result == "'<!doctype html>'"
    kernel.run("Path('mine.html').write_text('my own page');")
    cell = kernel.run("%%gpumem --export mine.html\nb = torch.ones(1024)\nb.numel()")
    assert cell.result == "1024"
    assert cell.kinds == ["result", "stdout", "report"]
    assert "not a gpumem report" in cell.text()
    assert kernel.run("Path('mine.html').read_text()").result == "'my own page'"


def test_a_profiler_that_runs_already_is_left_alone(kernel):
    cell = kernel.run(
        "from torch.profiler import profile\nmine = profile(profile_memory=True)\nmine.start()\nz = torch.ones(8) + 1"
    )
    cell = kernel.run("%%gpumem\ny = torch.ones(1024) + 1")
    assert "another profiler is already running" in cell.report
    counted = kernel.run("mine.stop()\nsum(e.count for e in mine.key_averages() if e.key == 'aten::add')")
    assert counted.result == "2"


def test_a_profiler_that_the_cell_starts_gets_its_events(kernel):
    cell = kernel.run(
        "%%gpumem\nbefore = torch.ones(1024, 1024)\nwith profile(profile_memory=True) as p:\n"
        "    during = torch.ones(2048, 1024) + 1\n"
        "sum(e.count for e in p.key_averages() if e.key == 'aten::add')"
    )
    assert cell.result == "1"
    assert "4.00 MiB" in cell.report
    assert "profiler of its own" in cell.report
    assert kernel.run("torch.autograd.profiler._enable_profiler.__module__").result == "'torch._C._autograd'"


def test_more_events_than_entries_is_said(kernel):
    cell = kernel.run("%%gpumem --max-entries 100\nfor _ in range(500):\n    t = torch.ones(16)")
    assert "first 100 events" in cell.report
    assert "--max-entries 200" in cell.report


def test_our_own_failure_is_one_line(fresh_kernel):
    fresh_kernel.run(f"import torch\n{LOAD}\nimport gpumem_magic.report as r\nr.analyse = None")
    cell = fresh_kernel.run("%%gpumem\n42")
    assert cell.result == "42"
    assert cell.kinds == ["result", "stdout"]
    assert cell.text().startswith("gpumem: the report failed")
    assert len(cell.text().splitlines()) == 1


def test_live_line_of_a_long_cell_is_emptied_and_the_report_comes_last(new_kernel, tmp_path):
    kernel = new_kernel(tmp_path)
    kernel.start(JPY_SESSION_NAME=str(tmp_path / "n.ipynb"))
    try:
        kernel.run(f"import torch, time\n{LOAD}")
        # The cell goes on when the line is there: threads may start late.
        kernel.run(
            "from gpumem_magic.magics.live import _NotebookLine as line\nshown, show = [], line.show\n"
            "def seen(self, text):\n    show(self, text)\n    shown.append(text)\nline.show = seen\n"
            "def wait():\n    shown.clear()\n    while not shown:\n        time.sleep(0.05)"
        )
        cell = kernel.run("%%gpumem\na = torch.ones(1024)\nprint('begin', flush=True)\nwait()\nprint('end')")
        assert cell.kinds == ["stdout", "display", "stdout", "report"]
        assert cell.outputs[1].data == {"text/plain": ""}
        assert kernel.run("%%gpumem\na = torch.ones(1024)").kinds == ["report"]
        gone = kernel.run("%%gpumem\nfrom IPython.display import clear_output\nwait()\nclear_output()\nwait()")
        assert gone.kinds[-1] == "report"
    finally:
        kernel.stop()


def test_tensors_of_other_threads_are_said_to_be_missing_and_the_kernels_own_threads_are_not_named(kernel):
    assert "Python threads" not in kernel.run("%%gpumem\na = torch.ones(1024)").report
    cell = kernel.run(
        "%%gpumem\nfrom concurrent.futures import ThreadPoolExecutor\na = torch.ones(1024)\n"
        "with ThreadPoolExecutor(2, thread_name_prefix='feed') as pool:\n"
        "    made = list(pool.map(torch.ones, [512, 512]))"
    )
    assert "tensors made on other Python threads are not seen: this cell ran feed_0" in cell.report
    assert "Python threads" not in kernel.run("%%gpumem\na = torch.ones(1024)").report


def test_a_torch_that_cannot_be_imported_is_the_users_to_see(fresh_kernel, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch_cpu.so is missing')")
    fresh_kernel.run(f"{LOAD}\nimport sys\nsys.path.insert(0, '')")
    cell = fresh_kernel.run("%%gpumem\nimport torch")
    assert cell.kinds == ["ImportError", "report"]
    if IPython.version_info >= (8,):  # which leaves out frames that say so
        assert "gpumem_magic" not in cell.traceback
    assert cell.report.startswith("gpumem: Ended with ImportError. ")
    assert "torch was not used in this cell" in cell.report
    assert fresh_kernel.run("%gpumem_auto on\nx = 1").kinds == ["stdout"]
    assert fresh_kernel.run("y = 1").kinds == []


def test_something_else_that_is_called_torch(fresh_kernel, tmp_path):
    (tmp_path / "torch.py").write_text("light = 'a stick'")
    fresh_kernel.run(f"{LOAD}\nimport sys\nsys.path.insert(0, '')\n%gpumem_auto on")
    assert fresh_kernel.run("import torch\nhasattr(torch, 'ones')").result == "False"
    cell = fresh_kernel.run("%%gpumem\nx = 1")
    assert cell.kinds == ["report"]
    assert "torch was not used in this cell" in cell.report
    assert "not imported" in fresh_kernel.run("%gpumem_who").text()
    assert "empty" in fresh_kernel.run("%gpumem_ledger").text()


def test_the_button_reaches_the_cell_when_it_is_pressed_before_it_begins(fresh_kernel):
    fresh_kernel.run(
        f"import signal, time\n{LOAD}\n%gpumem 1\nfrom gpumem_magic.recording.recorder import Recorder\n"
        "start = Recorder.start\n"
        "def pressed(self):\n    signal.raise_signal(signal.SIGINT)\n    start(self)\nRecorder.start = pressed"
    )
    cell = fresh_kernel.run("%%gpumem\ntime.sleep(20)")
    assert cell.kinds == ["KeyboardInterrupt", "report"]
    assert "time.sleep(20)" in cell.traceback
    assert "gpumem_magic" not in cell.traceback


def test_the_button_ends_our_own_work_in_one_line_and_fails_the_cell(fresh_kernel):
    fresh_kernel.run(
        f"import signal\n{LOAD}\n%gpumem 1\nfrom gpumem_magic.magics.measurement import Measurement\n"
        "show = Measurement.show\nMeasurement.show = lambda self, *keys: signal.raise_signal(signal.SIGINT)"
    )
    cell = fresh_kernel.run("%%gpumem\nx = 41 + 1")
    assert cell.kinds == ["stdout", "KeyboardInterrupt"]
    assert cell.text().startswith("gpumem: no report: interrupted while it was made")
    assert len(cell.traceback.splitlines()) == 1
    assert fresh_kernel.run("Measurement.show = show\nx").result == "42"
    assert fresh_kernel.run("%%gpumem\nx").kinds == ["result", "report"]


def test_a_second_press_of_impatience_costs_a_stopped_cell_no_report(fresh_kernel):
    fresh_kernel.run(
        f"import signal\n{LOAD}\n%gpumem 1\nfrom gpumem_magic.magics.measurement import Measurement\n"
        "from gpumem_magic.recording import interrupts\ninterrupts._SAME_PRESS_SECONDS = 60\n"
        "show, finish = Measurement.show, Measurement.finish\n"
        "def pressed(self, *keys):\n    signal.raise_signal(signal.SIGINT)\n    show(self, *keys)\n"
        "def again(self, *keys):\n    signal.raise_signal(signal.SIGINT)\n    finish(self, *keys)\n"
        "Measurement.show, Measurement.finish = pressed, again"
    )
    cell = fresh_kernel.run("%%gpumem\nsignal.raise_signal(signal.SIGINT)")
    assert cell.kinds == ["KeyboardInterrupt", "report"]
    # Below another magic the text is ended within the cell: the second press is its interrupt then.
    cell = fresh_kernel.run("%%time\n%%gpumem\nsignal.raise_signal(signal.SIGINT)")
    assert cell.kinds[-1] == "report"
    assert fresh_kernel.run("Measurement.show, Measurement.finish = show, finish\n40 + 2").result == "42"


def test_a_press_that_came_too_late_fails_its_own_cell_and_not_the_next_one(kernel):
    pressed = kernel.run(
        "%%gpumem\nfrom gpumem_magic.recording import interrupts\na = torch.ones(1024)\ninterrupts.press_again()"
    )
    assert "KeyboardInterrupt" in pressed.kinds  # so that nothing behind it runs
    following = kernel.run("import time\ntime.sleep(0.5)\n'all of it'")
    assert following.kinds == ["result"]
