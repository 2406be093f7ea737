"""Makes `held_cells` importable for this folder's tests, and a notebook for those that need one."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def shell():
    gc.collect()
    from held_cells import Shell  # type: ignore[import-not-found]  # torch comes with it

    made = Shell()
    yield made
    made.user_ns.clear()
    gc.enable()
    gc.collect()
