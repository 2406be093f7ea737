"""Everything that needs a GPU, in one command: ``python3 tests/gpu/run_all.py --out DIR``.

Runs every ``check_*`` function of ``*_checks.py`` beside this file, each in a fresh process with a time limit, then the
example notebooks and their reports in real kernels, prints a table, and writes at most eight flat files to DIR:
``results.json``, ``results.txt``, ``notebooks.zip`` (each executed notebook and the reports that they exported), and
what the checks left (none over 16 MiB).
Correctness checks run four at a time; what measures time (``check_cost_*``) or reads the whole device
(``nvml_checks.py``) runs alone, after them. A check returns a line of what it measured, raises ``AssertionError``, or
raises an exception whose class is named ``Skip``. ``--only A,B`` picks by substrings, ``--quick`` measures fewer
rounds, ``--seconds`` bounds the whole (what does not fit is listed as not run).

Lines and modules are noted in C where ``gpumem_magic/recording/marks/_native.*.so`` lies in the tree. Where it does not
and there is a compiler, it is built first, as an install does; ``GPUMEM_MAGIC_NO_NATIVE=1`` leaves it out.

The machine needs Python 3.12, torch, numpy, matplotlib, pynvml and psutil, and no network. The rest travels as wheels:
``wheels.txt`` lists them.

    python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \\
        -d .whl -r tests/gpu/wheels.txt                                     # where there is a network
    python3 -m pip install -q --no-index --no-deps --upgrade --target /tmp/site .whl/*.whl     # on the GPU machine
    PYTHONPATH=/tmp/site python3 tests/gpu/run_all.py --out "$OUT"
"""

from __future__ import annotations

import argparse
import ast
import compileall
import concurrent.futures
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOTEBOOKS = ROOT / "notebooks"
SKIPPED = 77
WORKERS = 4
LIMIT = {"cost": 170, "notebook": 170, "conf_checks": 240, "other": 120}
MOST_FILES = 8
MOST_BYTES = 16 << 20


@dataclass
class Row:
    """One check and how it ended: ``ok``, ``FAILED``, ``skipped``, ``timeout`` or ``not run``."""

    file: str
    name: str
    outcome: str = "not run"
    seconds: float = 0.0
    detail: str = ""

    def matches(self, patterns: str) -> bool:
        """Whether one of the substrings, separated by commas, is in its name."""
        return any(part in f"{self.file}.{self.name}" for part in patterns.split(","))

    @property
    def is_alone(self) -> bool:
        """Whether nothing else may run beside it."""
        return self.name.startswith(("cost_", "full_")) or self.file in {"nvml_checks", "notebook"}

    @property
    def limit(self) -> int:
        """Seconds that it may take."""
        kind = "cost" if self.name.startswith("cost_") else self.file if self.file in LIMIT else "other"
        return LIMIT[kind]


