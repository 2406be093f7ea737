"""Holders that are hard to see: frames in cycles, classes, modules, hooks that C++ keeps."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import re
import shutil
import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

from held_cells import BYTES, COUNT, find, run  # type: ignore[import-not-found]  # noqa: E402

from gpumem_magic.holders import HolderKind, StorageWitness, describe_scan, who_holds  # noqa: E402
from gpumem_magic.holders.names import names_in_use  # noqa: E402
from gpumem_magic.holders.release import release  # noqa: E402


def test_an_error_whose_frame_holds_it(shell):
    gc.disable()
    code = """
    def work():
        scratch = torch.ones(N)
        try:
            raise KeyError("missing")
        except KeyError as error:
            kept = error
    work()
    """
    run(shell, code)
    holder = find(shell).holders[0]
    assert holder.kind is HolderKind.CYCLE
    assert "KeyError.__traceback__ (frame work, local `kept`) → KeyError" in holder.path


def test_errors_in_a_list(shell):
    code = """
    errors = []
    def work():
        scratch = torch.ones(N)
        raise ValueError
    try:
        work()
    except ValueError as error:
        errors.append(error)
    """
    run(shell, code)
    assert find(shell, quick=True).holders[0].path == "errors[0].__traceback__ (frame work, local `scratch`)"


def test_a_class_attribute(shell):
    run(shell, "class Encoder:\n    memory = []\nEncoder.memory.append(torch.ones(N))")
    assert find(shell, quick=True).holders[0].path == "Encoder.memory[0]"


def test_a_module_of_the_users_own(shell):
    store = types.ModuleType("feature_store")
    vars(store)["items"] = [torch.ones(COUNT)]
    shell.user_ns["feature_store"] = store
    for quick in (True, False):
        holder = find(shell, quick=quick).holders[0]
        assert (holder.kind, holder.path) == (HolderKind.VARIABLE, "feature_store.items[0]")


# Nothing frees these again, so that they have a size of their own.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize(
    "code",
    [
        "y = torch.ones(N, requires_grad=True) * 2\n    y.register_hook(lambda g: y)",
        "x = torch.ones(N, requires_grad=True)\n    x.register_post_accumulate_grad_hook(lambda p: x)",
        "x = torch.ones(N, requires_grad=True)\n    (x**3).sum().backward(create_graph=True)\n    x.grad.retain = 1",
    ],
)
def test_a_cycle_that_the_collector_cannot_free(shell, code):
    run(shell, f"def f():\n    {code.replace('N', 'N * 2')}\nf()")
    gc.collect()
    kinds = {s.holders[0].kind for s in who_holds(shell, budget=60).storages if s.size == 2 * BYTES}
    assert HolderKind.GRAPH_CYCLE in kinds
    assert HolderKind.CYCLE not in kinds


def test_a_quick_scan_looks_at_the_notebooks_names_alone(shell):
    # An array's address is compared with all tensors, which makes them no part of what is told.
    run(shell, "x = torch.ones(N)\nhidden = None\nimport numpy\narray = numpy.zeros(9)")
    aside = torch.ones(7)
    found = who_holds(shell, quick=True)
    assert [(s.size, s.holders[0].path) for s in found.storages] == [(BYTES, "x")]
    key = (found.storages[0].device, found.storages[0].address)
    assert found.witnesses[key]() is shell.user_ns["x"]
    run(shell, "x = None")
    assert found.witnesses[key]() is None
    assert aside.numel() == 7


def test_a_quick_scan_looks_at_all_objects_for_nobody_but_borrowed_memory(shell, monkeypatch):
    run(shell, "import numpy\nx = torch.ones(N)\nown = numpy.zeros(9)[2:]\nshared = x.numpy()")

    def get_objects():
        raise AssertionError("all objects were looked at")

    with monkeypatch.context() as forbidden:
        forbidden.setattr(gc, "get_objects", get_objects)
        assert find(shell, quick=True).holders[0].path == "x"
    run(shell, "del x, shared\nborrowed = numpy.from_dlpack(torch.ones(N))")
    assert find(shell, quick=True).holders[0].path == "borrowed (NumPy array)"


def test_a_storage_is_recognised_by_itself_not_by_its_tensor_or_place():
    memory = bytearray(256)
    tensor, other = torch.frombuffer(memory, dtype=torch.float32), torch.ones(64)
    witness = StorageWitness(tensor)
    view = tensor[3:]
    assert witness.is_of(tensor)
    assert witness.is_of(view)
    assert not witness.is_of(other)
    address = tensor.data_ptr()
    # Another storage under the same object at the same place.
    tensor.data = torch.frombuffer(memory, dtype=torch.float32)
    assert tensor.data_ptr() == address
    assert not witness.is_of(tensor)
    assert witness.is_of(view)
    del view
    assert witness.is_gone()
    assert not witness.is_of(tensor)
    with pytest.raises(ValueError, match="no tensor with a storage"):
        StorageWitness(torch.empty(0))


def test_a_storage_without_a_tensor_is_recognised():
    tensor = torch.ones(64)
    storage = tensor.untyped_storage()
    witness = StorageWitness(storage)
    assert witness.is_of(tensor)
    del tensor
    assert witness.is_of(storage)
    del storage
    assert witness.is_gone()


def test_measuring_and_recognising_run_no_code_of_a_users_class(shell):
    class Loud(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, *_arguments):
            raise KeyError("nobody asked")

    loud = torch.ones(COUNT).as_subclass(Loud)
    assert StorageWitness(loud).is_of(loud)
    run(shell, "x = torch.ones(N)")
    steps = {step.step: step.tensors for step in release(shell, variables=["x"])}
    assert steps["variables x"] == {"cpu": BYTES}


def test_graphs_in_a_list_count_together(shell):
    run(shell, "w = torch.ones(3, requires_grad=True)\nlosses = [(w * 2).sum() for _ in range(9)]")
    assert [(root, nodes) for root, nodes in who_holds(shell, quick=True).graphs] == [("losses", 19)]


def test_variables_in_use_come_first(shell):
    code = """
    class Trainer: pass
    a = torch.ones(N)
    trainer = Trainer(); trainer.model = a
    def fit(): return trainer.model
    """
    run(shell, code)
    used = names_in_use("fit()", shell.user_ns)
    assert used == {"fit", "trainer"}
    assert find(shell, quick=True).holders[0].path == "a"
    assert find(shell, first=used).holders[0].path == "trainer.model"


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler for the CPU")
def test_what_is_frozen_in_the_compile_cache_outlives_its_model_and_is_given_back_when_asked(shell):
    code = """
    import torch._inductor.config
    def serve():
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(N))
            def forward(self, x):
                return (x * self.w.exp()).sin().sum()
        compiled = torch.compile(Net())
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            compiled(torch.ones(1))
    serve()
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(shell, code)
    gc.collect()
    found = who_holds(shell, budget=60)
    kept = [s for s in found.storages if s.size == BYTES and s.holders[0].kind is HolderKind.COMPILE_CACHE]
    assert kept
    assert all("torch.compile's cache" in s.holders[0].path or "compile_tasks" in s.holders[0].path for s in kept)
    assert "held by torch.compile's cache alone: %gpumem_free gives it back (with --compiled)" in describe_scan(found)
    assert not any("compile" in step.step for step in release(shell))
    freed = {step.step: step.tensors for step in release(shell, compiled=True)}
    assert freed["compile cache"]["cpu"] >= BYTES
    assert not [s for s in who_holds(shell, budget=60).storages if s.size == BYTES]


