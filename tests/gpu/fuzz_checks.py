"""A short round of allocator fuzzing; `fuzz_all.py` is the long one."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from fuzz import same  # noqa: E402 - the path comes first

SECONDS = 36


def check_full_fuzz_same_setting() -> str:
    """Every address and every segment event of random programs, under twelve settings, as the model says."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        same.main(HERE / "fuzz_all.py", out, SECONDS, traces=400, processes=8)
        rows = [json.loads(line) for line in (out / "same.jsonl").read_text().splitlines()]
    wrong = [row for row in rows if not row["changed"] and (row.get("deviation") or row.get("error"))]
    assert len(rows) >= 100, rows[-1:]
    assert not wrong, wrong[:3]
    return f"{len(rows)} traces, {sum(row['events'] for row in rows):,} events, no deviation"
