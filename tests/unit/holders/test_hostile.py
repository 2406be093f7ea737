"""Objects of the notebook whose own code fails or lies: it is not run, and costs no other object its holder."""

from __future__ import annotations

import gc
import inspect

import pytest

torch = pytest.importorskip("torch")

from held_cells import BYTES, COUNT, find, run  # type: ignore[import-not-found]  # noqa: E402

from gpumem_magic.holders import who_holds  # noqa: E402
from gpumem_magic.holders.names import names_in_use  # noqa: E402
from gpumem_magic.holders.release import release  # noqa: E402
from gpumem_magic.holders.scratch import Scratch  # noqa: E402


def test_objects_that_lie_about_themselves(shell):
    code = """
    class Liar:
        @property
        def __class__(self): return torch.Tensor
        @property
        def __dict__(self): raise KeyError("nobody asked")
        def __getattr__(self, name): return getattr(self, name + "x")
        def __len__(self): raise KeyError("nobody asked")
        def __hash__(self): return 1
        def __eq__(self, other): raise KeyError("nobody asked")
    class Keyed(dict):
        def __iter__(self): raise KeyError("nobody asked")
        def items(self): raise KeyError("nobody asked")
        def values(self): raise KeyError("nobody asked")
    liar = Liar()
    box = Keyed({liar: [torch.ones(N)]})
    """
    run(shell, code)
    assert find(shell, quick=True).holders[0].path == "box[<Liar>][0]"


# What CuPy's and Numba's arrays are to us: a class of that library with the interface as a property.
ARRAYS = """
class Array:
    def __init__(self, at): self.at = at
    @property
    def __cuda_array_interface__(self): return {"data": (self.at, False), "version": 3}
Array.__module__ = LIBRARY
"""


@pytest.mark.parametrize("library", ["cupy", "numba.cuda.cudadrv.devicearray"])
def test_a_gpu_librarys_array_over_a_tensors_memory(shell, library):
    # The address alone leads from one to the other, here in the middle of the storage.
    run(shell, f"LIBRARY = {library!r}\n{ARRAYS}\nx = torch.ones(N)\nshown = [Array(x.data_ptr() + 64)]")
    holders = [holder.path for holder in find(shell, quick=True).holders]
    assert holders == ["x", f"shown[0] ({library.partition('.')[0]} array)"]


def test_a_gpu_librarys_array_over_memory_without_a_tensor_is_kept_for_the_allocators_blocks(shell):
    run(shell, f"LIBRARY = 'cupy'\n{ARRAYS}\nshown = Array(7)\nx = torch.ones(N)")
    assert who_holds(shell, budget=60, quick=True).foreign == {7: "shown (cupy array)"}


def test_a_wrapper_of_the_users_own_is_followed_and_not_asked(shell):
    code = """
    class Wrapper:
        def __init__(self, tensor): self.tensor = tensor
        @property
        def __cuda_array_interface__(self): raise KeyError("nobody asked")
    wrapped = Wrapper(torch.ones(N))
    """
    run(shell, code)
    assert [holder.path for holder in find(shell, quick=True).holders] == ["wrapped.tensor"]


@pytest.mark.parametrize("quick", [True, False])
def test_no_code_of_a_metaclass_runs(shell, quick):
    code = """
    asked = []
    class Meta(type):
        def __getattribute__(cls, name):
            asked.append(name)
            raise RuntimeError(name)
    Odd = type.__call__(Meta, "Odd", (), {"__slots__": ("tensor",)})
    odd = type.__call__(Odd)
    odd.tensor = torch.ones(N)
    asked.clear()
    """
    run(shell, code)
    assert [holder.path for holder in find(shell, quick=quick).holders] == ["odd.tensor"]
    shell.user_ns["Odd"].table = shell.user_ns.pop("odd").tensor
    assert [holder.path for holder in find(shell, quick=quick).holders] == ["Odd.table"]
    assert shell.user_ns["asked"] == []


