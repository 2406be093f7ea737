"""A few of the proof notebooks, one of each sort of verdict; ``python tests/proof/run.py`` runs all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.proof.clean import CLEAN
from tests.proof.faulty import FAULTY
from tests.proof.runner import prove

ALL = {case.name: case for case in (*FAULTY, *CLEAN)}
SOME = (
    "losses appended with their graph",
    "a cache that is concatenated",
    "generators that are never finished",
    "the last error's frames",
    "the old model under another name",
    "Adam's state at the first step",
    "a cell that overwrites its variables",
)


@pytest.mark.parametrize("name", SOME)
def test_verdict_and_holder_are_the_known_answer(name, tmp_path):
    result = prove(ALL[name], "cpu", tmp_path)
    assert result.passed, f"{result.problem}; it said: {result.answer}"


def test_the_suite_is_as_large_as_it_says():
    assert len(FAULTY) >= 30
    assert len({case.kind for case in FAULTY}) >= 12
    assert len(CLEAN) >= 10
    assert len(ALL) == len(FAULTY) + len(CLEAN)
