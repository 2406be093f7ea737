"""Real kernels through nbclient: one for the tests of a module, fresh ones where a test breaks things."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

if TYPE_CHECKING:
    from collections.abc import Iterator


# What a cell writes when it has come so far; `press_stop_there` waits for it.
THERE = "open('there', 'w').close()"


class Kernel:
    """A running kernel in which cells are executed one after another, like a person would."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.notebook = new_notebook()
        self.client = NotebookClient(
            self.notebook,
            timeout=120,
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": folder}},
        )
        self._context: Any = None

    def start(self, **env: str) -> None:
        # With that variable, ipykernel leaves descriptors 1 and 2 alone, and a library's own chatter would not be seen.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self._context = self.client.async_setup_kernel(env={**inherited, **env})
        self.loop.run_until_complete(self._context.__aenter__())

    def stop(self) -> None:
        self.loop.run_until_complete(self._context.__aexit__(None, None, None))
        self.loop.close()

    async def press_stop_there(self, client: Any) -> None:
        """Interrupt the cell that runs once it has written `THERE`, however long that takes."""
        mark = Path(self.client.resources["metadata"]["path"]) / "there"
        while not mark.exists():  # noqa: ASYNC110 -- another process's file, not an event of this loop
            await asyncio.sleep(0.05)
        mark.unlink()
        await client.km.interrupt_kernel()

    def run(self, source: str, during: Any = None) -> Cell:
        """Execute one cell; `during` is awaited beside it."""
        cell = new_code_cell(source)
        self.notebook.cells.append(cell)

        async def both() -> None:
            work = asyncio.ensure_future(self.client.async_execute_cell(cell, len(self.notebook.cells) - 1))
            if during is not None:
                await during(self.client)
            await work

        self.loop.run_until_complete(both())
        nbformat.validate(self.notebook)
        return Cell(cell.outputs, cell.execution_count)


def _joined(outputs: list[Any]) -> list[Any]:
    """The outputs as a front end shows them: what was printed without a pause of its own is one text.

    A kernel sends printed text when its timer fires, so that a slow machine splits one text over several messages.
    """
    joined: list[Any] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if before is not None and before.output_type == output.output_type == "stream" and before.name == output.name:
            joined[-1] = NotebookNode({**before, "text": before.text + output.text})
        else:
            joined.append(output)
    return joined


class Cell:
    """What a cell showed, in order."""

    def __init__(self, outputs: list[Any], number: int | None) -> None:
        self.outputs = _joined(outputs)
        self.number = number

    @property
    def kinds(self) -> list[str]:
        """One word per output: its stream, "result", "report", "display" or the error's name."""
        return [self._kind(output) for output in self.outputs]

    @staticmethod
    def _kind(output: Any) -> str:
        if output.output_type == "stream":
            return str(output.name)
        if output.output_type == "error":
            return str(output.ename)
        if output.output_type == "execute_result":
            return "result"
        return "report" if output.data.get("text/plain", "").startswith("gpumem:") else "display"

    @property
    def reports(self) -> list[str]:
        return [o.data["text/plain"] for o in self.outputs if self._kind(o) == "report"]

    @property
    def report(self) -> str:
        assert len(self.reports) == 1, self.kinds
        return self.reports[0]

    @property
    def result(self) -> str | None:
        return next((o.data["text/plain"] for o in self.outputs if o.output_type == "execute_result"), None)

    def text(self, name: str = "stdout") -> str:
        return "".join(o.text for o in self.outputs if o.output_type == "stream" and o.name == name)

    @property
    def traceback(self) -> str:
        text = "\n".join(line for o in self.outputs if o.output_type == "error" for line in o.traceback)
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel with the extension loaded and torch imported, shared by a module's tests."""
    running = Kernel(tmp_path_factory.mktemp("notebook"))
    running.start()
    running.run("import torch\n%load_ext gpumem_magic")
    yield running
    running.stop()


@pytest.fixture
def fresh_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel in which nothing ran yet."""
    running = Kernel(tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def there() -> str:
    """The code with which a cell says that it may be interrupted; see `Kernel.press_stop_there`."""
    return THERE


@pytest.fixture
def new_kernel() -> type[Kernel]:
    """For a kernel that is started in a special way."""
    return Kernel
