"""The tests on the oldest and newest Pythons and packages: ``python tests/compat/run.py``.

Makes one virtual environment per row of `ENVIRONMENTS` (kept in ``--venvs`` for the next run), runs in it the tests
that it can and prints a dated table; ``--keep`` puts it at the top of ``results.txt``. An interpreter that this machine
lacks is named as missing. Needs a network or a package mirror. ``--only NAME`` picks rows by substring. Rows with torch
run real kernels as well; rows with JupyterLab run the front end's tests in Chromium, on the front end as it was built
last.

From Python 3.12 on, a row has the C part of line marks, which is built for it in this tree, or says why not; one row
does without.

``--quick`` is what `tests/run.py` calls: a chosen part of the tests on the oldest packages, with torch as the running
environment has it, on the oldest Python without torch, and line marks in C and in Python on 3.12. What cannot be had
here is named, and is no failure.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.txt"
BORROWED = "borrowed.pth"
TOOLS = (
    "hypothesis",
    "nbclient>=0.10",
    "nbconvert>=7.16",
    "nbformat>=5.10",
    "papermill>=2.6",
    "prometheus_client>=0.20",
    "pytest>=8.3",
    "pytest-jupyter[server]>=0.10",
    "pytest-timeout>=2.3",
    "setuptools>=70.1",
)
TESTS = ("tests/unit", "tests/server")
WITH_TORCH = ("tests/kernel",)
QUICK = (
    "tests/unit/marks",
    "tests/unit/nvml",
    "tests/unit/report",
    "tests/unit/test_public.py",
    "tests/server/test_attribution.py",
    "tests/server/test_handlers.py",
)
QUICK_WITH_TORCH = (
    "tests/kernel/test_as_without.py",
    "tests/kernel/test_cell.py",
    "tests/kernel/test_other_magics.py",
    "tests/kernel/test_survives.py",
)
WITH_LAB = (
    "tests/browser/test_report.py",
    "tests/browser/panel",
    "tests/browser/view/test_in_jupyter.py",
)
NAMED = (
    "ipython",
    "ipykernel",
    "ipywidgets",
    "anywidget",
    "jupyter_server",
    "jupyterlab",
    "notebook",
    "numpy",
    "torch",
)


@dataclass(frozen=True)
class Environment:
    """One row: a Python and what differs from the newest packages.

    Attributes
    ----------
    python
        A version; empty for the Python that runs this.
    torch
        A requirement; ``borrowed`` links the running environment's, which costs no download and no disk.
    native
        Whether the C part of line marks is built, where this Python has a use for it.
    quick
        What ``--quick`` runs in place of `QUICK`.
    """

    name: str
    python: str
    pins: tuple[str, ...] = ()
    torch: str = ""
    lab: bool = False
    native: bool = True
    quick: tuple[str, ...] = ()


# What Google Colab ships (its image of 2026), and the oldest of the rest that pyproject.toml admits.
FLOOR = (
    "anywidget==0.9.21",
    "ipykernel==6.17.1",
    "ipython==7.34.0",
    "ipywidgets==7.7.1",
    "jupyter_server==2.14.0",
    "matplotlib==3.7.*",
    "numpy==1.24.*",
    "nvidia-ml-py==12.550.52",
    "psutil==5.9.*",
    "pyparsing<3.3",  # newer ones warn of what matplotlib 3.7 calls
    "rich==12.*",
    "traitlets==5.7.1",
)
# The oldest ones with wheels for newer Pythons are newer themselves; nobody wants them built from source.
NEWER = {"numpy": {12: "1.26.*", 13: "2.1.*", 14: "2.3.*"}, "matplotlib": {12: "3.8.*", 13: "3.9.*", 14: "3.10.*"}}
OLD_IPYTHON = ("ipython==7.34.0", "ipykernel<7", "traitlets<5.10")

ENVIRONMENTS = (
    Environment("3.11, floor of everything", "3.11", FLOOR, torch="torch==2.13.0"),
    Environment("3.10, floor of everything", "3.10", FLOOR),
    Environment("3.10, IPython 7.34, ipykernel 6", "3.10", OLD_IPYTHON),
    Environment("3.10", "3.10"),
    Environment("3.11, second torch", "3.11", torch="torch==2.14.1"),
    Environment("3.12", "3.12"),
    Environment("3.12, newest of everything", "3.12", ("jupyterlab", "notebook"), torch="torch==2.14.1"),
    Environment("3.13", "3.13"),
    Environment("3.13, with torch", "3.13", torch="torch==2.14.1"),
    Environment("3.13, line marks in Python", "3.13", native=False),
    Environment(
        "3.11, JupyterLab 4.4", "3.11", ("jupyterlab==4.4.*", "notebook==7.4.*"), torch="torch==2.13.0", lab=True
    ),
    Environment("3.11, newest JupyterLab", "3.11", ("jupyterlab", "notebook"), torch="torch==2.13.0", lab=True),
)
QUICK_ENVIRONMENTS = (
    Environment("floor of everything, this Python", "", FLOOR, torch="borrowed"),
    Environment("floor of everything, 3.10", "3.10", FLOOR),
    Environment("newest of everything, 3.12", "3.12", quick=("tests/unit/marks",)),
)


def interpreter(version: str) -> str | None:
    """Find a Python on the path or among pyenv's; the one that runs this for no version."""
    if not version:
        return sys.executable
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


