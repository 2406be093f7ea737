"""%%gpumem beside other magics, in either order, and as a statement."""

from __future__ import annotations

import IPython
import pytest


@pytest.mark.parametrize("order", ["%%gpumem\n%%time", "%%time\n%%gpumem"])
def test_time_in_either_order(kernel, order):
    cell = kernel.run(f"{order}\nt = torch.ones(1024, 1024)\nt.shape[0]")
    assert cell.result == "1024"
    assert cell.kinds == ["stdout", "result", "report"]
    assert "Wall time" in cell.text()
    assert "4.00 MiB at line 3 `t = torch.ones(1024, 1024)`" in cell.report
    assert kernel.run("_, tuple(t.shape)").result == "(1024, (1024, 1024))"


@pytest.mark.parametrize("order", ["%%gpumem\n%%time", "%%time\n%%gpumem"])
def test_an_error_under_time_is_shown_once_and_fails_the_cell(kernel, order):
    cell = kernel.run(f"{order}\nx = 1\n1 / 0")
    assert cell.kinds.count("ZeroDivisionError") == 1
    assert cell.kinds[-1] == "report"
    assert cell.outputs[[*cell.kinds].index("ZeroDivisionError")].evalue == "division by zero"


def test_line_numbers_of_a_nested_body_are_the_cells(kernel):
    cell = kernel.run("%%time\n%%gpumem\n\nx = 1\n1 / 0")
    assert "----> 5 1 / 0" in cell.traceback
    if IPython.version_info >= (8,):  # which leaves out frames that say so
        assert "measurement.py" not in cell.traceback


@pytest.mark.skipif(IPython.version_info < (8,), reason="there no magic's value can be silenced")
def test_a_nested_semicolon_silences(kernel):
    assert kernel.run("%%time\n%%gpumem\n1 + 1;").kinds == ["stdout", "report"]


@pytest.mark.parametrize("order", ["%%gpumem\n%%timeit -n2 -r3", "%%timeit -n2 -r3\n%%gpumem"])
def test_timeit_makes_one_report_that_says_how_often_it_ran(kernel, order):
    cell = kernel.run(f"{order}\nt2 = torch.ones(512, 1024)")
    assert cell.kinds == ["stdout", "report"]
    assert "6 times" in cell.report
    assert "line 3" in cell.report


def test_capture_outside_keeps_everything(kernel):
    cell = kernel.run("%%capture kept\n%%gpumem\nprint('inside')\nc = torch.ones(1024)\n'value'")
    assert cell.kinds == []
    shown = kernel.run("print(kept.stdout, [next(iter(o.data.values())) for o in kept.outputs])")
    assert "inside" in shown.text()
    assert "gpumem: Peak 4.00 KiB" in shown.text()
    assert kernel.run("c.numel()").result == "1024"


def test_capture_inside_leaves_the_report(kernel):
    cell = kernel.run("%%gpumem\n%%capture kept\nprint('inside')\nc = torch.ones(2048)")
    assert cell.kinds == ["report"]
    assert "8.00 KiB" in cell.report
    assert kernel.run("print(kept.stdout)").text() == "inside\n\n"

    assert kernel.run("import gpumem_magic\ngpumem_magic.last.sentence").result.startswith("'Peak 8.00 KiB at line 4 ")


def test_a_captured_report_is_the_last_one_all_the_same(kernel):
    assert kernel.run("%%capture\n%%gpumem\nprint('inside')\nc = torch.ones(4096)").kinds == []
    assert kernel.run("gpumem_magic.last.sentence").result.startswith("'Peak 16.0 KiB at line 4 `c = torch.ones")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("%%gpumem\n\n%%capture\nx = 1\nc = torch.ones(2048)", "line 5 `c = torch.ones(2048)`"),
        ("%%time\n%%gpumem\n%%capture\nc = torch.ones(2048)", "line 4 `c = torch.ones(2048)`"),
        ("%%gpumem\n%%time\n%%capture\nc = torch.ones(2048)", "line 4 `c = torch.ones(2048)`"),
        ("%%gpumem\nx = 1\n%time c = torch.ones(2048)", "line 3 `%time c = torch.ones(2048)`"),
        ("%%gpumem\n%%time\nx = 1\n%time c = torch.ones(2048)", "line 4 `%time c = torch.ones(2048)`"),
        ("%%gpumem\nx = 1\n%timeit -n1 -r1 c = torch.ones(2048)", "line 3 `%timeit -n1 -r1 c = torch.ones(2048)`"),
        ("%%gpumem\n%%prun -q\nc = torch.ones(2048)", "line 2 `%%prun -q`"),
        ("%%gpumem\nget_ipython().run_cell('c = torch.ones(2048)');", "line 2 `get_ipython().run_cell("),
    ],
)
def test_lines_below_other_magics_are_the_cells(kernel, source, line):
    cell = kernel.run(source)
    assert cell.report.startswith("gpumem: Peak 8.00 KiB at " + line)


def test_await_below_another_magic_says_where_it_works(kernel):
    cell = kernel.run("%%time\n%%gpumem\nimport asyncio\nawait asyncio.sleep(0)")
    assert "UsageError" in cell.text("stderr")
    assert "first line" in cell.text("stderr")
    assert "Traceback" not in cell.text("stderr")


def test_statement(kernel):
    cell = kernel.run("%gpumem --label squares s = torch.ones(256, 1024) * 2  # twice")
    assert cell.kinds == ["report"]
    assert "2.00 MiB" in cell.report
    assert kernel.run("float(s.max())").result == "2.0"


