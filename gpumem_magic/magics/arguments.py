"""The magic's line: finding it in a cell, and reading its options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError

from gpumem_magic._errors import BadUsageError
from gpumem_magic.recording.options import RecordOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "MagicLine",
    "Request",
    "export_path",
    "find_magic_line",
    "options_of",
    "read_request",
    "split_statement",
    "unquoted",
    "without_comment",
]

_MAGIC = re.compile(r"%%gpumem(?:[ \t]+(?P<arguments>.*?))?[ \t]*")
_WORD = re.compile(r"\s*(?P<word>(?:\"[^\"]*\"|'[^']*'|[^\s\"'])+)")
_QUOTES = "\"'"
_FLAGS = frozenset({"--quiet", "--scratch", "--whatif"})
# Takes a number of bytes or nothing: what follows in a statement may be the statement.
_ALLOWANCE = "--assert-no-leak"
_BYTES = re.compile(r"\d[\d.]*[KMGiB]*", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """What a magic's line asks for.

    Attributes
    ----------
    record
        What to record.
    export
        Where to write the HTML report, absolute, or None.
    top
        Rows of the text report's tables.
    quiet
        Show nothing; the report is in ``gpumem_magic.last``.
    allowed_leak
        Fail the cell when more than so many bytes leak; None: do not.
    scratch
        Remove the names that the cell created when it ends.
    keep
        Names that `scratch` leaves.
    whatif
        The exported file also says what other allocator settings would have reserved.
    brief
        Nobody asked for this cell: a line in place of the report, and nothing where nothing was allocated.
    """

    record: RecordOptions
    export: Path | None = None
    top: int = 5
    quiet: bool = False
    brief: bool = False
    allowed_leak: int | None = None
    scratch: bool = False
    keep: tuple[str, ...] = ()
    whatif: bool = False


class MagicLine(NamedTuple):
    """Where ``%%gpumem`` stands in a cell (index of its line), and what follows it there."""

    at: int
    arguments: str


def find_magic_line(lines: Sequence[str]) -> MagicLine | None:
    """Find ``%%gpumem`` as a cell's first line, above which only comments and blank lines may stand.

    ``%%gpumem?`` asks for help and is none.
    """
    for index, line in enumerate(lines):
        text = line.rstrip("\r\n")
        match = _MAGIC.fullmatch(text)
        if match is not None:
            return MagicLine(index, match["arguments"] or "")
        if text.strip() and not text.lstrip().startswith("#"):
            return None
    return None


def without_comment(arguments: str) -> str:
    """Drop a trailing ``# comment``. A ``#`` inside a word or quotes is part of it."""
    quote = ""
    before = " "
    for index, character in enumerate(arguments):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character == "#" and before.isspace():
            return arguments[:index].rstrip()
        before = character
    return arguments.strip()


def options_of(magic: Any, line: str, name: str) -> Any:
    """Read the options of a magic's line.

    Parameters
    ----------
    magic
        The function, with the ``parser`` that IPython's ``magic_arguments`` gave it.
    line
        The line without the magic's name.
    name
        How the magic is written: ``%gpumem_who``.

    Raises
    ------
    UsageError
        With one line that names the next step.
    """
    try:
        return magic.parser.parse_argstring(without_comment(line))
    except UsageError as error:
        raise UsageError(f"{name}: {error} ({name}? lists the options)") from None


def split_statement(line: str) -> tuple[str, str]:
    """Split a ``%gpumem`` line into its options and the statement after them, which is left as it was typed."""
    position = 0
    while (match := _WORD.match(line, position)) is not None and match["word"].startswith("--"):
        position = match.end()
        if match["word"] == "--":
            return line[: match.start()].strip(), line[position:].strip()
        takes_value = match["word"] not in _FLAGS and "=" not in match["word"]
        if takes_value and (value := _WORD.match(line, position)) is not None:
            if match["word"] == _ALLOWANCE and not _BYTES.fullmatch(value["word"]):
                continue
            position = value.end()
    return line[:position].strip(), line[position:].strip()


def read_request(magic: Any, arguments: str, check: Callable[[RecordOptions], None], name: str = "%%gpumem") -> Request:
    """Read the options of a magic's line, as far as can be judged before anything runs.

    Parameters
    ----------
    magic
        The function, with its ``parser``.
    arguments
        The line without the magic's name.
    check
        Raises `BadUsageError` for what this process is known not to have.
    name
        How the magic is written.

    Raises
    ------
    UsageError
        With one line that names the next step.
    """
    found = options_of(magic, arguments, name)
    try:
        options = RecordOptions(
            device=unquoted(found.device),
            stacks=found.stacks,
            max_entries=found.max_entries,
            label=unquoted(found.label),
        )
        check(options)
        return Request(
            record=options,
            export=None if found.export is None else export_path(unquoted(found.export)),
            top=max(1, found.top),
            quiet=found.quiet,
            allowed_leak=None if found.assert_no_leak is None else _allowance(unquoted(found.assert_no_leak)),
            scratch=found.scratch,
            keep=_names(found.keep, scratch=found.scratch),
            whatif=_with_export(found.export, whatif=found.whatif),
        )
    except BadUsageError as error:
        raise UsageError(f"{name}: {error}") from None


def unquoted(value: Any) -> Any:
    """Take the quotes off a word of a magic's line."""
    # IPython splits a magic's line at blanks outside quotes, and leaves the quotes where they are.
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
        return value[1:-1]
    return value


def _with_export(export: str | None, *, whatif: bool) -> bool:
    if whatif and export is None:
        raise BadUsageError(
            "--whatif goes with --export FILE.html. Without a file, open the report's tab 'What if', or run "
            "%gpumem_whatif after the cell"
        )
    return whatif


def _allowance(given: str) -> int:
    from gpumem_magic.analysis.leaks.check import read_allowance  # numpy comes with it

    return read_allowance(given)


def _names(given: Sequence[str], *, scratch: bool) -> tuple[str, ...]:
    names = tuple(name for word in given for name in unquoted(word).split(",") if name)
    if names and not scratch:
        raise BadUsageError("--keep goes with --scratch, which removes the names that the cell creates")
    wrong = [name for name in names if not name.isidentifier()]
    if wrong:
        raise BadUsageError(f"--keep takes names of variables, not {wrong[0]!r}")
    return names


def export_path(given: str) -> Path:
    """Read where a report shall be written, as far as can be judged before it is made.

    Parameters
    ----------
    given
        As it was typed, without quotes. A name without an ending gets ``.html``.

    Returns
    -------
    pathlib.Path
        Absolute.

    Raises
    ------
    BadUsageError
        It is a folder or no HTML file, its folder is not there, or it cannot be written.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        raise BadUsageError(f"--export: {path} is a folder; name a file in it, for example {path / 'report.html'}")
    if path.suffix == "":
        path = path.with_suffix(".html")
    if path.suffix.lower() not in {".html", ".htm"}:
        raise BadUsageError(f"--export writes HTML: name a file that ends in .html, not {given}")
    # The kernel's working directory is the notebook's, and the cell may change it.
    try:
        path = Path.cwd() / path
    except OSError:
        raise BadUsageError("--export: the current folder is gone; os.chdir() to another one first") from None
    if not path.parent.is_dir():
        raise BadUsageError(f"--export: there is no folder {path.parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadUsageError(f"--export: {path} cannot be written; name another file")
    return path
