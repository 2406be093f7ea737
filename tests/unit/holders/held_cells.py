"""A pretended notebook whose holders are looked for, and one tensor of a size that nothing else has."""

from __future__ import annotations

import textwrap

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.holders import who_holds  # noqa: E402

COUNT = 23_457  # elements; 93,828 bytes
BYTES = COUNT * 4


class Shell:
    def __init__(self):
        self.user_ns = {"__name__": "__main__", "torch": torch, "N": COUNT, "_oh": {}}
        self.user_ns_hidden = {}


def run(shell, code):
    exec(compile(textwrap.dedent(code), "<cell>", "exec"), shell.user_ns)  # noqa: S102 - stands for a cell


def find(shell, **options):
    (found,) = (s for s in who_holds(shell, budget=60, **options).storages if s.size == BYTES)
    return found
