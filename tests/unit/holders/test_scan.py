"""Each snippet makes one storage of a size that nothing else has; the scan must name the way to it."""

from __future__ import annotations

import gc
import sys
import textwrap
import threading
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.holders import Category, HolderKind, describe_scan, release_text, who_holds  # noqa: E402
from gpumem_magic.holders.release import release  # noqa: E402

COUNT = 12_347  # elements; 49,388 bytes


class Shell:
    """The part of IPython's shell that a scan reads."""

    def __init__(self) -> None:
        self.user_ns: dict[str, object] = {"__name__": "__main__"}
        self.user_ns_hidden: dict[str, object] = {}


@pytest.fixture
def shell():
    gc.collect()
    made = Shell()
    yield made
    # Functions of the snippet hold their namespace: a graph in it would otherwise outlive the test.
    made.user_ns.clear()
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


def run(shell: Shell, code: str) -> None:
    exec(compile(textwrap.dedent(code), "<cell>", "exec"), shell.user_ns)  # noqa: S102 - stands for a cell


def find(shell: Shell, size: int = COUNT * 4, *, quick: bool = True):
    found = [storage for storage in who_holds(shell, budget=30, quick=quick).storages if storage.size == size]
    assert len(found) == 1, found
    return found[0]


CASES = {
    "variable": ("x = torch.ones(N)", "x"),
    "attribute": ("class T: pass\nt = T(); t.cfg = {'a': [torch.ones(N)]}", "t.cfg['a'][0]"),
    "slots": ("class T:\n    __slots__ = ('w',)\nt = T(); t.w = torch.ones(N)", "t.w"),
    "parameter": ("m = torch.nn.Sequential(torch.nn.Linear(N, 1, bias=False))", "m[0].weight"),
    "named module": ("m = torch.nn.ModuleDict({'head': torch.nn.Linear(N, 1, bias=False)})", "m.head.weight"),
    "closure": ("def f(t):\n    return lambda: t\ng = f(torch.ones(N))", "g (closure variable `t`)"),
    "default": ("def f(a=torch.ones(N)): pass", "f (default argument)[0]"),
    "partial": ("import functools\np = functools.partial(print, torch.ones(N))", "p.args[0]"),
    "generator": ("def g():\n    acts = torch.ones(N)\n    yield\ni = g(); next(i)", "i (generator g, local `acts`)"),
    "lru_cache": ("import functools\n@functools.lru_cache\ndef c(): return torch.ones(N)\nc()", "c (functools cache)"),
    "named tuple": ("import collections\nP = collections.namedtuple('P', 'u v')\np = P(1, torch.ones(N))", "p.v"),
    "class attribute": ("class T:\n    cache = {'k': torch.ones(N)}", None),
    "hook": (
        "m = torch.nn.Linear(1, 1)\n_h = m.register_forward_hook(lambda *a, keep=torch.ones(N): None)",
        "m._forward_hooks",
    ),
    "buffer": ("m = torch.nn.Module()\nm.register_buffer('b', torch.ones(N))", "m.b"),
    "numpy view": ("x = torch.ones(N)[3:5]", "x"),
}


@pytest.mark.parametrize("name", CASES)
def test_path_of_a_variable(shell, name):
    code, expected = CASES[name]
    run(shell, "import torch\n" + code.replace("(N", f"({COUNT}"))
    storage = find(shell)
    assert storage.device == "cpu"
    holder = storage.holders[0]
    assert holder.kind is HolderKind.VARIABLE
    if expected is None:
        assert holder.root == "T"
    else:
        assert holder.path.startswith(expected)


def test_shared_storage_is_counted_once_with_every_name(shell):
    run(shell, f"import torch\na = torch.ones({COUNT})\nb = a.view(-1)[:7]\nc = a")
    storage = find(shell)
    assert {holder.path for holder in storage.holders} == {"a", "b", "c"}
    assert storage.tensors == 2


def test_categories_of_a_training_step(shell):
    run(
        shell,
        f"""
        import torch
        model = torch.nn.Linear({COUNT}, 1, bias=False)
        opt = torch.optim.Adam(model.parameters())
        model(torch.ones(2, {COUNT})).sum().backward()
        opt.step()
        """,
    )
    scan = who_holds(shell, budget=30, quick=True)
    found = {storage.holders[0].path: storage.category for storage in scan.storages if storage.size == COUNT * 4}
    assert found == {
        "model.weight": Category.PARAMETER,
        "model.weight.grad": Category.GRADIENT,
        "opt.state[model.weight]['exp_avg']": Category.OPTIMIZER,
        "opt.state[model.weight]['exp_avg_sq']": Category.OPTIMIZER,
    }