def test_a_look_at_a_running_functions_variables_leaves_nothing_behind(shell):
    code = """
    import weakref
    def steps():
        acts = torch.ones(N)
        yield weakref.ref(acts)
        del acts
        yield None
    running = steps()
    """
    run(shell, code)
    witness = next(shell.user_ns["running"])
    assert find(shell, quick=True).holders[0].path == "running (generator steps, local `acts`)"
    next(shell.user_ns["running"])
    assert witness() is None


def test_what_only_c_code_holds_is_no_cycle(shell):
    import atexit

    run(shell, "def work(x): pass\nbox = [torch.ones(N)]\nbox.append(box)")
    work, box = shell.user_ns["work"], shell.user_ns.pop("box")
    atexit.register(work, box)
    del box
    try:
        holder = find(shell).holders[0]
        assert holder.kind is HolderKind.OUTSIDE
        assert "which only C code holds" in holder.path
    finally:
        atexit.unregister(work)


def test_an_object_of_the_shell_that_is_no_name(shell):
    shell.panel = types.SimpleNamespace(plots=[torch.ones(COUNT)])
    holder = find(shell).holders[0]
    assert (holder.kind, holder.path) == (HolderKind.MODULE, "IPython's shell.panel.plots[0]")
    del shell.panel


def test_a_users_class_whose_code_would_fail(shell):
    code = """
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *arguments): raise KeyError("nobody asked")
    class Pile(list):
        def __iter__(self): raise KeyError("nobody asked")
    class Fault(Exception):
        @property
        def exceptions(self): raise KeyError("nobody asked")
    loud = torch.ones(N).as_subclass(Loud)
    pile = Pile(); list.append(pile, torch.ones(N + 1))
    fault = Fault(torch.ones(N + 2))
    """
    run(shell, code)
    found = {s.size: s.holders[0].path for s in who_holds(shell, budget=60, quick=True).storages}
    assert (found[BYTES], found[BYTES + 4], found[BYTES + 8]) == ("loud", "pile[0]", "fault.args[0]")


