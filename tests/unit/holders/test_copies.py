"""What is there more than once: checkpoints beside models, models of former runs, objects of former classes."""

from __future__ import annotations

import gc
import sys
import textwrap
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.holders import count_models, describe_scan, duplicates, models, who_holds  # noqa: E402

MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.big = torch.nn.Linear(1024, 300)
    def forward(self, x):
        acts = self.big(x)
        raise ValueError('a bad batch')
"""


@pytest.fixture
def shell():
    gc.collect()
    made = SimpleNamespace(user_ns={"__name__": "__main__"}, user_ns_hidden={})
    yield made
    made.user_ns.clear()
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


def run(shell, code):
    exec(compile(textwrap.dedent(code), "<cell>", "exec"), shell.user_ns)  # noqa: S102 - stands for a cell


def fail(shell, code):
    """Run a cell that fails, and keep its error as the interpreter does."""
    try:
        run(shell, code)
    except ValueError as error:
        sys.last_value = error
        if sys.version_info >= (3, 12):
            sys.last_exc = error
    else:
        raise AssertionError("it did not fail")


def lines(shell):
    return describe_scan(who_holds(shell, budget=60)).splitlines()


def test_a_checkpoint_beside_its_model_is_a_duplicate(shell):
    run(shell, f"{MODEL}\nnet = Net()\nckpt = {{'model': {{k: v.clone() for k, v in net.state_dict().items()}}}}")
    (found,) = duplicates(who_holds(shell, budget=60, quick=True))
    assert found == ("ckpt", "net", "cpu", 300 * 1025 * 4, 1.0)
    told = "  `ckpt` duplicates 100% of `net`'s parameters on cpu (same shapes), 1.17 MiB: "
    assert any(line.startswith(told) for line in lines(shell))


@pytest.mark.parametrize(
    "code",
    [
        "net = Net()",
        "net = Net()\nview = net.state_dict()",  # the same storages
        "net = Net()\nother = [torch.ones(300 * 1024)]",
        "net = Net()\noutputs = [torch.ones(300, 1024) for _ in range(3)]",
        "net = Net()\nopt = torch.optim.Adam(net.parameters())\nnet.big(torch.ones(1024)).sum().backward()\nopt.step()",
    ],
)
def test_what_only_resembles_a_model_is_none(shell, code):
    run(shell, f"{MODEL}\n{code}")
    scan = who_holds(shell, budget=60, quick=True)
    assert {storage.size for storage in scan.storages} >= {300 * 1024 * 4}
    assert duplicates(scan) == ()


def test_a_class_that_was_defined_again_is_told_with_what_its_objects_hold(shell):
    run(shell, f"{MODEL}\nold = [Net()]")
    assert not any("two versions" in line for line in lines(shell))
    run(shell, f"{MODEL}\nnet = Net()")
    told = "  two versions of class Net are alive, as it was defined again: objects of the former one hold 1.17 MiB "
    assert f"{told}(old[0].big.weight)" in lines(shell)
    run(shell, "old = [net]")
    assert not any("two versions" in line for line in lines(shell))


def test_models_of_former_runs_are_counted_and_the_errors_that_keep_them_named(shell):
    cell = "m = Net()\nm(torch.ones(4, 1024))"
    run(shell, MODEL)
    gc.disable()
    try:
        kept: list[object] = []
        for _ in range(2):
            fail(shell, cell)
            # What shows a traceback refers to its frames and is in turn referred to by them.
            kept = [sys.last_value]
            kept.append(kept)
        del kept
        fail(shell, cell)
        told = lines(shell)
    finally:
        gc.enable()
    assert "  3 instances of Net are alive, 3.52 MiB: held by m, reference cycle (2)" in told
    former = (
        "reference cycle through an earlier error's frame: forward(), local `self`.big.weight (freed by gc.collect()"
    )
    assert sum(former in line and "parameter 300×1024" in line for line in told) == 2
    assert any("last error: ValueError in forward(), local `acts`" in line for line in told)


def test_an_ensemble_is_no_accident(shell):
    run(shell, f"{MODEL}\nensemble = [Net() for _ in range(3)]")
    assert not any("instances of Net" in line for line in lines(shell))


def test_a_cycle_that_a_library_made_is_said_not_to_be_the_users(shell, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "boxlib.py").write_text("class Box:\n    def __init__(self, t):\n        self.t, self.me = t, self\n")
    monkeypatch.syspath_prepend(str(folder))
    run(shell, "import torch, boxlib\nbox = boxlib.Box(torch.ones(300_000))\ndel box")
    monkeypatch.delitem(sys.modules, "boxlib", raising=False)
    sys.modules["boxlib"] = shell.user_ns["boxlib"]
    try:
        told = lines(shell)
    finally:
        del sys.modules["boxlib"]
    path = "reference cycle Box.me → Box (freed by gc.collect(): late, not lost; a class of boxlib's, not your code)"
    assert any(line.endswith(path) for line in told)


def test_attributes_of_a_context_are_told_from_saved_tensors(shell):
    run(
        shell,
        """
        import torch
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mask = torch.ones(300_000)
                ctx.save_for_backward(torch.ones(200_000))
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * 2
        loss = Scaled.apply(torch.ones(8, requires_grad=True)).sum()
        """,
    )
    (told,) = [line for line in lines(shell) if "ctx" in line]
    assert told.startswith(
        "  1.14 MiB are attributes of ScaledBackward's ctx, which live as long as the graph: ctx.save_"
    )


def test_memory_that_processes_share_is_called_so(shell):
    run(shell, "import torch\nbatch = torch.ones(300_000).share_memory_()\nown = torch.ones(200_000)")
    shared = {storage.holders[0].path: storage.shared for storage in who_holds(shell, budget=60, quick=True).storages}
    assert shared == {"batch": True, "own": False}
    assert any("tensor 300000 float32, shared memory" in line for line in lines(shell))


def test_models_too_many_to_look_at_are_not_counted_as_none(monkeypatch):
    kept = type("Lonely", (torch.nn.Linear,), {})(2, 2)
    assert count_models("Lonely") == 1
    monkeypatch.setattr(models, "_MOST_MODULES", 0)
    assert count_models("Lonely") is None
    assert kept is not None


def test_an_error_of_hours_ago_that_holds_nothing_costs_no_look_at_all_objects(shell, monkeypatch):
    looks = []
    get_objects = gc.get_objects

    def counted(generation=None):
        if generation is None:
            looks.append(1)
        return get_objects(generation)

    code = "import numpy\ndef work():\n    batch = numpy.ones(1000)\n    raise ValueError('bad')\nwork()"
    fail(shell, code)
    monkeypatch.setattr(gc, "get_objects", counted)
    scan = who_holds(shell, budget=60, quick=True, only_errors=True)
    assert (scan.storages, scan.models, looks) == ((), (), [])
    fail(shell, f"{MODEL}\nnet = Net()\nnet(torch.ones(1024))")
    scan = who_holds(shell, budget=60, quick=True, only_errors=True)
    assert "Net" in {model.name for model in scan.models}
