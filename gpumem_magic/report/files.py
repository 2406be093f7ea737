"""Writing reports: a file of ours is replaced as a whole, a foreign one never."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem_magic._errors import ExportError
from gpumem_magic.report.html import MARKER
from gpumem_magic.trace.writer import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumem_magic.analysis.model import Analysis
    from gpumem_magic.trace.model import Trace

__all__ = [
    "default_name",
    "interchange_format",
    "is_picture_name",
    "is_snapshot_name",
    "shown_path",
    "write_new",
    "write_new_snapshot",
    "write_report",
]


def default_name(analysis: Analysis) -> str:
    """Return a file name for a report, for example ``gpumem-In-7.html``."""
    # Letters of any script are fine in file names; what shells and Windows dislike is not.
    slug = re.sub(r"[^\w.-]+", "-", analysis.title).strip("-.")[:80]
    return f"gpumem-{slug or 'report'}.html"


def shown_path(written: Path) -> str:
    """Return how to tell a person where a file lies: from the current folder where it is in it, else from the root.

    So that stored notebooks carry no path of the machine, and none leads back and forth (``/a/../b``).
    """
    try:
        here = Path.cwd().resolve()
        path = written.resolve()
    except OSError:  # the current folder is gone
        return str(written)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


_PACKED = (".gz", ".xz")
_PICKLES = (".pickle", ".pkl")
_PAGES = (".html", ".htm")


def is_snapshot_name(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name asks for a torch memory snapshot."""
    name = Path(path).name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name.endswith(_PICKLES)


def is_picture_name(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name asks for the picture."""
    return Path(path).name.lower().endswith(".png")


def interchange_format(path: str | os.PathLike[str]) -> str | None:
    """Return the other tool that a file's name asks for: ``x.perfetto.json``, ``x.speedscope.json``; None for none."""
    found = re.search(r"\.(perfetto|speedscope)\.json$", Path(path).name.lower())
    return None if found is None else found[1]


def write_new(data: bytes, path: str | os.PathLike[str]) -> Path:
    """Write bytes where nothing lies yet.

    Raises
    ------
    ExportError
        Something lies there, or it cannot be written.
    """
    with _new(path) as target:
        target.write_bytes(data)
    return target


@contextmanager
def _new(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give where to write a file that is not there yet, and leave no part of it when that fails."""
    target = Path(path).expanduser().absolute()
    try:
        # Such a file does not tell who wrote it, and a recording of hours must not be lost to a slip.
        target.open("xb").close()
    except FileExistsError:
        raise ExportError(f"{target} exists: choose another name or delete it first") from None
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror or error}") from error
    whole = False
    try:
        yield target
        whole = True
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        # Also when it was interrupted: a part would look like the whole, and be in the way of the next try.
        if not whole:
            target.unlink(missing_ok=True)


def write_new_snapshot(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write a torch memory snapshot where nothing lies yet.

    Raises
    ------
    ExportError
        Something lies there, or it cannot be written.
    """
    with _new(path) as target:
        write_snapshot(trace, target)
    return target


def _check_name(target: Path, forms: str) -> None:
    """Refuse a name that says something other than what the file will hold."""
    if target.suffix.lower() not in _PAGES:
        raise ExportError(f"nothing is written as {target.name}: name a file that ends in {forms}")


def _check_target(target: Path) -> None:
    if not target.exists():
        if not target.parent.is_dir():
            raise ExportError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")
        return
    if not target.is_file():
        raise ExportError(f"cannot write {target}: it is not a regular file; choose another name")
    try:
        with target.open("rb") as file:
            head = file.read(len(MARKER))
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror}; choose another name") from error
    if head and head != MARKER:
        raise ExportError(f"{target} exists and is not a gpumem report: choose another name or delete it first")


def write_report(data: bytes, path: str | os.PathLike[str], name: str, forms: str = ".html") -> Path:
    """Write a report's bytes at once or not at all.

    Parameters
    ----------
    data
        What `gpumem_magic.report.html.report_html` made.
    path
        A file that ends in ``.html`` or ``.htm``, or a folder (then `name` inside it), relative to the current one.
    name
        File name for a folder.
    forms
        Endings to name where the path has none of them.

    Returns
    -------
    pathlib.Path
        Where it lies, absolute.

    Raises
    ------
    ExportError
        It ends otherwise, it cannot be written there, or a file that is not ours lies there.
    """
    try:
        target = Path(path).expanduser()
        target = (target / name if target.is_dir() else target).absolute()
        _check_target(target)
        _check_name(target, forms)
        # A link stays a link: what it points to is replaced.
        real = target.resolve()
        handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=".gpumem-", suffix=".tmp")
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ExportError(f"cannot write {os.fspath(path)!r}: {reason}; choose another place") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(real)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise ExportError(f"cannot write {target}: {error.strerror}; choose another place") from error
    return target
