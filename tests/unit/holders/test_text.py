"""What %gpumem_who prints of a scan: what is alike shares a row where the table would be cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpumem_magic._errors import BadUsageError
from gpumem_magic.holders import Category, Holder, HolderKind, HolderScan, Storage, describe_scan

MIB = 1 << 20
_addresses = itertools.count(4096, 4096)


def storage(path: str, size: int = MIB, **more: Any) -> Storage:
    kind = more.pop("kind", HolderKind.VARIABLE)
    others = tuple(Holder(kind, name, name) for name in more.pop("also", ()))
    root = path.split(".", 1)[0].split("[", 1)[0]
    known: dict[str, Any] = {"category": Category.OTHER, "shape": (size // 4,)} | more
    holders = (Holder(kind, path, root), *others)
    return Storage("cuda:0", next(_addresses), size, 1, dtype="float32", holders=holders, **known)


def lines(*storages: Storage, **more: Any) -> list[str]:
    graphs = more.pop("graphs", ())
    ordered = tuple(sorted(storages, key=lambda one: -one.size))
    return describe_scan(HolderScan(ordered, 9, 0.1, None, graphs), **more).splitlines()


def test_many_of_one_list_are_one_row_and_leave_room_for_the_rest():
    outputs = [storage(f"trainer.outputs[{number}]") for number in range(412)]
    weight = storage("model.layers[0].weight", 3 * MIB, category=Category.PARAMETER)
    text = lines(weight, *outputs)
    assert text[1:3] == [
        "   412 MiB  cuda:0  412 × tensor 262144 float32  trainer.outputs[0…411]",
        "  3.00 MiB  cuda:0  parameter 786432 float32     model.layers[0].weight",
    ]
    assert "more" not in "".join(text)


def test_what_fits_into_the_table_is_listed_one_by_one():
    text = lines(*(storage(f"kept[{number}]") for number in range(8)))
    assert [line.split()[-1] for line in text[1:9]] == [f"kept[{number}]" for number in range(8)]


def test_parameters_keep_rows_of_their_own_and_three_alike_too():
    layers = [storage(f"net[{number}].weight", 2 * MIB, category=Category.PARAMETER) for number in range(5)]
    three = [storage(f"last[{number}]") for number in range(3)]
    text = lines(*layers, *three, top=7)
    assert [line.split()[-1] for line in text[1:8]] == [*(f"net[{number}].weight" for number in range(5)), *_last(2)]
    assert text[8] == "  … and 1 more, 1.00 MiB in all"


def _last(count: int) -> list[str]:
    return [f"last[{number}]" for number in range(count)]


def test_shapes_that_differ_and_two_indices():
    rows = [storage(f"log[{number % 2}]['x'][{number}]", (number + 1) * MIB) for number in range(6)]
    assert lines(*rows, top=3)[1] == "  21.0 MiB  cuda:0  6 × tensor float32, of several shapes  log[0…1]['x'][0…5]"


def test_what_one_graph_saved_is_one_row_and_counted_beside_its_nodes():
    saved = [
        storage("total.grad_fn → MulBackward0.saved_self", kind=HolderKind.GRAPH, category=Category.ACTIVATION)
        for _ in range(30)
    ]
    text = lines(*saved, storage("x", 2 * MIB), graphs=(("total", 61),))
    assert text[1].endswith("30 × activation 262144 float32  total.grad_fn → MulBackward0.saved_self")
    assert "  total keeps 61 autograd nodes alive, and 30.0 MiB that they saved" in text


def test_a_graph_that_saved_nothing_is_told_by_its_nodes_alone():
    assert "  total keeps 61 autograd nodes alive" in lines(storage("x"), graphs=(("total", 61),))


def test_more_names_than_are_shown_are_counted():
    text = lines(storage("a", also=("b", "c", "d", "e", "f")))
    assert text[1].endswith("a (also b, c, d and 2 more)")


@pytest.mark.parametrize("device", ["0", "cuda", "cuda:0", "hip:0"])
def test_a_device_by_number_and_in_torchs_notation(device):
    assert lines(storage("x"), device=device)[0] == "gpumem: 1 live tensor storage holds 1.00 MiB on cuda:0."


def test_devices_without_tensors_and_such_as_no_machine_has():
    assert lines(storage("x"), device="1") == ["gpumem: no live tensor on device 1."]
    assert lines(storage("x"), device="cpu") == ["gpumem: no live tensor on cpu."]
    with pytest.raises(BadUsageError, match="not 'nonsense'"):
        lines(storage("x"), device="nonsense")
