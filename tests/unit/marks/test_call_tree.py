"""What modules are called, and that modules made by the million fill no memory."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

from gpumem_magic.recording.marks import call_tree
from gpumem_magic.recording.marks.call_tree import CallTree
from gpumem_magic.recording.module_paths import Parts

if TYPE_CHECKING:
    import pytest

    from gpumem_magic.recording.marks.call_tree import Node

CODE = (lambda: None).__code__


class Module:
    """What the tree needs of a module: its own modules by name."""

    def __init__(self, **modules: Module) -> None:
        self._modules = modules


class Linear(Module):
    pass


class Act(Module):
    pass


def called(tree: CallTree, top: Node, module: Module) -> Node:
    """Call a module from `top` as the watch does."""
    return top.kin.get(id(module)) or tree.of_module(top, CODE, module)


def names(tree: CallTree, *nodes: Node, **variables: Any) -> list[str]:
    told = tree.named(lambda module: next((name for name, value in variables.items() if value is module), None))
    return [told[node.number][0][1] if told[node.number] else "" for node in nodes]


def model() -> tuple[Module, Module, Module]:
    inner = Linear()
    block = Module(mlp=inner)
    return Module(layers=Module(**{"0": Module(), "1": block})), block, inner


def test_a_module_is_named_by_the_nearest_caller_that_holds_it() -> None:
    net, block, inner = model()
    tree = CallTree()
    first = called(tree, tree.root, net)
    second = called(tree, first, block)
    third = called(tree, second, inner)
    skipping = called(tree, first, inner)
    assert names(tree, first, second, third, skipping, net=net) == [
        "net", "net.layers[1]", "net.layers[1].mlp", "net.layers[1].mlp",
    ]  # fmt: skip
    assert called(tree, second, inner) is third
    assert skipping is not third


def test_a_module_that_joins_the_model_later_is_named_by_its_place() -> None:
    net, block, inner = model()
    tree = CallTree()
    top = called(tree, tree.root, net)
    called(tree, top, inner)  # the model was read here
    direct, deep = Act(), Act()
    net._modules["extra"] = direct
    block._modules["act"] = deep
    assert names(tree, called(tree, top, direct), called(tree, top, deep), net=net) == [
        "net.extra", "net.layers[1].act",
    ]  # fmt: skip


def test_modules_made_on_the_fly_share_a_few_nodes() -> None:
    net, _, _ = model()
    tree = CallTree()
    top = called(tree, tree.root, net)
    nodes = {called(tree, top, Act()).number for _ in range(10_000)}
    assert len(nodes) == call_tree._STRANGERS
    assert {*names(tree, *(tree._nodes[number] for number in nodes), net=net)} == {"Act"}
    assert {*top.kin} == set()


def test_what_modules_made_on_the_fly_hold_shares_nodes_too() -> None:
    tree = CallTree()
    inside = set()
    for _ in range(1_000):
        part = Linear()
        whole = Module(**{"0": part})
        inside.add(called(tree, called(tree, tree.root, whole), part).number)
    assert len(inside) == call_tree._STRANGERS
    assert {*names(tree, *(tree._nodes[number] for number in inside))} == {"Module[0]"}


def test_a_part_that_is_made_anew_each_time_keeps_its_node() -> None:
    net, _, _ = model()
    tree = CallTree()
    top = called(tree, tree.root, net)
    nodes = set()
    for _ in range(100):
        net._modules["head"] = part = Linear()
        nodes.add(called(tree, top, part))
    assert names(tree, *nodes, net=net) == ["net.head"]


def test_a_variable_names_the_module_that_it_holds_and_no_other() -> None:
    tree = CallTree()
    gone = called(tree, tree.root, Linear())
    kept = Linear()
    node = called(tree, tree.root, kept)
    for _ in range(50):
        shared = called(tree, tree.root, Linear())
    assert shared.is_shared
    late = Linear()
    assert called(tree, tree.root, late).is_shared
    assert names(tree, gone, node, called(tree, tree.root, late), model=kept, late=late) == [
        "Linear", "model", "Linear",
    ]  # fmt: skip


def test_the_identity_of_a_module_that_is_gone_means_nothing() -> None:
    tree = CallTree()
    for number in range(200):
        module = (Linear, Act)[number % 2]()  # of one size, so that they take each other's place in memory
        assert called(tree, tree.root, module).type_name == type(module).__name__
        del module
        assert not tree.root.kin


def test_a_module_in_a_cycle_is_let_go_by_the_collector() -> None:
    tree = CallTree()
    module = Linear()
    module._modules["self"] = module
    called(tree, tree.root, module)
    del module
    gc.collect()
    assert not tree.root.kin


def test_a_full_tree_says_so_and_counts_calls_as_their_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_tree, "MAX_NODES", 4)
    net = Module(**{str(number): Linear() for number in range(8)})
    tree = CallTree()
    top = called(tree, tree.root, net)
    inner = [called(tree, top, part) for part in net._modules.values()]
    assert tree.is_full
    assert [node.number for node in inner] == [2, 3, *[top.number] * 6]
    assert all(node.below is top for node in inner)
    assert len(tree._nodes) == 4
    below = called(tree, inner[-1], Act())
    assert (below.number, below.below) == (top.number, inner[-1])


def test_calls_that_a_full_tree_has_no_room_for_leave_nothing_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_tree, "MAX_NODES", 3)
    net = Module(act=Act(), linear=Linear())
    tree = CallTree()
    top = called(tree, tree.root, net)
    called(tree, top, net._modules["act"])
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            called(tree, called(tree, top, Linear()), Act())
            called(tree, top, net._modules["linear"])
        assert tree.is_full
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_reading_a_growing_model_again_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    read = []

    class Counted(Parts):
        __slots__ = ()

        def _read_level(self) -> None:
            read.append(self)
            now[0] += 0.005
            super()._read_level()

    monkeypatch.setattr(call_tree, "perf_counter", lambda: now[0])
    monkeypatch.setattr(call_tree, "Parts", Counted)
    net, _, _ = model()
    tree = CallTree()
    top = called(tree, tree.root, net)
    for _ in range(1_000):
        called(tree, top, Act())
        now[0] += 0.01
    whole = [parts for parts in {id(parts): parts for parts in read}.values() if read.count(parts) > 1]
    # Read at first, and again as far as 0.2 percent of 15 s (the single levels count as the cell's own) and a first
    # 1 ms allow: a reading takes 4 levels of 5 ms.
    assert 2 <= len(whole) <= 4


def test_threads_that_call_new_modules_at_once_get_numbers_of_their_own() -> None:
    tree = CallTree()
    nets = [Module(**{str(number): Linear() for number in range(300)}) for _ in range(4)]
    tops = [called(tree, tree.root, net) for net in nets]
    nodes: list[list[Node]] = [[] for _ in nets]

    def work(index: int) -> None:
        nodes[index] = [called(tree, tops[index], part) for part in nets[index]._modules.values()]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(nets))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    found = [node.number for part in nodes for node in part]
    assert len({*found}) == len(found) == 1200
    named = names(tree, *nodes[3], d=nets[3])
    assert named == [f"d[{number}]" for number in range(300)]