def test_graph_behind_a_scalar_is_followed(shell):
    run(
        shell,
        f"""
        import torch
        w = torch.ones(3, requires_grad=True)
        total = (w.sum() * torch.ones({COUNT})).exp().sum()
        """,
    )
    scan = who_holds(shell, budget=30, quick=True)
    kept = [storage for storage in scan.storages if storage.size == COUNT * 4]
    assert kept
    for storage in kept:
        assert storage.category is Category.ACTIVATION
        assert storage.holders[0].kind is HolderKind.GRAPH
        assert storage.holders[0].path.startswith("total.grad_fn → ")
    run(shell, "total.backward()")
    assert not [storage for storage in who_holds(shell, budget=30, quick=True).storages if storage.size == COUNT * 4]


def test_checkpoint_is_not_run_again_by_looking(shell):
    run(
        shell,
        f"""
        import torch
        from torch.utils.checkpoint import checkpoint
        calls = []
        def block(x):
            calls.append(1)
            return x.exp().sin()
        x = torch.ones({COUNT}, requires_grad=True)
        y = checkpoint(block, x, use_reentrant=False).sum()
        """,
    )
    who_holds(shell, budget=30, quick=True)
    assert len(shell.user_ns["calls"]) == 1


def test_reference_cycle_is_late_not_lost(shell):
    gc.disable()
    try:
        run(
            shell,
            f"""
            import torch
            class Net:
                def __init__(self):
                    self.w = torch.ones({COUNT})
                    self.fn = self.forward
                def forward(self): pass
            Net()
            """,
        )
        holder = find(shell, quick=False).holders[0]
        assert holder.kind is HolderKind.CYCLE
        assert "Net.fn.__self__ → Net" in holder.path
        assert [(step.step, step.tensors) for step in release(shell) if step.tensors] == [
            ("reference cycles", {"cpu": COUNT * 4})
        ]
    finally:
        gc.enable()


def _fail(shell: Shell, code: str) -> None:
    try:
        run(shell, code)
    except ValueError as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__


def test_last_error_keeps_locals_until_released(shell):
    _fail(shell, f"import torch\ndef train():\n    acts = torch.ones({COUNT})\n    raise ValueError('x')\ntrain()")
    holder = find(shell).holders[0]
    assert holder.kind is HolderKind.LAST_ERROR
    assert holder.path == "last error: ValueError in train(), local `acts`"
    assert "%gpumem_free" in describe_scan(who_holds(shell, budget=30, quick=True))
    steps = release(shell)
    assert steps[1].step == "last error"
    assert steps[1].tensors == {"cpu": COUNT * 4}
    assert "48.2 KiB of tensors on cpu" in release_text(steps)
    assert not [storage for storage in who_holds(shell).storages if storage.size == COUNT * 4]


def test_chained_error_is_followed(shell):
    _fail(
        shell,
        f"""
        import torch
        def inner():
            acts = torch.ones({COUNT})
            raise KeyError('k')
        def outer():
            try:
                inner()
            except KeyError as error:
                raise ValueError('v') from error
        outer()
        """,
    )
    assert find(shell).holders[0].path == "last error: KeyError in inner(), local `acts`"


def test_output_history_in_all_its_names(shell):
    tensor = torch.ones(COUNT)
    history = {7: tensor}
    shell.user_ns.update({"_oh": history, "Out": history, "_7": tensor, "_": tensor})
    shell.user_ns_hidden.update({"__": tensor})
    del tensor
    storage = find(shell)
    assert {holder.path for holder in storage.holders} == {"Out[7]", "_7", "_", "__"}
    assert {holder.kind for holder in storage.holders} == {HolderKind.OUTPUT}
    assert all("output" not in step.step for step in release(shell))
    freed = {step.step: step.tensors for step in release(shell, outputs=True)}
    assert freed["output history"] == {"cpu": COUNT * 4}


