"""A cell under %%gpumem behaves exactly as without it."""

from __future__ import annotations

import IPython


def test_values_displays_and_names_are_the_cells_own(kernel):
    cell = kernel.run("%%gpumem\nx = 20\nx + 22")
    assert cell.kinds == ["result", "report"]
    assert cell.result == "42"
    again = kernel.run("(x, _, Out[len(Out) and max(Out)])")
    assert again.result == "(20, 42, 42)"


def test_a_semicolon_silences_the_value(kernel):
    assert kernel.run("%%gpumem\n1 + 1;").kinds == ["report"]


def test_top_level_await_works(kernel):
    cell = kernel.run("%%gpumem\nimport asyncio\nawait asyncio.sleep(0, result='waited')")
    assert cell.result == "'waited'"
    assert cell.kinds == ["result", "report"]


def test_error_is_shown_once_with_the_cells_line_number(kernel):
    cell = kernel.run("%%gpumem\nb = 0\n\n1 / b")
    assert cell.kinds == ["ZeroDivisionError", "report"]
    assert "----> 4 1 / b" in cell.traceback
    assert "gpumem_magic" not in cell.traceback
    assert "ZeroDivisionError" in cell.report


def test_an_error_that_cannot_be_shown_ends_the_recording_all_the_same(kernel):
    cell = kernel.run(
        "%%gpumem\nclass BrokenError(Exception):\n    def __str__(self): raise ValueError('bug')\nraise BrokenError"
    )
    if IPython.version_info >= (8,):  # before, IPython calls nobody after such a cell: the next one ends the recording
        assert cell.kinds[-1] == "report"
    assert kernel.run("torch._C._autograd._profiler_enabled()").result == "False"
    assert "4.00 MiB" in kernel.run("%%gpumem\nz = torch.ones(1024, 1024)").report


def test_prints_displays_and_plots_keep_their_order(kernel):
    cell = kernel.run(
        "%%gpumem\n%matplotlib inline\nimport matplotlib.pyplot as plt\nprint('one')\nplt.plot([1, 2])\n"
        "from IPython.display import display, Markdown\ndisplay(Markdown('two'))\nprint('three')\n'four'"
    )
    assert cell.kinds == ["stdout", "display", "stdout", "result", "display", "report"]
    assert "image/png" in cell.outputs[4].data


def test_clear_output_does_not_lose_the_report(kernel):
    cell = kernel.run("%%gpumem\nfrom IPython.display import clear_output\nprint('gone')\nclear_output()")
    assert cell.kinds == ["report"]
    cell = kernel.run("%%gpumem\nprint('gone')\nclear_output(wait=True)\nprint('stays')")
    assert cell.kinds == ["stdout", "report"]


def test_comments_and_blank_lines_may_stand_above(kernel):
    cell = kernel.run("# @title Training\n\n%%gpumem --label step # the first one\nraise ValueError('line 4')")
    assert cell.kinds == ["ValueError", "report"]
    assert "----> 4 raise" in cell.traceback


def test_tensors_are_attributed_and_counted(kernel):
    cell = kernel.run("%%gpumem\na = torch.ones(1024, 1024)\nb = torch.ones(512, 1024)\ndel b")
    assert "6.00 MiB" in cell.report
    assert "4.00 MiB" in cell.report


def test_profilers_chatter_stays_out_and_the_users_stderr_in(kernel):
    cell = kernel.run("old = [torch.ones(8) for _ in range(500)]")
    cell = kernel.run(
        "%%gpumem\nimport os, sys\ndel old\ny = torch.ones(4) + 1\nos.write(2, b'from C\\n')\n"
        "print('from Python', file=sys.stderr)"
    )
    assert "from Python" in cell.text("stderr")
    assert "from C" in cell.text("stderr")
    assert "USDT" not in cell.text("stderr")
    assert "Memory block of unknown size" not in cell.text("stderr")
    assert cell.kinds[-1] == "report"


def test_regions_of_the_cell_and_of_the_notebooks_functions_are_kept(kernel):
    kernel.run("def step():\n    with torch.profiler.record_function('a step'):\n        return torch.ones(1024)")
    kernel.run("%%gpumem\nkept = step()")
    regions = "[region.name for region in gpumem_magic.last.analysis.devices[0].regions]"
    assert kernel.run(f"import gpumem_magic\n{regions}").result == "['a step']"
    kernel.run("%%gpumem\nwith torch.profiler.record_function('here'):\n    kept = torch.ones(2048)")
    assert kernel.run(regions).result == "['here']"
    kernel.run("del step")
    kernel.run("%%gpumem\nkept = torch.ones(4096)")
    assert kernel.run(regions).result == "[]"
