"""Phases from recorded stacks, on recordings of a real GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scene import ids  # type: ignore[import-not-found]

from gpumem_magic.analysis import analyse_trace
from gpumem_magic.analysis.categories.phases import BACKWARD, BUILD, FORWARD, LOADER, OUTSIDE, STEP, ZERO_GRAD
from gpumem_magic.analysis.categories.stacks import phase_of
from gpumem_magic.report.purposes import by_category
from gpumem_magic.trace.model import Frame
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"
SITE = "/usr/lib/python3.12/site-packages/torch/"


def frames(*places):
    return [Frame(file if file.startswith("/") else SITE + file, 1, name) for file, name in places]


USER = ("/home/user/train.py", "<module>")
CALL = ("nn/modules/module.py", "_call_impl")


@pytest.mark.parametrize(
    ("places", "phase"),
    [
        ([USER], OUTSIDE),
        ([], OUTSIDE),
        ([("nn/modules/linear.py", "forward"), CALL, USER], FORWARD),
        ([("autograd/graph.py", "_engine_run_backward"), ("_tensor.py", "backward"), USER], BACKWARD),
        ([("optim/adam.py", "step"), ("optim/optimizer.py", "wrapper"), USER], STEP),
        ([("optim/optimizer.py", "zero_grad"), USER], ZERO_GRAD),
        ([("utils/data/dataloader.py", "__next__"), USER], LOADER),
        ([("nn/modules/linear.py", "__init__"), USER], BUILD),
        ([("nn/modules/module.py", "_apply"), ("nn/modules/module.py", "cuda"), USER], BUILD),
        # A checkpoint's forward within backward, and a step within a module's call: the innermost counts.
        ([CALL, ("autograd/graph.py", "_engine_run_backward"), USER], BACKWARD),
        ([("optim/optimizer.py", "wrapper"), CALL, USER], STEP),
        # autograd's own thread
        ([("/inductor/c.py", "call"), ("autograd/function.py", "apply")], BACKWARD),
        ([("autograd/function.py", "apply"), CALL, USER], FORWARD),
        ([("/src/engine.cpp", "torch::autograd::Engine::thread_main(x)")], BACKWARD),
    ],
)
def test_the_innermost_of_torchs_calls_is_the_phase(places, phase):
    assert phase_of(frames(*places)) == phase


def test_a_stack_of_windows_is_read_like_any_other():
    site = "C:\\Python312\\Lib\\site-packages\\torch\\"
    user = Frame("D:\\projects\\train.py", 7, "<module>")
    step = [Frame(site + "optim\\adam.py", 1, "step"), Frame(site + "optim\\optimizer.py", 1, "wrapper"), user]
    call = [
        Frame(site + "nn\\modules\\linear.py", 1, "forward"),
        Frame(site + "nn\\modules\\module.py", 1, CALL[1]),
        user,
    ]
    assert phase_of(step) == STEP
    assert phase_of(call) == FORWARD


@pytest.mark.parametrize("name", ["mlp_train.c0", "mlp_train.cppstacks", "compiled"])
def test_a_training_run_in_a_file_is_told_apart(name):
    device = analyse_trace(read_trace(DATA / f"{name}.pickle.xz")).devices[0]
    categories = device.categories
    assert categories is not None
    peak = ids(categories.peak)
    assert sum(peak.values()) == device.headline.allocated_peak
    # Adam keeps two numbers for each parameter.
    assert peak["optimizer"] == pytest.approx(2 * peak["parameter"], rel=0.01)
    assert peak["gradient"] >= peak["parameter"]
    assert "unknown" not in peak
    assert all(row.inferred == row.bytes for row in categories.peak)
    text = by_category(device)
    assert text is not None
    assert "activations" in text


def test_a_file_without_stacks_says_nothing_of_purposes():
    device = analyse_trace(read_trace(DATA / "random_mix.c0.pickle.xz")).devices[0]
    assert by_category(device) is None
