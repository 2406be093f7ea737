"""The C part of line marks: in the wheel where Python and a compiler allow it, never in the way where they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compat.run import ask, interpreter

from gpumem_magic.recording.marks import compiled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MARKS = "gpumem_magic/recording/marks"
WHERE = "import gpumem_magic.recording.marks._native as native; print(native.__file__)"
LEFT_OUT = "gpumem-magic: built without the C part of line marks"


@dataclass(frozen=True)
class Workshop:
    """An environment of a Python that has a use for the C part, and a checkout to build in, in a folder with spaces."""

    python: Path
    tree: Path
    binary: str  # its name for this Python
    run: Any

    def python_run(self, *arguments: str, **settings: Any) -> str:
        # Node.js and the compiler may lie in one folder; the front end is built already.
        return str(self.run([str(self.python), *arguments], **{"PATH": os.environ["PATH"], **settings}))

    def hatchling(self, code: str, tree: Path | None = None, **variables: str) -> str:
        return self.python_run("-c", f"from hatchling.build import *; {code}", cwd=tree or self.tree, **variables)

    def build(self, folder: Path, tree: Path | None = None, **variables: str) -> tuple[Path, str]:
        folder.mkdir()
        log = self.hatchling(f"build_wheel({str(folder)!r})", tree, **variables)
        (wheel,) = folder.glob("*.whl")
        return wheel, log

    def in_place(self) -> Path:
        return self.tree / MARKS / self.binary


@pytest.fixture(scope="module")
def workshop(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    base = next(filter(None, map(interpreter, ("3.12", "3.13", "3.14"))), None)
    if base is None:
        pytest.skip("no Python 3.12, 3.13 or 3.14 among pyenv's or on the path")
    compiler, header, suffix = ask(
        base,
        "import sysconfig as s; print(s.get_config_var('CC')); print(s.get_path('include') + '/Python.h');"
        "print(s.get_config_var('EXT_SUFFIX'))",
    ).splitlines()
    if shutil.which(compiler.split()[0]) is None or not Path(header).exists():
        pytest.skip(f"{base} has no compiler ({compiler}) or no headers ({header}) here")
    folder = tmp_path_factory.mktemp("native part")
    built.run([base, "-m", "venv", str(folder / "venv")])
    python = folder / "venv/bin/python"
    # numpy is what line marks import.
    built.run([str(python), "-m", "pip", "install", "-q", "hatchling", "editables", "setuptools", "numpy"])
    tree = shutil.copytree(built.tree, folder / "tree", ignore=shutil.ignore_patterns("node_modules", ".yarn"))
    return Workshop(python, tree, f"_native{suffix}", built.run)


def binaries(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist() if name.endswith((".so", ".pyd"))}


@pytest.mark.parametrize(
    ("python", "switch", "wanted"),
    [
        (((3, 12), "cpython", {}), "", True),
        (((3, 13), "cpython", {"Py_GIL_DISABLED": 0}), "", True),
        (((3, 13), "cpython", {"Py_GIL_DISABLED": 1}), "", False),
        (((3, 12), "pypy", {}), "", False),
        (((3, 11), "cpython", {}), "", False),
        (((3, 12), "cpython", {}), "1", False),
    ],
    ids=["3.12", "with a lock", "free-threaded", "PyPy", "3.11", "switched off"],
)
def test_it_is_wanted_where_it_can_be_used(load_hook, monkeypatch, python, switch, wanted):
    """Doubles of the interpreter, as a machine has one or two of these at most."""
    native = load_hook("hatch_native")
    version, implementation, settings = python
    double = SimpleNamespace(version_info=version, implementation=SimpleNamespace(name=implementation))
    monkeypatch.setattr(native, "sys", double)
    monkeypatch.setattr(native, "sysconfig", SimpleNamespace(get_config_var=settings.get))
    monkeypatch.setenv("GPUMEM_MAGIC_NO_NATIVE", switch)
    assert native.is_wanted(ROOT) is wanted
    assert not native.is_wanted(ROOT / "tests"), "there are no sources there"


def test_one_variable_leaves_it_out_of_a_build_and_of_a_run(load_hook):
    assert load_hook("hatch_native").SWITCH == compiled.SWITCH


def test_a_python_without_a_use_for_it_gets_a_pure_wheel_and_needs_no_setuptools(built):
    if sys.version_info >= (3, 12):
        pytest.skip("this Python has a use for it; the suite runs on an older one as well")
    assert built.is_pure()
    assert binaries(built.wheel) == {}
    assert "setuptools" not in built.log
    assert LEFT_OUT not in built.log


def test_the_wheel_has_it_for_its_python_and_never_an_old_one(workshop, tmp_path):
    """What a development install left in the tree is neither shipped nor touched."""
    old = workshop.in_place()
    old.write_bytes(b"of other sources")
    try:
        wheel, log = workshop.build(tmp_path / "wheel")
        workshop.hatchling(f"build_sdist({str(tmp_path)!r})")
        assert old.read_bytes() == b"of other sources"
    finally:
        old.unlink()
    assert LEFT_OUT not in log
    ((name, content),) = binaries(wheel).items()
    assert name == f"{MARKS}/{workshop.binary}"
    assert content.startswith((b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"))
    tag = f"cp{''.join(ask(workshop.python, 'import sys; print(*sys.version_info[:2])').split())}"
    assert wheel.name.removesuffix(".whl").split("-")[2:4] == [tag, tag]
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (opened.read(one).decode() for one in opened.namelist() if one.endswith(".dist-info/WHEEL"))
        assert not any(one.endswith((".c", ".h")) for one in opened.namelist())
    assert "Root-Is-Purelib: false" in metadata
    assert f"Tag: {wheel.name.removesuffix('.whl').split('-', 2)[2]}\n" in metadata
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        assert not any(name.endswith(".so") for name in opened.getnames())


def test_a_wheel_from_the_source_distribution_is_the_same_to_the_byte(workshop, built, tmp_path):
    with tarfile.open(built.sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    from_sdist, _ = workshop.build(tmp_path / "from sdist", unpacked)
    from_tree, _ = workshop.build(tmp_path / "from tree")
    assert binaries(from_sdist).keys() == {f"{MARKS}/{workshop.binary}"}
    assert from_sdist.name == from_tree.name
    assert from_sdist.read_bytes() == from_tree.read_bytes()


def test_it_is_installed_by_pip_imported_and_uninstalled(workshop):
    """With pip's own build environment; nothing but what pip does is asked of the user."""
    site = Path(ask(workshop.python, "import sysconfig; print(sysconfig.get_path('platlib'))"))
    workshop.python_run("-m", "pip", "install", "-q", "--no-deps", str(workshop.tree))
    assert workshop.python_run("-c", WHERE, cwd=site.parent).strip() == str(site / MARKS / workshop.binary)
    workshop.python_run("-m", "pip", "uninstall", "-q", "-y", "gpumem-magic")
    assert [path for path in workshop.python.parents[1].rglob("*") if "gpumem" in path.name.lower()] == []
    assert not workshop.in_place().exists()


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"CC": shutil.which("false") or "false"}, "false"),
        ({"CC": "/nowhere/cc"}, "/nowhere/cc"),
        ({"CFLAGS": "-nostdinc"}, "fatal error: "),
        ({"GPUMEM_MAGIC_NO_NATIVE": "1"}, "GPUMEM_MAGIC_NO_NATIVE is set"),
    ],
    ids=["a compiler that fails", "no compiler", "no headers", "switched off"],
)
def test_without_it_the_wheel_is_pure_and_one_line_says_so(workshop, tmp_path, variables, why):
    wheel, log = workshop.build(tmp_path / "wheel", **variables)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert binaries(wheel) == {}
    (line,) = log.strip().splitlines()
    assert line.startswith(LEFT_OUT)
    assert why in line
    assert ("install a C compiler" in line) == ("CC" in variables or "CFLAGS" in variables)


