"""The command line: the same engine without a notebook. One module per family of commands.

Exit codes: 0 done, 1 bad input, 2 bad usage (argparse's own, and `BadUsageError`); both with one line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import gpumem_magic
from gpumem_magic._errors import BadUsageError, GpumemError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# Modules with `add_parsers(subparsers)`; every parser sets `run`, a function of the parsed arguments that returns an
# exit code.
_FAMILIES = ("demo", "report", "snapshot", "conf", "allocator", "monitor")


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line; the families' parsers are of its kind too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help says how)\n")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpumem-magic",
        description="Where did the GPU memory go, and what to do about it. FILE is a torch memory snapshot pickle, "
        "plain, .gz or .xz.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {gpumem_magic.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}").add_parsers(commands)
    return parser


def _drop_output() -> None:
    # What is left in the buffer would fail again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv
        Arguments without the program's name; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        The exit code.
    """
    # A cp1252 terminal must get a readable line, not a UnicodeEncodeError.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    arguments = _build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        if sys.stdout is not None:  # started with its output closed
            sys.stdout.flush()
    except BadUsageError as error:
        print(f"gpumem-magic: {error}", file=sys.stderr)
        return 2
    except GpumemError as error:
        print(f"gpumem-magic: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) went away: nothing to say.
        _drop_output()
        return 1
    except OSError as error:
        # A full disk under a redirected output, as a rule; files that we open ourselves have their own messages.
        _drop_output()
        print(f"gpumem-magic: {error.filename or 'the output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code
