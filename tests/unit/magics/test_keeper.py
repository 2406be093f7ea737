"""Which cell first used CUDA, after which a fork is of no use: told by the ledger without touching the driver."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.magics.auto import Keeper  # noqa: E402


@pytest.fixture
def shell():
    return SimpleNamespace(execution_count=1, user_ns={}, history_manager=SimpleNamespace(input_hist_parsed=[""]))


def run_cell(keeper, shell, act=lambda: None):
    keeper.before_cell(None)
    act()
    keeper.after_cell(None)
    shell.execution_count += 1


def test_the_cell_that_first_used_cuda_is_named(shell, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    keeper = Keeper(shell)
    run_cell(keeper, shell)
    assert "CUDA" not in keeper.view(budget=0).text
    run_cell(keeper, shell, lambda: monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True))
    run_cell(keeper, shell)
    assert keeper.cuda_since == "In [2]"
    # This torch has no CUDA to ask for blocks.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    told = "CUDA is in use since In [2]: launches that fork (multiprocessing's fork, notebook_launcher) fail in"
    assert told in keeper.view(budget=0).text


def test_a_use_that_no_cell_made_is_told_as_that(shell, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    keeper = Keeper(shell)
    run_cell(keeper, shell)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    run_cell(keeper, shell)
    assert keeper.cuda_since == "something that ran after In [1] had ended"
    assert Keeper(shell).cuda_since == "the extension was loaded, or earlier"
