"""Runs one proof notebook in a real kernel and compares what the product says with the known answer."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.proof.cases import SETUP

if TYPE_CHECKING:
    from tests.proof.cases import Case

__all__ = ["Result", "prove"]

ROOT = Path(__file__).resolve().parents[2]
_MARK = "PROOF:"
# Below this a scan is not asked about: constants of libraries.
_PROBE = f"""\
def _proof():
    import json, gpumem_magic
    from gpumem_magic.holders import who_holds
    last = gpumem_magic.last
    said = {{"sentence": "", "leaks": [], "small": [], "held": [], "oom": None, "who": []}}
    if last is not None:
        def leak(one):
            return {{
                "kind": one.kind, "bytes": one.bytes, "sentence": one.sentence,
                "lines": [line.group.source or line.group.label for line in one.lines],
                "keepers": [keeper.path for keeper in one.keepers],
            }}
        said["sentence"] = last.sentence
        for device in last.devices:
            if device.growth is not None:
                said["leaks"] += [leak(one) for one in device.growth.leaks]
                said["small"] += [leak(one) for one in device.growth.small]
            said["held"] += [held.path for held in device.held]
        if last.analysis.oom is not None:
            said["oom"] = last.analysis.oom.cause.name
    scan = who_holds(get_ipython(), budget=5)
    said["who"] = [
        [storage.size, [holder.path for holder in storage.holders]]
        for storage in scan.storages
        if storage.device.startswith(DEVICE) and storage.size >= 1 << 19
    ]
    print({_MARK!r} + json.dumps(said))
_proof()
"""


@dataclass(frozen=True)
class Result:
    """How one notebook came out.

    Attributes
    ----------
    case
        The notebook.
    passed
        Whether verdict and holder are right.
    answer
        What the product said, in short.
    problem
        What is wrong with it; empty when nothing is.
    seconds
        How long it took, the kernel's start included.
    """

    case: Case
    passed: bool
    answer: str
    problem: str
    seconds: float


async def _run(case: Case, device: str, folder: Path, sockets: str) -> dict[str, Any]:
    notebook = new_notebook()
    # Sockets with names: two kernels that start at once may choose the same free port.
    manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/k")
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=120,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    text: list[str] = []
    kernel = client.async_setup_kernel(
        cleanup_kc=True,  # as it does with a manager of its own
        env={"OMP_NUM_THREADS": "1", **inherited, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    async with kernel:

        async def execute(source: str) -> None:
            cell = new_code_cell(source)
            notebook.cells.append(cell)
            await client.async_execute_cell(cell, len(notebook.cells) - 1)
            for output in cell.outputs:
                text.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
                if output.output_type == "error":
                    text.append(f"{output.ename}: {output.evalue}")

        await execute(SETUP.format(device=device))
        if any(output.output_type == "error" for output in notebook.cells[0].outputs):
            raise RuntimeError(f"the first cell failed: {' '.join(text)[-300:]}")
        for cell in case.cells():
            for _ in range(cell.times):
                await execute(cell.source)
        shown = "\n".join(text)
        text.clear()
        await execute(_PROBE)
    answer = next((line for line in "\n".join(text).splitlines() if line.startswith(_MARK)), None)
    if answer is None:
        raise RuntimeError("the probe said nothing: " + " ".join(text)[-500:])
    said: dict[str, Any] = json.loads(answer.removeprefix(_MARK))
    said["shown"] = shown
    return said


def prove(case: Case, device: str, folder: Path) -> Result:
    """Run a notebook and judge what was said.

    Parameters
    ----------
    case
        The notebook.
    device
        ``"cpu"`` or ``"cuda"``.
    folder
        Where its kernel works.
    """
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as sockets:  # a short path: a socket's has at most some hundred characters
            said = asyncio.run(_run(case, device, folder, sockets))
    except Exception as error:  # noqa: BLE001 - a row of the table
        answer, problem = "", f"{type(error).__name__}: {error}"
        return Result(case, passed=False, answer=answer, problem=problem, seconds=time.monotonic() - began)
    answer, problem = _JUDGES[case.verdict](case, said)
    return Result(case, not problem, answer, problem, time.monotonic() - began)


def _none(_case: Case, said: dict[str, Any]) -> tuple[str, str]:
    leaks = said["leaks"]
    return said["sentence"], f"false alarm: {leaks[0]['sentence']}" if leaks else ""


def _oom(case: Case, said: dict[str, Any]) -> tuple[str, str]:
    if said["oom"] is None:
        return said["sentence"], "no verdict on why memory ran out"
    if not re.search(case.holder, said["oom"]):
        return said["sentence"], f"verdict {said['oom']}"
    named = not case.line or re.search(case.line, said["shown"])
    return said["sentence"], "" if named else f"{case.line} is not named"


def _who(case: Case, said: dict[str, Any]) -> tuple[str, str]:
    holders = said["who"][0][1] if said["who"] else []
    answer = holders[0] if holders else "nothing"
    if not re.search(case.holder, answer):
        return answer, f"the largest storage's holders: {holders[:3]}"
    return answer, "" if answer[:40] in said["shown"] else "%gpumem_who does not show it"


def _grows(case: Case, said: dict[str, Any]) -> tuple[str, str]:
    if said["leaks"]:
        return said["sentence"], "false alarm"
    return _growth(case, said, said["small"])


def _leak(case: Case, said: dict[str, Any]) -> tuple[str, str]:
    return _growth(case, said, said["leaks"])


def _growth(case: Case, said: dict[str, Any], found: list[dict[str, Any]]) -> tuple[str, str]:
    if not found:
        small = [one["sentence"] for one in said["small"]]
        return said["sentence"], f"no verdict of a leak{'; only told as growth: ' + small[0] if small else ''}"
    answer = found[0]["sentence"]
    keepers = [path for one in found for path in one["keepers"]]
    if case.holder and not any(re.search(case.holder, path) for path in keepers):
        return answer, f"holder not named; named were {keepers[:3]}"
    lines = [line for one in found for line in one["lines"]]
    if case.line and not any(re.search(case.line, line) for line in lines):
        return answer, f"line not named; named were {lines[:3]}"
    return answer, ""


_JUDGES = {"none": _none, "oom": _oom, "who": _who, "grows": _grows, "leak": _leak}
