"""The line magics in a real kernel: where IPython really keeps errors and results."""

from __future__ import annotations

import pytest


def test_last_error_is_named_and_released(kernel):
    kernel.run("def train():\n    acts = torch.ones(200_000)\n    raise ValueError('x')\ntrain()")
    who = kernel.run("%gpumem_who --device cpu").text()
    assert "781 KiB held by the last error" in who
    assert "last error: ValueError in train(), local `acts`" in who
    assert "last error: 781 KiB of tensors on cpu" in kernel.run("%gpumem_free").text()
    assert "acts" not in kernel.run("%gpumem_who").text()


def test_interrupted_loop_is_the_last_error_too(kernel):
    kernel.run("def loop():\n    batch = torch.ones(300_000)\n    raise KeyboardInterrupt\nloop()")
    assert "last error: KeyboardInterrupt in loop(), local `batch`" in kernel.run("%gpumem_who").text()
    assert "1.14 MiB of tensors on cpu" in kernel.run("%gpumem_free").text()


def test_results_are_kept_until_asked(kernel):
    number = kernel.run("torch.zeros(100_000)").number
    who = kernel.run("%gpumem_who").text()
    assert f"Out[{number}]" in who
    assert "output history" not in kernel.run("%gpumem_free").text()
    assert "output history: 391 KiB of tensors on cpu" in kernel.run("%gpumem_free --out").text()
    assert f"Out[{number}]" not in kernel.run("%gpumem_who").text()
    assert kernel.run("1 + 1").kinds == ["result"]


def test_variables_go_only_by_name(kernel):
    kernel.run("big = torch.ones(150_000)\nsmall = torch.ones(10)")
    refused = kernel.run("%gpumem_free --vars big nothing_of_that_name")
    assert "nothing was released" in refused.text("stderr") + refused.traceback
    assert kernel.run("print(big.numel())").text().strip() == "150000"
    assert "variables big: 586 KiB of tensors on cpu" in kernel.run("%gpumem_free --vars big").text()
    assert kernel.run("big").kinds == ["NameError"]
    assert kernel.run("print(small.numel())").text().strip() == "10"


def test_settings_are_checked_without_touching_cuda(fresh_kernel):
    kernel = fresh_kernel
    kernel.run("%load_ext gpumem_magic")
    checked = kernel.run("%gpumem_conf max_split_size_mb=128").text()
    assert "write instead: max_split_size_mb:128" in checked
    assert "in force: not known: torch is not imported yet" in checked
    # Blanks are part of the string, quotes around it are not; another release may be named.
    for line in ("expandable_segments:True, max_split_size_mb:32", "'expandable_segments:True, max_split_size_mb:32'"):
        told = kernel.run(f"%gpumem_conf {line}").text()
        assert told.startswith("expandable_segments:True, max_split_size_mb:32\n")
        assert "max_split_size_mb must not meet" in told
    assert (
        "needs torch 2.11 or newer, this is 2.8"
        in kernel.run("%gpumem_conf --torch 2.8 large_segment_size_mb:64").text()
    )
    assert "expandable_segments: True or False (default False)" in kernel.run("%gpumem_conf --options").text()
    assert kernel.run("import sys; print('torch' in sys.modules)").text().strip() == "False"
    number = kernel.run("import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'").number
    assert f"will count, set in cell {number}" in kernel.run("%gpumem_conf").text()
    imported = kernel.run("import torch").number
    late = kernel.run("%env PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync").number
    told = kernel.run("%gpumem_conf").text()
    assert f"CUDA is not in use, and what the environment says then will count, set in cell {late}" in told
    assert f"except backend:cudaMallocAsync: torch was imported in cell {imported}" in told
    # Once unloaded nothing is watched any more.
    kernel.run("%unload_ext gpumem_magic")
    watching = kernel.run(
        "print([one for one in get_ipython().events.callbacks['post_run_cell'] if 'gpumem' in repr(one)])"
    )
    assert watching.text().strip() == "[]"