def test_function_that_runs_on_another_thread(shell):
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        batch = torch.ones(COUNT)
        entered.set()
        leave.wait(30)
        del batch

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(30)
    try:
        holder = find(shell, quick=False).holders[0]
    finally:
        leave.set()
        thread.join()
    assert (holder.kind, holder.path) == (
        HolderKind.RUNNING,
        f"running in work() on thread {thread.name}, local `batch`",
    )


def test_imported_module(shell, monkeypatch):
    module = types.ModuleType("helpers_of_the_user")
    module.cache = {"a": torch.ones(COUNT)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    holder = find(shell, quick=False).holders[0]
    assert (holder.kind, holder.path) == (HolderKind.MODULE, "module helpers_of_the_user: cache['a']")


def test_class_of_an_imported_module(shell, monkeypatch):
    module = types.ModuleType("classes_of_the_user")
    exec("class Store:\n    shared = []", module.__dict__)  # noqa: S102 - stands for a file
    module.Store.shared.append(torch.ones(COUNT))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert find(shell, quick=False).holders[0].path == "module classes_of_the_user: Store.shared[0]"


class _Hostile:
    """Whatever is asked of it, it fails; looking must not ask."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class _HostileMeta(type):
    def __getattribute__(cls, name):
        raise SystemExit(name)


@pytest.mark.parametrize("quick", [True, False])
def test_no_code_of_a_metaclass_runs(shell, quick):
    hostile = _HostileMeta("Hostile", (), {"__module__": "__main__", "cache": torch.ones(COUNT)})
    shell.user_ns["hostile"] = hostile
    assert find(shell, quick=quick).holders[0].path == "hostile.cache"


def test_hostile_objects_are_survived(shell):
    class Target:
        pass

    target = Target()
    proxy = weakref.proxy(target)
    del target
    shell.user_ns.update(dead=proxy, hostile=_Hostile(), box=[_Hostile(), torch.ones(COUNT)])
    assert find(shell).holders[0].path == "box[1]"


def test_nothing_is_kept_alive_by_a_scan(shell):
    shell.user_ns["x"] = torch.ones(COUNT)
    scan = who_holds(shell)
    dead = weakref.ref(shell.user_ns["x"])
    del shell.user_ns["x"]
    assert dead() is None
    assert scan.total("cpu") >= COUNT * 4


def test_a_spent_budget_is_stated(shell):
    shell.user_ns["many"] = [[number] for number in range(5000)]
    scan = who_holds(shell, budget=0.0)
    assert scan.cut is not None
    assert "stopped after 0 s" in describe_scan(scan) or not scan.storages


def test_a_list_of_any_length_is_left_when_the_time_is_over(shell):
    shell.user_ns["many"] = [*([number] for number in range(60_000)), torch.ones(COUNT)]
    scan = who_holds(shell, budget=0.0)
    assert scan.objects < 30_000
    found = next(storage for storage in scan.storages if storage.size == COUNT * 4)
    assert found.holders[0].path == "not found before the time was over"


def test_unknown_variable_releases_nothing(shell):
    from gpumem_magic._errors import BadUsageError

    shell.user_ns["x"] = torch.ones(COUNT)
    with pytest.raises(BadUsageError, match="nothing was released"):
        release(shell, variables=["x", "nope"])
    assert "x" in shell.user_ns
    freed = {step.step: step.tensors for step in release(shell, variables=["x"])}
    assert freed["variables x"] == {"cpu": COUNT * 4}


CRUMBS = """
import torch
class Net: pass
for n in range(3):
    net = Net(); net.me = net; net.weight = torch.ones(13 if n else 100_000)
del net
"""


@pytest.mark.parametrize("few", [0, 100_000])
def test_what_is_next_to_nothing_is_looked_for_where_it_is_not_much_and_else_said_not_to_be(shell, monkeypatch, few):
    # How many crumbs other tests have left in this process is not known.
    monkeypatch.setattr("gpumem_magic.holders.scan._FEW_CRUMBS", few)
    gc.disable()
    try:
        run(shell, CRUMBS)
        scan = who_holds(shell, budget=30)
    finally:
        gc.enable()
    assert [one.holders[0].kind for one in scan.storages if one.size == 400_000] == [HolderKind.CYCLE]
    crumbs = [one.holders[0] for one in scan.storages if one.size == 52]
    if few:
        assert [one.kind for one in crumbs] == [HolderKind.CYCLE] * 2
    else:
        assert {one.path for one in crumbs} == {"not looked for: next to nothing beside the rest"}
