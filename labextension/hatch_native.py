"""Builds the C part of line marks while the Python package is built, where the Python at hand can use it.

It is optional: without a compiler the wheel is a pure one, and the Python code of `gpumem_magic.recording.marks` does
the same more slowly. What is shipped is compiled anew from the sources that lie there: a wheel's in a temporary folder,
an editable install's to lie in `gpumem_magic.recording.marks` itself.

``python labextension/hatch_native.py`` does what an editable install does, for the Python that runs it, which needs
setuptools, and shows what the compiler says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

__all__ = ["MODULE", "REQUIREMENTS", "SOURCES", "SWITCH", "NotBuiltError", "build", "build_in_place", "is_wanted"]

MODULE = "gpumem_magic.recording.marks._native"
SOURCES = "gpumem_magic/recording/marks/native"

# Set to anything, it leaves the C part out; of a run as of a build, see gpumem_magic.recording.marks.compiled.
SWITCH = "GPUMEM_MAGIC_NO_NATIVE"

# Knows each platform's compiler and its flags.
REQUIREMENTS = ["setuptools>=70.1"]


class NotBuiltError(Exception):
    """The C part is not built, and a wheel is as good without it.

    Parameters
    ----------
    reason
        Why.
    advice
        A sentence on what would change that; none where it is meant to be so.
    output
        All that compiler and setuptools said.
    """

    def __init__(self, reason: str, advice: str = "", output: str = "") -> None:
        super().__init__(
            f"built without the C part of line marks ({reason}). Python does the same, and costs a cell that does "
            f"nothing but start small kernels 1.5 % where C costs 0.4 %. {advice}".rstrip()
        )
        self.output = output


def is_wanted(root: Path) -> bool:
    """Tell whether a wheel for this Python should have the C part.

    Parameters
    ----------
    root
        The folder of pyproject.toml.

    Returns
    -------
    bool
        False before Python 3.12, which brought ``sys.monitoring``; on other implementations than CPython; without a
        global interpreter lock, on which the sources rely; and where `SWITCH` is set.
    """
    return _is_usable(root) and not os.environ.get(SWITCH)


def build(root: Path, folder: Path) -> tuple[Path, str] | None:
    """Compile the C part into a folder.

    Parameters
    ----------
    root
        The folder of pyproject.toml.
    folder
        Where to put it; an empty one.

    Returns
    -------
    tuple of (Path, str), or None
        The binary and its place in the wheel; None where this Python has no use for it.

    Raises
    ------
    NotBuiltError
        `SWITCH` is set, or it could not be compiled.
    """
    if not _is_usable(root):
        return None
    if not is_wanted(root):
        raise NotBuiltError(f"{SWITCH} is set")
    if find_spec("setuptools") is None:
        raise NotBuiltError("no setuptools here", "Without build isolation, install it beside hatchling.")
    # A program of its own: setuptools changes the process that imports it, and a compiler writes what it likes.
    done = subprocess.run(  # noqa: S603
        [sys.executable, __file__, str(folder)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    place = _place()
    if done.returncode or not (folder / place).is_file():
        advice = "If that matters, install a C compiler and Python's headers (python3-dev), then this package again."
        raise NotBuiltError(_reason(done.stdout), advice, done.stdout)
    return folder / place, place


def build_in_place(root: Path) -> Path | None:
    """Compile the C part and put it where the package is imported from, in the place of an older one.

    Parameters
    ----------
    root
        The folder of pyproject.toml.

    Returns
    -------
    Path or None
        The binary; None where this Python has no use for it.

    Raises
    ------
    NotBuiltError
        As for `build`; nothing lies there then.
    RuntimeError
        A running Python keeps the older one from being replaced.
    """
    target = root / _place()
    try:
        # Before anything that can fail, so that no older one outlives its sources; and never written over, as a
        # running Python would execute the new bytes at the old one's addresses.
        target.unlink(missing_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"{target} is in use ({error.strerror}): stop the kernels that use it, then again"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        built = build(root, Path(folder))
        if built is None:
            return None
        shutil.copy(built[0], target)
    return target


def _is_usable(root: Path) -> bool:
    return (
        sys.version_info >= (3, 12)
        and sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and any((root / SOURCES).glob("*.c"))
    )


def _place() -> str:
    return MODULE.replace(".", "/") + str(sysconfig.get_config_var("EXT_SUFFIX"))


def _reason(output: str) -> str:
    """Find the line of a compiler's or setuptools' output that says what was wrong.

    Parameters
    ----------
    output
        All of it.

    Returns
    -------
    str
        The first error, or else the last line.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["the compiler said nothing"]
    # `x.c:1:2: fatal error: …`, `ld: error: …`, `error C1083: …`; setuptools' own comes last.
    line = next((line for line in lines if re.search(r"\berror( \w+)?: ", line)), lines[-1])
    line = re.sub(r"^error: (Command '\[?'?([^' ]+).* (?=returned|failed))?", r"\2 ", line, flags=re.IGNORECASE)
    return line.strip().rstrip(".")


def _compile(folder: str) -> None:
    """Compile the sources in the working folder's tree with setuptools.

    Parameters
    ----------
    folder
        Gets the binary, in folders as the package has them.
    """
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import BaseError, CCompilerError

    if os.name == "nt" and "mingw" not in sysconfig.get_platform():
        flags = ["/std:c11"]
    else:
        given = os.environ.get("CFLAGS", "")  # these take the place of Python's own
        flags = ["-std=c11", "-fvisibility=hidden", *([] if "-O" in given else ["-O2"])]
        # Without Python's -g the binary names no folder of the machine; who sets flags may want one.
        flags += [] if given else ["-g0"]
    # In a fixed order, and by paths within the tree: two machines make the same binary of the same sources.
    sources = sorted(path.as_posix() for path in Path(SOURCES).glob("*.c"))
    extension = Extension(MODULE, sources, extra_compile_args=flags)
    command = build_ext(Distribution({"name": "gpumem-magic", "ext_modules": [extension]}))
    command.build_lib = folder
    with tempfile.TemporaryDirectory() as objects:
        command.build_temp = objects
        command.ensure_finalized()
        try:
            command.run()
        except (BaseError, CCompilerError, OSError) as error:
            sys.exit(f"error: {error}")


def _main() -> int:
    if sys.argv[1:]:
        _compile(sys.argv[1])
        return 0
    try:
        built = build_in_place(Path(__file__).resolve().parents[1])
    except NotBuiltError as reason:
        sys.stderr.write(f"{reason.output}gpumem-magic: {reason}\n")
        return 1
    sys.stdout.write(f"{built or 'nothing to build for this Python'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
