"""Makes the hand-written recordings and the reader importable for this folder's tests."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS / "unit" / "analysis"), str(_TESTS / "data" / "view")]
