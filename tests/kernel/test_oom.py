"""A cell that runs out of memory: the error once, and a report that leads with why."""

from __future__ import annotations


def test_a_request_beyond_the_machine_is_named_as_such(kernel):
    cell = kernel.run("%%gpumem\nkept = torch.ones(1024, 1024)\nhuge = torch.empty(1 << 50)")
    assert cell.kinds == ["RuntimeError", "report"]
    assert "gpumem_magic" not in cell.traceback
    lines = cell.report.splitlines()
    assert lines[0].startswith(
        "gpumem: Out of memory at line 3 `huge = torch.empty(1 << 50)`: it asked for 4.00 PiB in one piece, more than "
        "the whole machine holds ("
    )
    assert lines[1] == "  why: asked for 4.00 PiB, " + lines[1].split(", ", 1)[1]
    assert any(line.startswith("  do: ask for less at once at line 3") for line in lines)
    assert "no allocator setting" not in cell.report


def test_the_line_of_the_notebook_is_named_for_an_error_inside_a_library(kernel):
    kernel.run(
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x.new_empty(1 << 50)\nnet = Net()"
    )
    cell = kernel.run("%%gpumem\nx = torch.ones(4)\ny = net(x)")
    assert cell.kinds == ["RuntimeError", "report"]
    assert "at line 3 `y = net(x)`" in cell.report.splitlines()[0]


def test_numpys_own_error_counts(kernel):
    cell = kernel.run("%%gpumem\nimport numpy\na = torch.ones(8)\nb = numpy.empty(1 << 50)")
    assert cell.kinds[-1] == "report"
    assert "Out of memory at line 4 `b = numpy.empty(1 << 50)`: it asked for 8.00 PiB" in cell.report


def test_an_error_raised_while_the_first_one_was_handled(kernel):
    cell = kernel.run(
        "%%gpumem\ntry:\n    torch.empty(1 << 50)\nexcept RuntimeError:\n    raise ValueError('no room for it')"
    )
    assert cell.kinds == ["ValueError", "report"]
    assert "Ran out of memory at line 3" in cell.report
    assert "Ended with ValueError" in cell.report


def test_a_gpus_text_without_a_gpu(kernel):
    text = (
        "CUDA out of memory. Tried to allocate 77.40 GiB. GPU 0 has a total capacity of 38.60 GiB of which 30.00 GiB "
        "is free. Including non-PyTorch memory, this process has 8.60 GiB memory in use. Of the "
        "allocated memory 7.90 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
    )
    cell = kernel.run(f"%%gpumem\nraise torch.OutOfMemoryError({text!r})")
    assert cell.kinds == ["OutOfMemoryError", "report"]
    first = cell.report.splitlines()[0]
    assert first.startswith("gpumem: Out of memory at line 2")
    assert "it asked for 77.4 GiB in one piece, more than the whole card holds (38.6 GiB)" in first
    assert "not known: without recorded events" in cell.report.lower()


def test_what_is_kept_by_accident_is_looked_for_and_named(kernel):
    # No device here has torch's events, so the numbers are those of the error's text; the holders are real.
    kernel.run("torch.ones(3 << 20)")
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 38.60 GiB of which 19.00 MiB "
        "is free. Including non-PyTorch memory, this process has 38.58 GiB memory in use. Of the allocated memory "
        "38.00 GiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated."
    )
    cell = kernel.run(f"%%gpumem\nraise torch.OutOfMemoryError({text!r})")
    assert cell.kinds == ["OutOfMemoryError", "report"]
    # What Out holds lies on the CPU: it cannot have been in the card's way.
    assert "kept by accident" not in cell.report
    assert "live tensors really hold 38.0 GiB of the card's 38.6 GiB" in cell.report


def test_pythons_own_error_without_torch_names_a_next_step(fresh_kernel):
    fresh_kernel.run("%load_ext gpumem_magic")
    cell = fresh_kernel.run("%%gpumem\nx = bytearray(1 << 60)")
    assert cell.kinds == ["MemoryError", "report"]
    told = "gpumem: Out of memory at line 2 `x = bytearray(1 << 60)`: its error names no size, and the machine had "
    assert cell.report.startswith(told)
    assert "  do: look at the size that this line asks for" in cell.report
    assert "under %%gpumem" not in cell.report