def test_a_statements_value_is_the_cells(kernel):
    cell = kernel.run("%gpumem torch.ones(3).sum()")
    assert cell.kinds == ["result", "report"]
    assert kernel.run("v = %gpumem 20 + 22\nv").result == "42"


def test_a_statement_in_a_loop_makes_one_report(kernel):
    cell = kernel.run("held = []\nfor i in range(4):\n    %gpumem held.append(torch.ones(1024))\nprint(len(held))")
    assert cell.kinds == ["stdout", "report"]
    assert "4 times" in cell.report


def test_two_statements_make_two_reports(kernel):
    cell = kernel.run("%gpumem a1 = torch.ones(1024)\n%gpumem a2 = torch.ones(2048)")
    assert cell.kinds == ["report", "report"]
    assert "4.00 KiB" in cell.reports[0]
    assert "8.00 KiB" in cell.reports[1]


def test_a_statement_is_named_by_its_own_text(kernel):
    cell = kernel.run("before = 1\n%gpumem --top 3 s1 = torch.ones(1024) * 2")
    assert "4.00 KiB stayed, both at `s1 = torch.ones(1024) * 2`, CPU tensors of this cell only." in cell.report
    assert "line 1" not in cell.report


def test_local_names_of_a_function_are_seen(kernel):
    cell = kernel.run("def f(n):\n    %gpumem g = torch.ones(n)\n    return n\nf(1024)")
    assert cell.result == "1024"
    assert "4.00 KiB" in cell.report


def test_gpumem_inside_a_measured_cell_is_part_of_it(kernel):
    cell = kernel.run("%%gpumem\n%gpumem q = torch.ones(1024)\nr = torch.ones(1024)")
    assert cell.kinds == ["report"]
    assert "8.00 KiB" in cell.report


def test_a_statement_in_a_measured_cell_has_the_line_on_which_it_stands(kernel):
    cell = kernel.run("%%gpumem\na = 1\n\n%gpumem x = torch.ones(4096)\nfor _ in range(2):\n    %gpumem y = x * 2")
    assert "16.0 KiB   33%  line 4" in cell.report
    assert "32.0 KiB   67%  line 6" in cell.report
    assert "line 1" not in cell.report


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("%gpumem", "%gpumem y = model(x)"),
        ("%gpumem --quiet", "%gpumem y = model(x)"),
        ("ran = 1\n%%gpumem\nran = 2", "must be the first line"),
        ("%gpumem --bad ran = 3", " %gpumem: unrecognized arguments: --bad"),
        ("%%gpumem --bad\nran = 3", "%%gpumem: unrecognized arguments: --bad (%%gpumem? lists the options)"),
        ("%gpumem_who --tpo 3", "%gpumem_who: unrecognized arguments: --tpo 3 (%gpumem_who? lists the options)"),
        ("%%gpumem --stacks some\nran = 3", "invalid choice"),
        ("%%gpumem --device gpu7x\nran = 3", "device must be a number"),
        ("%%gpumem --device 99\nran = 3", "--device 99"),
        ("%%gpumem --max-entries 0\nran = 3", "at least 1"),
        ("%%gpumem --export /no/such/folder/x.html\nran = 3", "there is no folder"),
        ("%%gpumem --export notes.txt\nran = 3", ".html"),
    ],
)
def test_misuse_says_what_to_do_and_does_not_run_the_cell(kernel, source, hint):
    kernel.run("ran = 0")
    cell = kernel.run(source)
    assert cell.text("stderr").startswith("UsageError: "), cell.outputs
    assert hint in cell.text("stderr")
    assert "report" not in cell.kinds
    assert kernel.run("ran").result == ("1" if source.startswith("ran") else "0")


def test_an_export_from_a_folder_that_is_gone_says_so_and_does_not_run_the_cell(kernel):
    kernel.run("import os, tempfile\nhome, gone = os.getcwd(), tempfile.mkdtemp()\nran = 0")
    kernel.run("os.chdir(gone)\nos.rmdir(gone)")
    cell = kernel.run("%%gpumem --export x.html\nran = 1")
    kernel.run("os.chdir(home)")
    assert cell.kinds == ["stderr"]
    assert "the current folder is gone" in cell.text("stderr")
    assert kernel.run("ran").result == "0"


def test_help_names_every_option(kernel):
    # The pager's text is a payload, so ask for it in Python.
    cell = kernel.run("print(get_ipython().find_cell_magic('gpumem').__doc__)")
    for option in ("--device", "--stacks", "--max-entries", "--label", "--export", "--top", "--quiet"):
        assert option in cell.text()
    assert kernel.run("%%gpumem?\n").kinds == []


def test_what_a_measured_cell_hands_to_the_magic_counts_as_the_line_that_does_so(kernel):
    handed = [
        r"get_ipython().run_cell('%%gpumem\nh = torch.ones(512, 1024)')",
        r"get_ipython().run_cell('1\n%gpumem h = torch.ones(512, 1024)')",
        r"get_ipython().run_cell_magic('gpumem', '', 'h = torch.ones(512, 1024)')",
    ]
    for line in handed:
        cell = kernel.run(f"%%gpumem\n1\n2\n{line}")
        assert cell.kinds[-1] == "report"
        assert "2.00 MiB at line 4 `get_ipython()" in cell.report, cell.report
    captured = kernel.run("%%gpumem\n%%capture kept\n\n%gpumem h = torch.ones(512, 1024)")
    assert "2.00 MiB at line 4 `%gpumem h" in captured.report