def find(only: str) -> list[Row]:
    """List the checks without importing them."""
    rows = []
    for path in sorted(HERE.glob("*_checks.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            name = node.name if isinstance(node, ast.FunctionDef) else ""
            if name.startswith("check_"):
                row = Row(path.stem, name.removeprefix("check_"))
                rows.append(row)
    rows += [Row("notebook", path.stem) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    rows = [row for row in rows if row.matches(only)]
    order = {"conf_checks": -1, "nvml_checks": 1, "notebook": 2}  # the longest first
    return sorted(rows, key=lambda row: (row.is_alone, order.get(row.file, 0), row.name.startswith("cost_")))


def environment(*, quick: bool) -> dict[str, str]:
    """Return the environment of a check: the package importable, kernels too."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kernels = [str(Path(entry) / "share" / "jupyter") for entry in path.split(os.pathsep)]
    kernels = [entry for entry in kernels if Path(entry).is_dir()]
    return {
        **os.environ,
        "PYTHONPATH": path,
        "JUPYTER_PATH": os.pathsep.join(filter(None, [*kernels, os.environ.get("JUPYTER_PATH")])),
        "GPUMEM_QUICK": "1" if quick else "0",
        "PYTHONUNBUFFERED": "1",
    }


def run(row: Row, out: Path, seconds: float, *, quick: bool) -> None:
    """Run one check in a process of its own and fill in its row."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", row.file, row.name, "--out", str(out)]
    limit = min(row.limit, seconds)
    if limit < 5:
        row.detail = "no time left"
        return
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(quick=quick),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # With the kernels that it started.
            os.killpg(process.pid, 9)
            printed, errors = process.communicate()
            row.outcome, row.detail = "timeout", f"longer than {limit:.0f} s; {errors[-500:]}"
    row.seconds = round(time.perf_counter() - began, 1)
    if row.outcome == "timeout":
        return
    row.outcome = {0: "ok", SKIPPED: "skipped"}.get(process.returncode, "FAILED")
    row.detail = (printed if row.outcome != "FAILED" else f"exit {process.returncode}: {printed}{errors}")[
        -6000:
    ].strip()


def run_one(file: str, name: str, out: Path) -> int:
    """Run one check in this process; print its line."""
    if file == "notebook":
        print(execute(NOTEBOOKS / f"{name}.ipynb", out))
        return 0
    path = HERE / f"{file}.py"
    spec = importlib.util.spec_from_file_location(file, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file] = module
    sys.path[:0] = [str(HERE), str(ROOT)]
    spec.loader.exec_module(module)
    try:
        told = getattr(module, f"check_{name}")()
    except Exception as error:
        if type(error).__name__ != "Skip":
            raise
        print(error)
        return SKIPPED
    print("" if told is None else told)
    return 0


def execute(path: Path, out: Path) -> str:
    """Execute a notebook as a user would find it, and keep it with the reports that it exports."""
    import nbformat
    from nbclient import NotebookClient

    folder = Path(tempfile.mkdtemp())
    shutil.copytree(path.parent, folder / "notebooks")
    # Notebooks open recordings by the way from one folder to the other.
    (folder / "tests").symlink_to(ROOT / "tests")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=150, kernel_name="python3", resources={"metadata": {"path": str(folder / "notebooks")}}
    )
    try:
        client.execute()
    finally:
        keep_notebook(notebook, out / path.name)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    reports = [output for output in outputs if "gpumem" in str(output.get("data", {}).get("text/plain", ""))]
    pages = sorted(folder.rglob("*.html"))
    for page in pages:
        if page.stat().st_size <= MOST_BYTES and not (out / page.name).exists():
            shutil.copy(page, out / f"{path.stem}-{page.name}")
    pictures = sum("image/png" in output.get("data", {}) for output in reports)
    assert reports or "%%gpumem" not in path.read_text("utf-8"), "no report in the executed notebook"
    return f"{len(reports)} reports, {pictures} with a picture, {len(pages)} HTML files"


def keep_notebook(notebook: object, path: Path) -> None:
    """Write an executed notebook."""
    import nbformat

    nbformat.write(notebook, path)


def pack(out: Path) -> None:
    """Put executed notebooks and their reports into one file."""
    files = sorted(path for path in out.iterdir() if path.suffix in {".ipynb", ".html"})
    if not files:
        return
    with zipfile.ZipFile(out / "notebooks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.name)
            path.unlink()


def trim(out: Path) -> list[str]:
    """Keep the folder within what may be carried back; return what was removed."""
    first = ("results.json", "results.txt", "notebooks.zip")
    files = sorted(out.iterdir(), key=lambda path: (path.name not in first, path.stat().st_size))
    removed = []
    for index, path in enumerate(files):
        if index >= MOST_FILES or path.stat().st_size > MOST_BYTES:
            removed.append(path.name)
            path.unlink()
    return removed


def noted_in() -> str:
    """Say in which language lines and modules are noted; build the C part where it is missing and can be had."""
    code = "from gpumem_magic.recording.marks.compiled import native; print('C' if native() else 'Python')"

    def asked() -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(quick=False))
        return done.stdout.strip() or done.stderr.strip()[-200:]

    found = asked()
    if found != "Python" or os.environ.get("GPUMEM_MAGIC_NO_NATIVE"):
        return found
    built = subprocess.run(
        [sys.executable, str(ROOT / "labextension" / "hatch_native.py")], capture_output=True, text=True, check=False
    )
    return asked() if built.returncode == 0 else f"Python: {(built.stdout + built.stderr).strip()[-300:]}"


def machine() -> dict[str, str]:
    """Say what this is."""
    program = (
        "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count(), "
        "torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "python": platform.python_version(),
        "torch": done.stdout.strip() or done.stderr.strip()[-200:],
        "cores": str(os.cpu_count()),
        "lines and modules noted in": noted_in(),
    }


def main() -> int:
    """Run what was asked for; the exit code is 0 when nothing failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--first", default="", metavar="PATTERN", help="run these before all others")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--one", nargs=2, metavar=("FILE", "NAME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        return run_one(arguments.one[0], arguments.one[1], out)
    began = time.perf_counter()
    # As pip does when it installs: else the first cell of the first kernel pays for it.
    compileall.compile_dir(ROOT / "gpumem_magic", quiet=1)
    about = machine()
    print(" · ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    rows = find(arguments.only)
    writing = threading.Lock()

    def left() -> float:
        return float(arguments.seconds) - (time.perf_counter() - began)

    def go(row: Row) -> None:
        try:
            run(row, out, left(), quick=arguments.quick)
        except OSError as error:
            row.outcome, row.detail = "FAILED", str(error)
        detail = row.detail if row.outcome != "FAILED" else row.detail[-1500:]
        with writing:
            print(f"{row.outcome:8} {row.file}.{row.name:32} {row.seconds:6.1f} s  {detail}", flush=True)
            write(rows, about, out)

    first = [row for row in rows if arguments.first and row.matches(arguments.first)]
    for group in (first, [row for row in rows if row not in first]):
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(go, [row for row in group if not row.is_alone]))
        for row in group:
            if row.is_alone:
                go(row)
    write(rows, about, out)
    pack(out)
    removed = trim(out)
    counts = {
        outcome: sum(row.outcome == outcome for row in rows) for outcome in dict.fromkeys(r.outcome for r in rows)
    }
    print(f"{counts} in {time.perf_counter() - began:.0f} s" + (f"; left out: {removed}" if removed else ""))
    return int(any(row.outcome in {"FAILED", "timeout"} for row in rows))


def write(rows: list[Row], about: dict[str, str], out: Path) -> None:
    """Write the results so far; a run that is cut short keeps them."""
    text = "\n".join(f"{row.outcome:8} {row.file}.{row.name:32} {row.seconds:6.1f} s  {row.detail}" for row in rows)
    (out / "results.txt").write_text(" · ".join(f"{k} {v}" for k, v in about.items()) + f"\n{text}\n", "utf-8")
    results = {"machine": about, "rows": [asdict(row) for row in rows]}
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