def test_two_runs_are_compared_by_label_number_and_age(kernel):
    cell = "%%gpumem --label grow --quiet\nkept = [torch.ones(100_000) for _ in range({})]"
    first = kernel.run(cell.format(2)).number
    second = kernel.run(cell.format(5)).number
    text = kernel.run("%gpumem_diff").report
    assert "gpumem: B's peak is 1.14 MiB higher (781 KiB → 1.91 MiB): line 2" in text
    assert f"A: grow (In [{first}])" in text
    assert kernel.run("%gpumem_diff grow~1 grow").report == text
    assert kernel.run(f"%gpumem_diff {first} {second}").report == text
    assert "nope is neither a file nor a measured cell; held are grow" in kernel.run("%gpumem_diff nope").text("stderr")


@pytest.mark.parametrize("magic", ["%gpumem_diff", "%gpumem_timeline"])
def test_a_place_that_cannot_be_exported_to_is_named_before_anything_is_made(kernel, magic):
    for _ in range(2):
        kernel.run("%%gpumem --quiet\nkept = torch.ones(100_000)")
    for place, message in (
        ("x.txt", "--export writes HTML: name a file that ends in .html, not x.txt"),
        ("'no such/x.html'", "; create it first"),
        (".", "is a folder; name a file in it"),
    ):
        cell = kernel.run(f"{magic} --export {place}")
        assert cell.kinds == ["stderr"], cell.kinds
        (line,) = cell.text("stderr").splitlines()
        assert line.startswith(f"UsageError: {magic}: --export")
        assert message in line
    # A file that is not ours is left alone, and what was asked for is shown all the same.
    kernel.run("from pathlib import Path\n_ = Path('mine.html').write_text('mine')")
    cell = kernel.run(f"{magic} --export mine.html")
    assert cell.kinds == ["stdout", "report"]
    assert "is not a gpumem report: choose another name" in cell.text()
    cell = kernel.run(f"{magic} --export '{magic[1:]} 1'")
    assert cell.kinds == ["stdout", "report"]
    assert cell.text() == f"gpumem: wrote {magic[1:]} 1.html\n"


def test_a_run_whose_report_learned_more_is_not_compared_with_itself(kernel):
    # A promise and scratch add notes after the report was built; a third run of a cell adds what its runs left.
    for options in ("--assert-no-leak", "--scratch", ""):
        cell = f"%%gpumem --label more --quiet {options}\nkept_more = more = [torch.ones(100_000) for _ in range({{}})]"
        numbers = [kernel.run(cell.format(count)).number for count in (2, 3, 4)]
        text = kernel.run("%gpumem_diff").report
        assert f"A: more (In [{numbers[1]}])" in text
        assert f"B: more (In [{numbers[2]}])" in text
    piles = "%%gpumem --label pile --quiet\npile = [*globals().get('pile', ()), torch.ones(100_000)]"
    numbers = [kernel.run(piles).number for _ in range(5)]
    assert f"A: pile (In [{numbers[3]}])" in kernel.run("%gpumem_diff").report


def test_a_training_cell_says_what_its_peak_was_for(kernel):
    kernel.run("net = torch.nn.Linear(512, 512)\noptimizer = torch.optim.Adam(net.parameters())")
    cell = kernel.run(
        "%%gpumem\nfor step in range(3):\n    optimizer.zero_grad()\n    y = net(torch.randn(64, 512))\n"
        "    loss = y.square().mean()\n    loss.backward()\n    optimizer.step()"
    )
    (line,) = [line for line in cell.report.splitlines() if "at the peak by category: " in line]
    assert "optimizer state 39%" in line
    assert "gradients 20%" in line
    told = kernel.run(
        "import gpumem_magic\nc = gpumem_magic.last.devices[0].categories\n"
        "d = gpumem_magic.last.devices[0].headline\n"
        "print(sum(r.bytes for r in c.peak) == d.allocated_peak, sum(r.bytes for r in c.end) == d.allocated_after)\n"
        "print(sorted(set(c.module_names)))"
    ).text()
    assert told.splitlines()[0] == "True True"
    assert "'net'" in told


def test_the_settings_of_a_process_that_the_notebook_started_are_its_own(kernel):
    kernel.run(
        "import os, subprocess, sys\ncode = 'import sys; print(1, flush=True); sys.stdin.read()'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'"
    )
    told = kernel.run("%gpumem_conf").text()
    kernel.run("child.communicate()\ndel os.environ['PYTORCH_CUDA_ALLOC_CONF']")
    assert " -c): torch's defaults, unlike this kernel's environment, which says 'expandable_segments:True' now" in told
    assert "in process" not in kernel.run("%gpumem_conf").text()