def test_setuptools_is_asked_for_only_where_it_is_used(workshop):
    ask_for = "print(*get_requires_for_build_{}())"
    assert "setuptools" in workshop.hatchling(ask_for.format("wheel"))
    assert "setuptools" in workshop.hatchling(ask_for.format("editable"))
    assert "setuptools" not in workshop.hatchling(ask_for.format("sdist"))
    assert "setuptools" not in workshop.hatchling(ask_for.format("wheel"), GPUMEM_MAGIC_NO_NATIVE="1")


def test_the_sources_compile_without_a_warning(workshop, tmp_path):
    wheel, log = workshop.build(tmp_path / "wheel", CFLAGS="-Wall -Wextra -Werror")
    assert binaries(wheel) != {}, log


def test_an_editable_install_has_it_beside_the_package_and_replaces_an_old_one(workshop, tmp_path):
    target = workshop.in_place()
    target.write_bytes(b"of other sources")
    try:
        with target.open("rb") as running:
            workshop.hatchling(f"build_editable({str(tmp_path)!r})")
            # Another file: what a running Python has mapped keeps its bytes.
            assert running.read() == b"of other sources"
        assert workshop.python_run("-c", WHERE, cwd=workshop.tree).strip() == str(target)
        (wheel,) = tmp_path.glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            # Of a folder in site-packages, pip would leave an empty one, which Python imports as a package.
            assert not any(name.startswith("gpumem_magic/") for name in opened.namelist())
        # Where it can no longer be had, the old one does not stay.
        assert LEFT_OUT in workshop.hatchling(f"build_editable({str(tmp_path)!r})", CC="/nowhere/cc")
        assert not target.exists()
    finally:
        target.unlink(missing_ok=True)
    status = subprocess.run(["git", "check-ignore", "-q", f"{MARKS}/{workshop.binary}"], cwd=ROOT, check=False)
    assert status.returncode == 0, "a binary that lies in the tree must not be committed"