def test_an_array_class_of_the_users_own_runs_no_code(shell):
    code = """
    import numpy
    made = []
    class Own(numpy.ndarray):
        def __array_finalize__(self, base): made.append(base)
    own = numpy.empty((2, 2), object).view(Own)
    own[1, 0] = torch.ones(N)
    made.clear()
    """
    run(shell, code)
    assert find(shell, quick=True).holders[0].path == "own.flat[2]"
    assert shell.user_ns["made"] == []


def test_what_a_pack_hook_put_aside_in_a_function_says_which(shell):
    def work():
        x = torch.ones(8, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda _: [torch.ones(COUNT)], lambda packed: packed[0][:8]):
            loss = x.exp()
        scan = who_holds(shell, budget=60, quick=True, function=inspect.currentframe())
        return loss, [storage.holders[0].path for storage in scan.storages if storage.size == BYTES]

    _, paths = work()
    assert paths == ["loss.grad_fn → ExpBackward0.saved_result, packed by a hook[0] in function work"]


META = """
class Meta(type):
    def __hash__(cls): raise ValueError("nobody asked")
    def __eq__(cls, other): raise ValueError("nobody asked")
class Odd(metaclass=Meta):
    pass
class OddList(list, metaclass=Meta):
    pass
class OddDict(dict, metaclass=Meta):
    pass
odd = Odd()
odd.kept = torch.ones(N)
odd.more = OddList([OddDict(key=torch.ones(N + 1))])
odd.held = {odd: torch.ones(N + 2), "kind": Odd}
plain = [torch.ones(N + 3)]
"""


def test_a_class_whose_hash_raises_costs_no_other_object_its_holder(shell):
    run(shell, META)
    run(shell, "class OddNet(torch.nn.Linear, metaclass=Meta): pass\nnet = OddNet(N, 1, bias=False)")
    for quick in (True, False):
        found = {s.size - BYTES: s.holders[0].path for s in who_holds(shell, budget=60, quick=quick).storages}
        assert found[4] == "odd.more[0]['key']"
        assert found[8] in {"odd.held[<Odd>]", "odd.held[<OddNet>]"}
        assert found[12] == "plain[0]"
    paths = [s.holders[0].path for s in who_holds(shell, budget=60).storages if s.size == BYTES]
    assert sorted(paths) == ["net.weight", "odd.kept"]


def test_a_class_whose_hash_raises_stops_no_look_at_models_steps_cycles_and_names(shell):
    from gpumem_magic.holders import count_models, first_steps

    run(shell, META)
    code = """
    class OddNet(torch.nn.Module, metaclass=Meta):
        def __init__(self):
            super().__init__()
            self.wide = torch.nn.Linear(1024, 1024)
    net = OddNet()
    adam = torch.optim.Adam(net.parameters())
    net.wide(torch.ones(1, 1024)).sum().backward()
    lost = Odd()
    lost.me, lost.kept = lost, torch.ones(N + 4)
    del lost
    """
    gc.disable()
    try:
        run(shell, code)
        assert count_models("OddNet") == 1
        assert [step.optimizer for step in first_steps()] == ["Adam"]
        cycle = next(s for s in who_holds(shell, budget=60).storages if s.size == BYTES + 16)
        assert cycle.holders[0].path.startswith("reference cycle Odd.me → Odd (freed by gc.collect()")
        assert "odd" in names_in_use("odd.kept", shell.user_ns)
        freed = release(shell)
        assert freed[0].tensors["cpu"] >= BYTES + 16
    finally:
        gc.enable()


def test_keys_of_the_namespace_that_are_no_names(shell):
    run(shell, "globals()[5] = torch.ones(N)")
    assert [holder.path for holder in find(shell).holders] == ["globals()[5]"]
    shell.user_ns[7, 8] = shell.user_ns.pop(5)
    assert [holder.path for holder in find(shell).holders] == ["globals()[…]"]
    assert [step.step for step in release(shell, outputs=True)][-1] == "torch's free cache"
    scratch = Scratch(shell)
    run(shell, "globals()[6] = made = 1")
    scratch.end(failed=False)
    assert scratch.removed == ("made",)
    assert 6 in shell.user_ns
