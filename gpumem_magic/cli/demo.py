"""``gpumem-magic demo``: the quickstart notebook, run on what this machine has."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import BadUsageError, ExportError, GpumemError
from gpumem_magic._format import format_duration

if TYPE_CHECKING:
    import argparse

    from jupyter_client.manager import AsyncKernelManager
    from nbformat import NotebookNode

__all__ = ["add_parsers"]

_NOTEBOOK = "quickstart.ipynb"
# The notebook exports this itself, beside where it runs.
_REPORT = "quickstart.gpumem.html"
# A step of the demo takes seconds; a machine that swaps takes minutes.
_CELL_TIMEOUT_S = 600


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``demo``."""
    parser = commands.add_parser(
        "demo",
        help="train a small model under %%%%gpumem and write the notebook and its HTML report",
        description="Run the quickstart notebook on what this machine has (CUDA, else CPU) and write the executed "
        "notebook and the standalone HTML report of its training cell. Takes about half a minute. Needs torch.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpumem-demo"), metavar="DIR", help="where to write (default: %(default)s)"
    )
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    for module, cure in (("torch", "gpumem-magic[torch]"), ("ipykernel", "gpumem-magic[lab]")):
        if find_spec(module) is None:
            raise BadUsageError(f'the demo needs {module}, which is not installed here: pip install "{cure}"')
    import nbformat

    source = _find_notebook()
    folder: Path = arguments.out.expanduser().resolve()
    target = folder / _NOTEBOOK
    _prepare(folder, target)
    notebook = nbformat.read(source, as_version=4)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    print(f"running {_NOTEBOOK}, {cells} cells: about half a minute", flush=True)
    began = time.monotonic()
    try:
        error = _execute(notebook, folder)
    finally:
        # Also after an interrupt: what ran so far is worth keeping.
        notebook.metadata["gpumem_magic"] = {"demo": True}
        nbformat.write(notebook, target)
    for cell, sentence in _sentences(notebook):
        print(f"{cell}  {sentence}")
    print(f"took {format_duration(time.monotonic() - began)}")
    print(f"notebook: {target}")
    if error is not None:
        raise GpumemError(f"the notebook stopped: {error}; it is kept as far as it ran")
    report = folder / _REPORT
    if report.is_file():
        print(f"report:   {report}")
    return 0


def _find_notebook() -> Path:
    package = Path(__file__).resolve().parent.parent
    # Within the wheel; in a checkout the folder lies beside the package.
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if (folder / _NOTEBOOK).is_file():
            return folder / _NOTEBOOK
    raise GpumemError(f"{_NOTEBOOK} is missing from this installation; reinstall gpumem-magic")


def _prepare(folder: Path, target: Path) -> None:
    import nbformat

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from error
    if not os.access(folder, os.W_OK):
        raise ExportError(f"cannot write to {folder}; name another folder with --out")
    if target.exists():
        try:
            ours = nbformat.read(target, as_version=4).metadata.get("gpumem_magic", {}).get("demo", False)
        except (OSError, ValueError, AttributeError):
            ours = False
        if not ours:
            raise ExportError(f"{target} was not written by this command; name another folder with --out")


def _execute(notebook: NotebookNode, folder: Path) -> str | None:
    """Run every cell in place.

    Parameters
    ----------
    notebook
        Gets the outputs.
    folder
        The kernel's working directory.

    Returns
    -------
    str or None
        What went wrong in one line, None when nothing did.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    def started(cell: NotebookNode, cell_index: int) -> None:  # noqa: ARG001 - nbclient passes both by name
        first = next((line for line in cell.source.splitlines() if line.strip()), "")
        print(f"  {first[:100]}", flush=True)

    # A server's kernel that runs this command must not make its child believe that somebody sees widgets.
    environment = {name: value for name, value in os.environ.items() if name != "JPY_SESSION_NAME"}
    # The demo's tensors are tiny, and torch's threads spin while they wait for each other: on two busy cores it took 6
    # minutes in place of 40 seconds.
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    client = NotebookClient(
        notebook,
        km=_kernel_of_this_interpreter(),
        timeout=_CELL_TIMEOUT_S,
        on_cell_execute=started,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        return f"{error.ename}: {error.evalue}".splitlines()[0]
    except CellTimeoutError:
        return f"a cell ran longer than {_CELL_TIMEOUT_S} s"
    except DeadKernelError:
        return "the kernel died (out of memory?)"
    return None


def _kernel_of_this_interpreter() -> AsyncKernelManager:
    """Make a kernel of the interpreter that runs this, whatever kernels are registered under the name ``python3``.

    Returns
    -------
    AsyncKernelManager
        Not started.
    """
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class OneKernel(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:  # noqa: ARG002 - there is one
            # Errors only: ipykernel 7 warns of loopback without encryption, which nobody can act on here.
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    return AsyncKernelManager(kernel_spec_manager=OneKernel())


def _sentences(notebook: NotebookNode) -> list[tuple[str, str]]:
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = _plain_text(output)
            if text.startswith("gpumem:"):
                found.append((f"In [{cell.execution_count}]", text.splitlines()[0].removeprefix("gpumem:").strip()))
    return found


def _plain_text(output: dict[str, Any]) -> str:
    text = output.get("data", {}).get("text/plain", "")
    return text if isinstance(text, str) else "".join(text)
