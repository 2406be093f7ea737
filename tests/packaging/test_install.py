"""One `pip install` of the wheel enables everything, and uninstalling leaves nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Environment:
    """A virtual environment with nothing but the wheel and its requirements."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        self.folder = folder
        self.bin = folder / ("Scripts" if sys.platform == "win32" else "bin")

    def run(self, program: str, *arguments: str) -> str:
        result = subprocess.run(
            [str(self.bin / program), *arguments],
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=self.folder,
        )
        assert result.returncode == 0, result.stdout
        return re.sub("\x1b\\[[0-9;]*m", "", result.stdout)

    def files(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*")}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("install") / "venv")
    environment.run("python", "-m", "pip", "install", "-q", str(built.wheel))
    return environment


def test_requirements_fit_together_and_torch_is_not_among_them(installed):
    assert "No broken requirements found" in installed.run("python", "-m", "pip", "check")
    names = {
        package["name"] for package in json.loads(installed.run("python", "-m", "pip", "list", "--format", "json"))
    }
    assert "torch" not in names
    assert "jupyterlab" not in names


def test_the_command_is_there(installed):
    assert "COMMAND" in installed.run("gpumem-magic", "--help")
    assert installed.run("python", "-m", "gpumem_magic", "--help") == installed.run("gpumem-magic", "--help")


def test_the_server_extension_is_enabled_and_loads(installed):
    listed = installed.run("jupyter", "server", "extension", "list")
    version = installed.run("python", "-c", "import gpumem_magic; print(gpumem_magic.__version__)").strip()
    assert re.search(r"gpumem_magic\s+enabled", listed), listed
    assert re.search(rf"gpumem_magic\s+{re.escape(version)}\s+OK", listed), listed


def test_the_front_end_is_where_jupyterlab_looks(installed):
    extension = installed.folder / "share/jupyter/labextensions/gpumem-magic"
    package = json.loads((extension / "package.json").read_text())
    assert (extension / package["jupyterlab"]["_build"]["load"]).is_file()
    assert (extension / "install.json").is_file()


def test_the_magic_loads_without_torch(installed):
    code = "%load_ext gpumem_magic\nprint('gpumem' in get_ipython().magics_manager.magics['cell'])"
    assert installed.run("ipython", "--no-banner", "--colors=NoColor", "-c", code).strip().splitlines()[-1] == "True"


def test_uninstalling_leaves_nothing(installed):
    # Last in this file: the environment is not used after it.
    installed.run("python", "-m", "pip", "uninstall", "-q", "-y", "gpumem-magic")
    left = {name for name in installed.files() if "gpumem" in name.lower()}
    assert left == set()


def test_the_development_install_of_these_tests_is_enabled_too():
    try:
        distribution("gpumem-magic")
    except PackageNotFoundError:
        pytest.skip("gpumem-magic is importable here, but not installed")
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter", "labextension", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    (line,) = (line for line in listed.splitlines() if "gpumem-magic" in line)
    assert "enabled" in line
    assert "OK" in line
