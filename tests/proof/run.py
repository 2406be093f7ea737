"""The proof table: ``python tests/proof/run.py`` runs every notebook with a known answer in a kernel of its own.

``--keep`` writes the table to ``results.txt`` beside this file, one for each Python, torch and device. ``--only TEXT``
picks notebooks by name or kind, ``--device cuda`` runs them on a GPU, ``--jobs N`` runs N at a time. Ends with 1 when
any answer is wrong.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.proof.clean import CLEAN
from tests.proof.faulty import FAULTY
from tests.proof.gpu import ON_GPU
from tests.proof.runner import prove

if TYPE_CHECKING:
    from tests.proof.runner import Result

RESULTS = Path(__file__).with_name("results.txt")
_BETWEEN = "\n\n" + "=" * 120 + "\n\n"
ALL = (*FAULTY, *ON_GPU, *CLEAN)


def table(results: list[Result], device: str) -> str:
    """Write the results as text."""
    import torch

    faulty = [result for result in results if result.case.kind != "clean"]
    clean = [result for result in results if result.case.kind == "clean"]
    kinds = Counter(result.case.kind for result in faulty)
    day, python = time.strftime("%Y-%m-%d", time.gmtime()), platform.python_version()
    lines = [
        f"{day}  Python {python}, torch {torch.__version__}, {device}",
        f"faulty: {sum(result.passed for result in faulty)} of {len(faulty)} right, of {len(kinds)} kinds",
        f"clean: {sum(result.passed for result in clean)} of {len(clean)} without a false alarm",
        "",
    ]
    for result in results:
        mark = "right" if result.passed else "WRONG"
        lines.append(f"{mark}  {result.case.kind:26}  {result.case.name:46}  {result.answer}".rstrip())
        if result.problem:
            lines.append(f"       {result.problem}")
    return "\n".join(lines)


def keep(text: str) -> None:
    """Write a table to the file of results, in place of the one of the same Python, torch and device."""

    def about(one: str) -> str:
        return one.partition("  ")[2].partition("\n")[0]

    tables = RESULTS.read_text("utf-8").split(_BETWEEN) if RESULTS.exists() else []
    others = [one.rstrip() for one in tables if about(one) != about(text)]
    RESULTS.write_text(_BETWEEN.join([text, *others]).rstrip() + "\n", "utf-8")


def main() -> int:
    """Run the notebooks and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    chosen = [
        case
        for case in ALL
        if case.device in {"any", arguments.device} and (arguments.only in case.name or arguments.only in case.kind)
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        results = []
        for result in pool.map(partial(prove, device=arguments.device, folder=Path(folder)), chosen):
            print(f"{'right' if result.passed else 'WRONG'}  {result.seconds:5.1f} s  {result.case.name}", flush=True)
            results.append(result)
    text = table(results, arguments.device)
    print("\n" + text)
    if arguments.keep:
        keep(text)
    return int(not all(result.passed for result in results))


if __name__ == "__main__":
    sys.exit(main())
