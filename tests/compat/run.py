"""The tests that need no torch, on the oldest and newest Pythons and IPythons: ``python tests/compat/run.py``.

Makes one virtual environment per row of `ENVIRONMENTS` (kept in ``--venvs`` for the next run), runs the tests in it and
prints a dated table; ``--keep`` puts it at the top of ``results.txt``. An interpreter that this machine lacks is named
as missing. Needs a network or a package mirror. ``--only NAME`` picks rows by substring. ``--torch`` installs torch too
and adds the tests in real kernels, which cannot do without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.txt"
TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis", "nbclient>=0.10", "nbformat>=5.10")
TESTS = (
    "tests/unit/marks",
    "tests/unit/trace",
    "tests/unit/allocator",
    "tests/unit/conf",
    "tests/unit/analysis",
    "tests/unit/recording",
)
WITH_TORCH = ("tests/unit/categories", "tests/kernel")


@dataclass(frozen=True)
class Environment:
    """One row: a Python and what differs from the newest packages."""

    name: str
    python: str
    pins: tuple[str, ...] = ()


ENVIRONMENTS = (
    Environment("3.10, IPython 7.34, ipykernel 6", "3.10", ("ipython==7.34.0", "ipykernel<7", "traitlets<5.10")),
    Environment("3.11, IPython 7.34, ipykernel 6", "3.11", ("ipython==7.34.0", "ipykernel<7", "traitlets<5.10")),
    Environment("3.10", "3.10"),
    Environment("3.12", "3.12"),
    Environment("3.13", "3.13"),
)


def interpreter(version: str) -> str | None:
    """Find a Python on the path or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    on_path = shutil.which(f"python{version}")
    for candidate in [*found, *([on_path] if on_path else [])]:
        done = subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


def requirements() -> list[str]:
    """Read the package's own requirements."""
    block = re.search(
        r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert block is not None
    return re.findall(r'^\s*"([^"]+)"', block[1], re.MULTILINE)


def prepare(environment: Environment, folder: Path, extra: list[str]) -> Path | str:
    """Make the environment or reuse it; return its Python, or why there is none."""
    base = interpreter(environment.python)
    if base is None:
        return f"no Python {environment.python} on this machine"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
    # Pins stand beside the same package's floor, and pip takes the versions that satisfy both.
    wanted = [*requirements(), *TOOLS, "ipykernel", *environment.pins, *extra]
    done = subprocess.run([python, "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        return "pip: " + (done.stderr.strip().splitlines() or ["failed"])[-1]
    return python


def versions(python: Path) -> str:
    """Say what is really in an environment."""
    program = (
        "import platform, importlib.metadata as m\n"
        "print(platform.python_version(), *(f'{n} {m.version(n)}' for n in ('ipython', 'ipykernel', 'numpy')))"
    )
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def run(environment: Environment, venvs: Path, tests: list[str], extra: list[str], limit: float) -> list[str]:
    """Run the tests in one environment; return table rows, one a folder of tests."""
    python = prepare(environment, venvs / re.sub(r"\W+", "-", environment.name), extra)
    if isinstance(python, str):
        return [f"{environment.name:34} {python}"]
    about = versions(python)
    rows = []
    for folder in tests:
        if not (ROOT / folder).exists():
            continue
        began = time.monotonic()
        command = [str(python), "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", folder]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
            last = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["nothing printed"])[-1]
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        except subprocess.TimeoutExpired:
            last, failed = f"longer than {limit:.0f} s", []
        seconds = time.monotonic() - began
        rows.append(f"{environment.name:34} {folder:24} {last.strip('= ')} [{seconds:.0f} s]")
        rows += [f"    {line[:180]}" for line in failed[:20]]
        print("\n".join(rows[-1 - len(failed[:20]) :]), flush=True)
    return [f"{environment.name:34} {about}", *rows]


def main() -> int:
    """Run all rows and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--tests", nargs="*")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()) / "gpumem-magic-compat")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one folder of tests")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    tests = arguments.tests or [*TESTS, *(WITH_TORCH if arguments.torch else ())]
    table = [time.strftime("%Y-%m-%d", time.gmtime())]
    for environment in ENVIRONMENTS:
        if arguments.only in environment.name:
            table += run(environment, arguments.venvs, tests, ["torch"] * arguments.torch, arguments.limit)
    text = "\n".join(table)
    print(text)
    if arguments.keep:
        before = RESULTS.read_text("utf-8") if RESULTS.exists() else ""
        RESULTS.write_text(f"{text}\n\n{before}".rstrip() + "\n", "utf-8")
    return int("failed" in text or "error" in text.lower() or "longer than" in text)


if __name__ == "__main__":
    sys.exit(main())
