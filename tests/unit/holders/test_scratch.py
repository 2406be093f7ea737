"""Scratch cells: what they made goes, what was there before stays."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from held_cells import BYTES, COUNT, run  # type: ignore[import-not-found]  # noqa: E402

from gpumem_magic.holders import who_holds  # noqa: E402
from gpumem_magic.holders.scratch import Scratch, scratch_text  # noqa: E402


def test_a_scratch_cell_leaves_what_was_there_before(shell):
    run(shell, "registry = {}\nbefore = torch.ones(3)")
    scratch = Scratch(shell, keep=["kept", "never"])
    code = "x = torch.ones(N)\nregistry['x'] = torch.ones(N + 1)\nkept = torch.ones(5)\nbefore = torch.ones(4)"
    run(shell, code)
    stayed = {
        ("cpu", tensor.data_ptr()): tensor.numel() * 4
        for tensor in (shell.user_ns["x"], shell.user_ns["registry"]["x"], shell.user_ns["kept"])
    }
    freed = scratch.end(failed=False)
    assert scratch.removed == ("x",)
    assert scratch.rebound == ("before",)
    assert scratch.missing == ("never",)
    assert set(shell.user_ns) == {"__name__", "torch", "N", "_oh", "__builtins__", "registry", "before", "kept"}
    assert [(step.step, step.tensors) for step in freed if step.tensors] == [("names", {"cpu": BYTES})]
    remains = scratch.remains(stayed, who_holds(shell, budget=60))
    assert [(row.bytes, row.device, row.holder) for row in remains] == [
        (BYTES + 4, "cpu", "registry['x']"),
        (20, "cpu", "kept"),
    ]
    text = scratch_text(scratch, freed, remains, {})
    assert "scratch removed x\n  names: freed 91.6 KiB on cpu\n" in text
    assert "not freed: 91.6 KiB on cpu, held by registry['x']" in text
    assert "--keep: the cell left no never" in text


def test_a_scratch_cell_forgets_its_result(shell):
    shell.user_ns["_oh"][3] = shell.user_ns["_3"] = shell.user_ns["_"] = "older"
    scratch = Scratch(shell)
    value = torch.ones(COUNT)
    shell.user_ns["_oh"][4] = shell.user_ns["_4"] = shell.user_ns["_"] = value
    del value
    freed = scratch.end(failed=False)
    assert [(step.step, step.tensors) for step in freed if step.tensors] == [("result", {"cpu": BYTES})]
    assert (shell.user_ns["_oh"], shell.user_ns["_"]) == ({3: "older"}, "older")
    assert "_4" not in shell.user_ns


def test_a_scratch_cell_that_fails_lets_go_of_its_error(shell):
    scratch = Scratch(shell)
    run(shell, "def work():\n    acts = torch.ones(N)\n    raise ValueError('x')")
    try:
        shell.user_ns["work"]()
    except ValueError as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    freed = scratch.end(failed=True)
    assert [(step.step, step.tensors) for step in freed if step.tensors] == [("error", {"cpu": BYTES})]
    assert not hasattr(sys, "last_value")
