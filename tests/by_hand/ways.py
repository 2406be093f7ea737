"""The two ways in which events are written down: tests that take both run once for each."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.recording.marks.compiled import SWITCH, native

__all__ = ["WAYS", "choose_way"]

# Before Python 3.12 there are no events to write down.
WAYS = ("python", "c") if hasattr(sys, "monitoring") else ("python",)


def choose_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have events written down this way until the test ends; skip where it was not built."""
    if way == "python":
        monkeypatch.setenv(SWITCH, "1")
        return
    monkeypatch.delenv(SWITCH, raising=False)
    if native() is None:
        pytest.skip("the C part was not built here: an editable install on a machine with a compiler makes it")