def test_a_retry_inside_the_handler_is_told_what_was_in_its_way(kernel):
    kernel.run(
        "import resource\nfrom pathlib import Path\n"
        "def used():\n    return int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "def step(mib):\n    a = torch.ones(mib << 18)\n    b = torch.ones(mib << 18)\n    return a.sum() + b.sum()"
    )
    kernel.run("%%gpumem\nstep(8);")
    kernel.run("%gpumem_free --out")
    # The limit is lifted before the report is made.
    cell = kernel.run(
        "%%gpumem\nresource.setrlimit(resource.RLIMIT_AS, (used() + (900 << 20), -1))\ntry:\n    try:\n"
        "        y = step(600)\n    except RuntimeError:\n        y = step(350)\nfinally:\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    )
    first = cell.report.splitlines()[0]
    assert "Out of memory at line 7 `y = step(350)`: it asked for 350 MiB" in first
    told = (
        "600 MiB was kept by accident, by the error that was being handled when this line ran (RuntimeError in step()"
    )
    assert told in first
    assert "  do: try again after the `except` block, not inside it" in cell.report
    kernel.run("%gpumem_free")


NOT_MEASURED = "  not known: who held what by line, as this cell was not measured: "


def told(cell):
    """Return what stands under the error: the last output, which is the only one of ours."""
    assert cell.kinds[-1] == "report"
    return cell.report.splitlines()


def test_a_cell_that_nobody_measured_is_told_why_as_well(kernel):
    cell = kernel.run("def deep():\n    return torch.empty(1 << 50)\ndeep()")
    assert cell.kinds == ["RuntimeError", "report"]
    lines = told(cell)
    assert lines[0].startswith("gpumem: Out of memory at line 2 `return torch.empty(1 << 50)`: it asked for 4.00 PiB")
    assert lines[1].startswith("  why: asked for 4.00 PiB, ")
    assert lines[-1].startswith(NOT_MEASURED)


def test_an_error_raised_while_handling_it_is_told_without_a_measurement_too(kernel):
    code = "try:\n    torch.empty(1 << 50)\nexcept RuntimeError:\n    raise ValueError('no room for it')"
    assert told(kernel.run(code))[0].startswith("gpumem: Ran out of memory at line 2 `torch.empty(1 << 50)`")


def test_a_line_of_another_magic_is_not_taken_for_the_one_that_asked(kernel):
    assert told(kernel.run("%%time\ntorch.empty(1 << 50)"))[0].startswith("gpumem: Out of memory: it asked for 4.00")


def test_other_errors_and_caught_ones_are_told_nothing(kernel):
    assert kernel.run("1 / 0").kinds == ["ZeroDivisionError"]
    assert kernel.run("try:\n    torch.empty(1 << 50)\nexcept RuntimeError:\n    pass").kinds == []


def test_what_an_accident_keeps_is_named_without_a_measurement(kernel):
    kernel.run("torch.ones(3 << 20)")
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.12 GiB is "
        "free. Including non-PyTorch memory, this process has 78.11 GiB memory in use. Of the allocated memory 77.00 "
        "GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
    )
    lines = told(kernel.run(f"raise torch.OutOfMemoryError({text!r})"))
    assert "live tensors really hold 77.0 GiB of the card's 79.2 GiB" in lines[0]
    kernel.run("%gpumem_free --out")


def test_the_one_line_under_every_cell_becomes_the_verdict(fresh_kernel):
    fresh_kernel.run("import torch\n%load_ext gpumem_magic\n%gpumem_auto on")
    nothing = told(fresh_kernel.run("x = torch.empty(1 << 50)"))
    assert nothing[0].startswith("gpumem: Out of memory at line 1 `x = torch.empty(1 << 50)`: it asked for 4.00 PiB")
    assert any(line.startswith("  do: ask for less at once at line 1") for line in nothing)
    some = told(fresh_kernel.run("kept = torch.ones(1024, 1024)\nx = torch.empty(1 << 50)"))
    assert some[0].startswith("gpumem: Out of memory at line 2 `x = torch.empty(1 << 50)`")
    assert "Peak 4.00 MiB at line 1" in some[0]
    assert any(line.startswith("  do: ask for less at once at line 2") for line in some)
    assert not any("not measured" in line for line in [*nothing, *some])


def test_memory_that_ran_out_is_told_where_torch_was_never_imported(fresh_kernel):
    fresh_kernel.run("%load_ext gpumem_magic")
    assert told(fresh_kernel.run("raise MemoryError"))[0].startswith(
        "gpumem: Out of memory at line 1 `raise MemoryError`"
    )
    assert fresh_kernel.run("import sys; 'torch' in sys.modules").result == "False"
