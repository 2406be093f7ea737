from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gpumem_magic.trace.reader import read_trace

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
# Read once for all tests: traces are immutable.
read = cache(read_trace)


@pytest.fixture(scope="session")
def truth():
    return json.loads((RECORDINGS / "truth.json").read_text())


@pytest.fixture(scope="session")
def load():
    return lambda name: read(RECORDINGS / f"{name}.pickle.xz")


def pytest_generate_tests(metafunc):
    if "recording" in metafunc.fixturenames:
        names = sorted(path.name.removesuffix(".pickle.xz") for path in RECORDINGS.glob("*.xz"))
        metafunc.parametrize("recording", names)
