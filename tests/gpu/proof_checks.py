"""The proof notebooks (``tests/proof``) with their tensors on a GPU, each in a kernel of its own, eight at a time.

Run by ``run_all.py``; ``python tests/proof/run.py --device cuda``
prints the whole table.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from shared import Skip

from tests.proof.clean import CLEAN
from tests.proof.faulty import FAULTY
from tests.proof.gpu import ON_GPU
from tests.proof.runner import prove

_AT_ONCE = 8
ANYWHERE = [case for case in (*FAULTY, *CLEAN) if case.device != "cpu"]


def part(number: int, of: int) -> str:
    """Run one of `of` parts of the notebooks that run anywhere."""
    return proved(ANYWHERE[number::of])


def proved(cases: list) -> str:  # type: ignore[type-arg]
    """Run some notebooks; all answers must be right."""
    import torch

    if not torch.cuda.is_available():
        raise Skip("needs a CUDA device")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(partial(prove, device="cuda", folder=Path(folder)), cases))
    wrong = [f"{one.case.name}: {one.problem} (said: {one.answer})" for one in results if not one.passed]
    assert not wrong, f"{len(results) - len(wrong)} of {len(results)} right; " + " | ".join(wrong)
    return f"{len(results)} notebooks right, slowest {max(one.seconds for one in results):.0f} s"


def check_proof_out_of_memory() -> str:
    """Notebooks that only a GPU can show."""
    return proved(list(ON_GPU))


def check_proof_1() -> str:
    """A fourth of the notebooks."""
    return part(0, 4)


def check_proof_2() -> str:
    """A fourth of the notebooks."""
    return part(1, 4)


def check_proof_3() -> str:
    """A fourth of the notebooks."""
    return part(2, 4)


def check_proof_4() -> str:
    """A fourth of the notebooks."""
    return part(3, 4)