def test_a_task_that_waits_and_a_context_variable(shell):
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("current_batch")

    async def serve():
        buffer = torch.ones(COUNT + 5)
        await asyncio.sleep(3600)
        return buffer

    async def main():
        variable.set(torch.ones(COUNT + 1))
        task = asyncio.get_running_loop().create_task(serve(), name="server")
        await asyncio.sleep(0)
        found = {s.size: s.holders[0] for s in who_holds(shell, budget=60).storages}
        task.cancel()
        return found

    found = contextvars.copy_context().run(asyncio.run, main())
    assert found[BYTES + 20].kind is HolderKind.RUNNING
    # The test's own frame holds the task as well.
    assert found[BYTES + 20].path.endswith("(coroutine serve, local `buffer`)")
    assert found[BYTES + 4].path == "context variable `current_batch`"


def test_a_long_way_is_cut_in_its_middle_and_takes_no_recursion(shell):
    code = """
    class Node:
        def __init__(self, value, rest): self.value, self.rest = value, rest
    chain = None
    for number in range(20_000):
        chain = Node(torch.ones(N) if number == 0 else None, chain)
    deep = torch.ones(N + 6)
    for _ in range(20_000):
        deep = [deep]
    wide = list(range(1_000_000)) + [torch.ones(N + 7)]
    """
    run(shell, code)
    found = {s.size: s.holders[0].path for s in who_holds(shell, budget=60, quick=True).storages}
    assert re.fullmatch(r"chain …(\.rest)+\.value", found[BYTES])
    assert len(found[BYTES]) < 250
    assert re.fullmatch(r"deep …(\[0\])+", found[BYTES + 24])
    assert found[BYTES + 28] == "wide[1000000]"
    # Linked objects go one by one, each inside the other's end.
    while shell.user_ns["chain"] is not None:
        shell.user_ns["chain"] = shell.user_ns["chain"].rest


def test_what_a_checkpoint_recomputes_from_is_found_behind_its_output(shell):
    code = """
    from torch.utils.checkpoint import checkpoint
    net = torch.nn.Linear(8, 8)
    work, given = lambda x: net(x.view(-1, 8)).sum(), torch.ones(8 * N, requires_grad=True) * 1.0
    out = checkpoint(work, given, use_reentrant=False)
    del given
    """
    run(shell, code)
    held = [s.holders[0] for s in who_holds(shell, budget=60, quick=True).storages if s.size == 8 * BYTES]
    assert len(held) == 2  # what it recomputes from, and what that was made from
    assert all(holder.kind is HolderKind.GRAPH and holder.path.startswith("out.grad_fn → ") for holder in held)


def test_a_graph_that_a_ctx_keeps_with_a_tensor_is_followed(shell):
    code = """
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.keep = torch.ones(N)
            return x + 1
        @staticmethod
        def backward(ctx, grad): return grad
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.inner = Inner.apply(x.detach().requires_grad_())
            return ctx.inner.detach()
        @staticmethod
        def backward(ctx, grad): return grad
    y = Outer.apply(torch.ones(3, requires_grad=True)).sum()
    """
    run(shell, code)
    assert find(shell, quick=True).holders[0].path == "y.grad_fn → InnerBackward attribute `keep`"


@pytest.mark.filterwarnings("ignore:Using backward")
def test_every_parameter_that_create_graph_tied_to_its_gradient_is_in_a_cycle_that_gc_cannot_free(shell):
    code = """
    for _ in range(12):
        net = torch.nn.Linear(N, 1, bias=False)
        net(torch.ones(N)).pow(2).backward(create_graph=True)
    """
    run(shell, code)
    gc.collect()
    found = [s for s in who_holds(shell, budget=60).storages if s.size == BYTES]
    told = "cycle through the autograd graph: .grad.grad_fn → AccumulateGrad.variable; gc cannot free it"
    tied = [s for s in found if s.holders[0].path == told]
    assert len(tied) == 2 * 11
    assert {s.category.name for s in tied} == {"PARAMETER", "GRADIENT"}
    for tensor in [t for t in gc.get_objects() if type(t) is torch.nn.Parameter and t.numel() == COUNT]:
        tensor.grad = None  # else they live as long as this process