def ask(python: str | Path, program: str) -> str:
    """Run a line of Python in an environment and return what it prints."""
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def pins_for(environment: Environment, base: str) -> list[str]:
    """Give the row's pins as this interpreter can have them without a compiler."""
    minor = int(ask(base, "import sys; print(sys.version_info[1])"))
    newer = {name: found[min(minor, max(found))] for name, found in NEWER.items() if minor >= min(found)}
    names = {pin.partition("==")[0]: pin for pin in environment.pins}
    return [f"{name}=={newer[name]}" if name in newer else pin for name, pin in names.items()]


def site_of(python: Path) -> Path:
    """Say where an environment keeps its packages."""
    return Path(ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))


def borrow_torch(python: Path) -> str | None:
    """Link the running environment's torch, and what it needs, behind another environment's own packages.

    Returns
    -------
    str or None
        Why not; None when it is there.
    """
    site = site_of(python)
    borrowed = site.parent / "borrowed"
    shutil.rmtree(borrowed, ignore_errors=True)
    borrowed.mkdir()
    waiting, seen = ["torch"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "torch":
                return "no torch in the environment that runs this"
            continue  # for another platform
        needed = (wanted for wanted in distribution.requires or () if not re.search(r"\bextra\s*==", wanted))
        waiting += [re.split(r"[^\w.-]", wanted, maxsplit=1)[0] for wanted in needed]
        root = Path(str(distribution.locate_file("")))
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            try:
                (borrowed / top).symlink_to(root / top, target_is_directory=(root / top).is_dir())
            except FileExistsError:
                continue  # a folder that packages share
            except OSError as error:
                return f"torch cannot be linked: {error.strerror}"
    # Behind: what the other environment has of its own, numpy first of all, is found before it.
    (site / BORROWED).write_text(f"{borrowed}\n", "utf-8")
    return None


def prepare(environment: Environment, folder: Path) -> Path | str:
    """Make the environment or reuse it; return its Python, or why there is none."""
    base = interpreter(environment.python)
    if base is None:
        return f"no Python {environment.python} on this machine"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        made = subprocess.run([base, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
        if made.returncode:
            return f"no environment of {base}: " + (made.stdout.strip().splitlines() or ["venv failed"])[-1]
    # What an earlier run borrowed is not of this environment, and pip would find that it does not fit.
    (site_of(python) / BORROWED).unlink(missing_ok=True)
    # Pins stand beside the same package's floor, and pip takes the versions that satisfy both.
    wanted = [*requirements(), *TOOLS, "ipykernel", *pins_for(environment, base)]
    wanted += [environment.torch] if environment.torch not in {"", "borrowed"} else []
    wanted += ["playwright>=1.50"] if environment.lab else []
    pip = [str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", *wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        done = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
        done.stderr += done.stdout
    if done.returncode:
        return "pip: " + (done.stderr.strip().splitlines() or ["failed"])[-1]
    if environment.torch == "borrowed":
        problem = borrow_torch(python)
        if problem is not None:
            return problem
    return python


def build_native(environment: Environment, python: Path) -> str:
    """Build the C part of line marks in this tree for an environment's Python, or take it away there.

    Returns
    -------
    str
        What line marks are written in, where there is a choice, and where C was not to be had, why.
    """
    switch = {} if environment.native else {"GPUMEM_MAGIC_NO_NATIVE": "1"}
    build = [python, ROOT / "labextension/hatch_native.py"]
    done = subprocess.run(build, env={**os.environ, **switch}, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "line marks in C" if "_native" in done.stdout else ""
    return f"line marks in Python: {done.stderr.strip()}" if environment.native else "line marks in Python"


def versions(python: Path) -> str:
    """Say what is really in an environment."""
    program = (
        "import platform, importlib.metadata as m\n"
        "have = {d.metadata['Name'].lower().replace('-', '_'): d.version for d in m.distributions()}\n"
        f"print(platform.python_version(), *(f'{{n}} {{have[n]}}' for n in {NAMED!r} if n in have))"
    )
    return ask(python, program)


def pytest_in(python: Path) -> list[str]:
    """Give the beginning of a command that runs tests in an environment."""
    command = [str(python), "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    # What old packages warn of on newer Pythons, and new ones of old Pythons, is not ours to mend.
    command += ["-W", "default::DeprecationWarning", "-W", "default::PendingDeprecationWarning"]
    # Jupyter Server leaves its databases to the collector, of which Python warns since 3.13.
    command += ["-W", "ignore:unclosed database:ResourceWarning"]
    return [*command, "-W", "default:The `version` property of an event schema"]


def surroundings() -> dict[str, str]:
    """Give the environment variables of the tests; the package is imported from this tree."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def run_quick(venvs: Path) -> bool:
    """Run the quick part on the floors, as far as they can be had here; return whether all passed that could run."""
    passed = True
    for environment in QUICK_ENVIRONMENTS:
        if environment.python == f"{sys.version_info[0]}.{sys.version_info[1]}":
            continue  # the other row has it
        python = prepare(environment, venvs / re.sub(r"\W+", "-", environment.name))
        if isinstance(python, str):
            print(f"{environment.name}, not run: {python}", flush=True)
            continue
        print(f"{environment.name}: {versions(python)} {build_native(environment, python)}", flush=True)
        tests = environment.quick or (*QUICK, *(QUICK_WITH_TORCH if environment.torch else ()))
        command = [*pytest_in(python), "--disable-warnings", *tests]
        done = subprocess.run(command, cwd=ROOT, env=surroundings(), check=False)
        passed = passed and done.returncode == 0
    return passed


def run(environment: Environment, venvs: Path, tests: list[str], limit: float) -> tuple[list[str], bool]:
    """Run the tests in one environment; return table rows, one a folder of tests, and whether all passed."""
    python = prepare(environment, venvs / re.sub(r"\W+", "-", environment.name))
    if isinstance(python, str):
        print(f"{environment.name:30} {python}", flush=True)
        return [f"{environment.name:30} {python}"], python.startswith("no Python")
    rows = [f"{environment.name:30} {versions(python)} {build_native(environment, python)}".rstrip()]
    passed = True
    print(rows[0], flush=True)
    if not tests:
        tests = [*WITH_LAB] if environment.lab else [*TESTS, *(WITH_TORCH if environment.torch else ())]
    for folder in tests:
        began = time.monotonic()
        command = [*pytest_in(python), folder]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=surroundings(), capture_output=True, text=True, timeout=limit, check=False
            )
            (venvs / f"{python.parents[1].name}-{Path(folder).stem}.log").write_text(done.stdout + done.stderr, "utf-8")
            last = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["nothing printed"])[-1]
            passed = passed and done.returncode == 0
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        except subprocess.TimeoutExpired:
            last, failed, passed = f"longer than {limit:.0f} s", [], False
        seconds = time.monotonic() - began
        new = [f"{environment.name:30} {folder:38} {last.strip('= ')} [{seconds:.0f} s]"]
        new += [f"    {line[:180]}" for line in failed[:20]]
        print("\n".join(new), flush=True)
        rows += new
    return rows, passed


def main() -> int:
    """Run all rows; the exit code is 0 when every test passed that could run."""
    # A shell that runs this in the background has it ignored, and so would every program that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--tests", nargs="*")
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()) / "gpumem-magic-compat")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one folder of tests")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        return 0 if run_quick(arguments.venvs) else 1
    table, passed = [time.strftime("%Y-%m-%d", time.gmtime())], True
    for environment in ENVIRONMENTS:
        if arguments.only in environment.name:
            rows, held = run(environment, arguments.venvs, arguments.tests or [], arguments.limit)
            table += rows
            passed = passed and held
    text = "\n".join(table)
    if arguments.keep:
        before = RESULTS.read_text("utf-8") if RESULTS.exists() else ""
        RESULTS.write_text(f"{text}\n\n{before}".rstrip() + "\n", "utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
