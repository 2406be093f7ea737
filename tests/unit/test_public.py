"""The public surface: importing costs nothing, and the version has one home."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_package_and_the_command_line_loads_neither_torch_nor_ipython():
    code = "import sys, gpumem_magic.cli; print(sorted({'torch', 'IPython', 'pynvml'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_the_version_is_the_front_ends():
    try:
        installed = version("gpumem-magic")
    except PackageNotFoundError:
        pytest.skip("gpumem-magic is importable here, but not installed")
    assert installed == json.loads((ROOT / "labextension/package.json").read_text())["version"]
