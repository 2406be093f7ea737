"""Differential fuzzing of the allocator model on a real GPU. Run by hand.

    python3 tests/gpu/fuzz_all.py same  --out DIR --seconds 200    # thousands of traces, replayed under their setting
    python3 tests/gpu/fuzz_all.py fresh --out DIR --seconds 300    # fresh processes: the truth for other settings
    python3 tests/gpu/fuzz_all.py unseen --traces 5000             # calls that leave no event, without a GPU

``compare`` repeats the end of ``fresh`` on what that left (DIR is then the unpacked folder with its ``truth.json``).
The first two print tables and leave in DIR: ``same.txt``, ``same.jsonl``, ``fresh.txt``, and ``fuzz.tar`` with traces
that deviate, some that fit, and every recording of the fresh processes with its ``truth.json`` (a folder that
``tests/benchmarks/whatif_truth.py`` reads). Nothing else may use the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from fuzz import fresh, same, unseen  # noqa: E402 - the path comes first


def pack(out: Path) -> None:
    """Put the many small files into one."""
    with tarfile.open(out / "fuzz.tar", "w") as tar:
        for folder in (out / "traces", out / "fresh"):
            if folder.is_dir():
                tar.add(folder, folder.name)
    for folder in (out / "traces", out / "fresh"):
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Do one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=["same", "fresh", "both", "unseen", "compare", "player", "one"])
    parser.add_argument("--out", type=Path, default=Path("fuzz-results"))
    parser.add_argument("--seconds", type=float, default=200, help="for `both`: two fifths go to the first part")
    parser.add_argument("--traces", type=int, default=4800)
    parser.add_argument("--seeds", type=int, default=24, help="programs for the fresh processes, 12 each")
    parser.add_argument("--first-seed", type=int, default=1, help="the first of these: others than before are new")
    parser.add_argument("--processes", type=int, default=12)
    for name in ("--start", "--seed", "--variant"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part == "unseen":
        print(unseen.main(given.traces, given.processes, given.seconds))
        return 0
    out = given.out.resolve()
    if given.part == "compare":
        print(fresh.compare(out, given.processes))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    if given.part == "player":
        return int(same.player(out, given.start, given.traces, given.seconds, given.processes))
    if given.part == "one":
        return int(fresh.one(out, given.lock, given.seed, given.variant))
    script = Path(__file__).resolve()
    code = 0
    if given.part in {"same", "both"}:
        share = given.seconds * 0.4 if given.part == "both" else given.seconds
        code |= same.main(script, out, share, given.traces, given.processes)
    if given.part in {"fresh", "both"}:
        share = given.seconds * 0.6 if given.part == "both" else given.seconds
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        code |= fresh.main(script, out, share, seeds, given.processes)
    pack(out)
    return code


if __name__ == "__main__":
    sys.exit(main())