def test_a_context_variable_is_named_where_only_a_task_has_it(shell):
    code = """
    import asyncio, contextvars
    variable = contextvars.ContextVar("kept")
    many = [contextvars.ContextVar(f"other {number}") for number in range(40)]
    async def wait():
        variable.set(torch.ones(N))
        for number, other in enumerate(many):
            other.set(number)
        await asyncio.sleep(3600)
    async def start():
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        return task
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(start())
    """
    run(shell, code)
    try:
        path = find(shell).holders[0].path
    finally:
        shell.user_ns["task"].cancel()
        shell.user_ns["loop"].run_until_complete(asyncio.sleep(0))
        shell.user_ns["loop"].close()
    assert "(context variable `kept`)" in path
    assert "hamt" not in path


def test_the_notebooks_module_under_multiprocessings_name_is_no_second_holder(monkeypatch):
    from gpumem_magic.holders.roots import module_roots

    main = types.ModuleType("__main__")
    main.kept_by_the_notebook = torch.ones(3)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    assert not any("kept_by_the_notebook" in root.label for root in module_roots())


RETRY = """
def attempt(count):
    acts = torch.ones(count)
    raise {kind}("{text}")
def work():
    try:
        attempt(N)
    except {kind}:
        attempt(N + 1)
"""


@pytest.mark.parametrize(
    ("kind", "text", "first"),
    [
        ("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "error that was being handled"),
        ("MemoryError", "", "error that was being handled"),
        ("ValueError", "", "last error"),
    ],
)
def test_what_a_retry_inside_its_handler_could_not_use_is_told_from_what_it_had(shell, kind, text, first):
    run(shell, RETRY.format(kind=kind, text=text))
    try:
        shell.user_ns["work"]()
    except Exception as error:  # noqa: BLE001 - one of three
        sys.last_value = error  # which `release` takes away again
    found = {s.size - BYTES: s.holders[0] for s in who_holds(shell, budget=60, quick=True).storages}
    assert found[0].path == f"{first}: {kind} in attempt(), local `acts`"
    assert found[4].path == f"last error: {kind} in attempt(), local `acts`"
    assert release(shell)[1].tensors["cpu"] >= 2 * BYTES


def test_an_error_that_a_library_wrapped_is_the_last_one_all_the_same(shell, monkeypatch):
    code = """
    def attempt():
        acts = torch.ones(N)
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    def wrapped():
        try:
            attempt()
        except RuntimeError as error:
            raise KeyError("step 3") from error
    """
    run(shell, code)
    try:
        shell.user_ns["wrapped"]()
    except KeyError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert find(shell, quick=True).holders[0].path == "last error: RuntimeError in attempt(), local `acts`"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_only_a_traced_or_scripted_module_has_is_no_cycle(shell):
    code = """
    plain = torch.nn.Sequential(torch.nn.Linear(N, 1, bias=False))
    traced = torch.jit.trace(plain, torch.ones(2, N))
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(N + 1, 1, bias=False)))
    del plain
    """
    gc.disable()
    run(shell, code)
    for _ in range(2):  # with what tracing left for the collector, and without
        for quick in (True, False):
            found = {s.size - BYTES: s.holders[0].path for s in who_holds(shell, budget=60, quick=quick).storages}
            assert found[0] == "traced.0.weight"
            assert found[4] in {"scripted.0.weight", "scripted[0].weight"}
        gc.collect()


def test_hooks_on_modules_that_keep_tensors_are_listed(shell):
    code = """
    import functools
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    def keep(module, inputs, output): module.seen = output.detach()
    def note(tag, module, inputs): module.tag = tag
    handles = [layer.register_forward_hook(keep) for layer in net[:2]]
    net[2].register_forward_pre_hook(functools.partial(note, "x"))
    net(torch.ones(2, 3))
    """
    run(shell, code)
    lines = describe_scan(who_holds(shell, budget=60)).splitlines()
    assert "  net[0], net[1] keep tensors as attributes and have hooks: keep() (forward)" in lines
    assert not any("note()" in line for line in lines)  # which keeps no tensor
    run(shell, "for handle in handles: handle.remove()")
    assert not any("hooks:" in line for line in describe_scan(who_holds(shell, budget=60)).splitlines())
