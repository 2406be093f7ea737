"""Makes `marked_cells` and `random_programs` importable for this folder's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from marked_cells import Notebook  # type: ignore[import-not-found]


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()
