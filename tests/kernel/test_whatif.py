"""``%gpumem_whatif`` and ``--whatif`` in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


@pytest.fixture(scope="module")
def loaded(kernel):
    kernel.run(f"RECORDINGS = {str(RECORDINGS)!r}\nimport os; os.chdir(RECORDINGS)")
    return kernel


def test_a_file_is_replayed_and_the_best_setting_comes_as_a_line_to_paste(loaded):
    cell = loaded.run("%gpumem_whatif load_swap.c0.pickle.xz")
    (output,) = [one for one in cell.outputs if one.output_type == "display_data" and "text/html" in one.data]
    text, table = output.data["text/plain"], output.data["text/html"]
    assert text.startswith(
        "gpumem: cuda:0: `expandable_segments:True` would have reserved 3.72 GiB instead of 4.66 GiB: 966 MiB back, 20%"
    )
    assert "    %env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert "3.72 GiB" in table
    assert "<script" not in table


def test_settings_and_a_limit_of_ones_own(loaded):
    cell = loaded.run('%gpumem_whatif --conf "" --conf "max_split_size_mb:32" --cap-gib 3 load_swap.c0.pickle.xz')
    text = next(one.data["text/plain"] for one in cell.outputs if "text/html" in one.get("data", {}))
    assert "none of these settings makes it fit under 3.00 GiB" in text
    assert "max_split_size_mb:32" in text
    assert "roundup" not in text


def test_a_wrong_setting_is_refused_with_the_corrected_one(loaded):
    cell = loaded.run("%gpumem_whatif --conf max_split_size_mb=32 load_swap.c0.pickle.xz")
    assert "UsageError" in cell.kinds or "Write 'max_split_size_mb:32'" in cell.text("stderr")
    assert "Write 'max_split_size_mb:32'" in cell.text("stderr") + cell.traceback
    cell = loaded.run("%gpumem_whatif --conf bogus:1 load_swap.c0.pickle.xz")
    assert "no option 'bogus' in any version of torch. Leave it out" in cell.text("stderr") + cell.traceback


def test_a_setting_newer_than_the_installed_torch_is_replayed_with_a_warning(loaded):
    loaded.run(
        "from gpumem_magic.allocator.conf import environment\n"
        "installed = environment.installed_torch\n"
        "environment.installed_torch = lambda: environment.TorchVersion(2, 10)"
    )
    cell = loaded.run("%gpumem_whatif --conf large_segment_size_mb:40 load_swap.c0.pickle.xz")
    loaded.run("environment.installed_torch = installed")
    output = next(one.data for one in cell.outputs if "text/html" in one.get("data", {}))
    warning = "installed here would not take it: large_segment_size_mb needs torch 2.11 or newer, this is 2.10"
    assert warning in output["text/plain"]
    assert warning in output["text/html"]


def test_a_cell_of_cpu_tensors_cannot_be_replayed_and_says_so(loaded, tmp_path):
    path = tmp_path / "x.html"
    cell = loaded.run(f"%%gpumem --export {path} --whatif\nkept = torch.ones(1000, 1000)")
    why = "memory on cpu does not come from torch's caching allocator"
    assert f"--whatif adds nothing to the file, since {why}" in cell.text()
    assert path.is_file()
    answer = loaded.run("%gpumem_whatif").text()
    assert answer.startswith(f"gpumem: {why}")
    assert answer.count("\n") == 1


def test_without_a_file_to_write_the_option_says_where_the_answer_is(loaded):
    cell = loaded.run("%%gpumem --whatif\nkept = 1")
    assert "--whatif goes with --export" in cell.text("stderr") + cell.traceback
