"""The public surface: importing costs nothing, and the version has one home."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import gpumem_magic

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_package_and_the_command_line_loads_neither_torch_nor_ipython():
    code = "import sys, gpumem_magic.cli; print(sorted({'torch', 'IPython', 'pynvml'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_loading_brings_nothing_that_only_a_report_or_a_search_needs():
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "InteractiveShell.instance().run_line_magic('load_ext', 'gpumem_magic')\n"
        "late = {'torch', 'numpy', 'matplotlib', 'anywidget'}\n"
        "late |= {f'gpumem_magic.{name}' for name in ('holders', 'analysis', 'allocator')}\n"
        "print(sorted(late & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_the_version_is_the_front_ends():
    try:
        installed = version("gpumem-magic")
    except PackageNotFoundError:
        pytest.skip("gpumem-magic is importable here, but not installed")
    assert installed == json.loads((ROOT / "labextension/package.json").read_text())["version"]


def test_the_public_names_are_these_and_each_explains_itself():
    assert sorted(gpumem_magic.__all__) == [
        "LeakError",
        "__version__",
        "find",
        "last",
        "ledger",
        "load_ipython_extension",
        "read_snapshot",
        "record",
        "unload_ipython_extension",
    ]
    assert set(gpumem_magic.__all__) <= set(dir(gpumem_magic))
    for name in ("find", "load_ipython_extension", "read_snapshot", "record", "unload_ipython_extension"):
        assert len(getattr(gpumem_magic, name).__doc__) > 20


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = gpumem_magic.nonsense


def test_jupyter_finds_both_extensions():
    (point,) = gpumem_magic._jupyter_server_extension_points()
    assert point["module"] == "gpumem_magic.server"
    (path,) = gpumem_magic._jupyter_labextension_paths()
    assert path == {"src": "labextension", "dest": "gpumem-magic"}


def test_a_type_checker_of_a_user_sees_the_types(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "user.py"
    script.write_text(
        "import gpumem_magic\n\nwith gpumem_magic.record() as r:\n    pass\nreveal_type(r)\n", encoding="utf-8"
    )
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert "Revealed type is" in result.stdout, result.stdout
    assert '"Any"' not in result.stdout
