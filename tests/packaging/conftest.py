"""One build of the checkout, in a copy of it, on a machine that has no Node.js."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def run(command: list[str], *, cwd: Path | None = None, **variables: str) -> str:
    """Run a program as on a machine without Node.js; show its output where it fails."""
    ours = ("PYTEST", "PYTHONPATH", "npm_", "GPUMEM_MAGIC_NO_NATIVE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # Neither the machine's Node.js nor the one that the tests' own runner put there.
    folders = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(
        folder
        for folder in folders
        if not (Path(folder) / "node").exists() or folder == str(Path(sys.executable).parent)
    )
    environment |= variables
    result = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@dataclass(frozen=True)
class Built:
    """What `python -m build` made, and where."""

    tree: Path
    sdist: Path
    wheel: Path
    log: str

    run = staticmethod(run)

    def is_pure(self) -> bool:
        return self.wheel.name.endswith("-py3-none-any.whl")

    def widget(self) -> str:
        return (self.tree / "gpumem_magic/static/widget.js").read_text(encoding="utf-8")

    def build_wheel(self, folder: Path, kind: str = "wheel") -> Path:
        """Build once more in the same tree, with the tests' own build requirements: the stale bundle's chance."""
        folder.mkdir()
        code = f"from hatchling.build import build_{kind}; build_{kind}({str(folder)!r})"
        run([sys.executable, "-c", code], cwd=self.tree)
        (wheel,) = folder.glob("*.whl")
        return wheel


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    tree = tmp_path_factory.mktemp("packaging") / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    log = run([sys.executable, "-m", "build", "--outdir", str(tree.parent / "dist"), str(tree)])
    (sdist,) = (tree.parent / "dist").glob("*.tar.gz")
    (wheel,) = (tree.parent / "dist").glob("*.whl")
    return Built(tree, sdist, wheel, log)


@pytest.fixture
def load_hook() -> Callable[[str], ModuleType]:
    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / f"labextension/{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
