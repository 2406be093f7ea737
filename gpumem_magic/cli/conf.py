"""``gpumem-magic conf``: allocator settings, checked without torch."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic.allocator.conf import TorchVersion, check, from_environment, installed_torch
from gpumem_magic.allocator.conf.environment import NEWEST

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from gpumem_magic.allocator.conf import Checked

__all__ = ["add_parsers", "describe_conf"]


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``conf``."""
    parser = commands.add_parser(
        "conf",
        help="check allocator settings before torch reads them",
        description="Check a PYTORCH_CUDA_ALLOC_CONF string: what is wrong, where, what torch would do with it, and "
        "what to write instead. torch is not imported. Exit code 1 when there is a problem.",
    )
    parser.add_argument(
        "string", nargs="?", metavar="STRING", help="the settings; without it, the environment's variable"
    )
    parser.add_argument("--torch", metavar="VERSION", help="release that will read it (default: the installed one)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=_conf)


def describe_conf(text: str | None, version: TorchVersion | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Check settings and write the outcome for a person.

    Parameters
    ----------
    text
        The settings; None: what `environ` says.
    version
        The release that will read it; None: the installed one, or the newest when there is none.
    environ
        The process's environment.

    Returns
    -------
    tuple
        The lines, and whether there is no problem.
    """
    asked = _ask(text, version, environ)
    checked, source = asked.checked, asked.variable
    lines = []
    if checked.text:
        lines.append(f"{source}={checked.text}" if source else checked.text)
    for problem in checked.problems:
        # The caret points into the line above, so the variable's name in front of it counts.
        indent = " " * (problem.at + (len(source) + 1 if source else 0))
        lines += [f"{indent}^ {problem.message}", f"{indent}  torch {checked.version}: {problem.then}"]
    if checked.problems:
        lines.append(f"write instead: {checked.corrected or 'nothing (unset it)'}")
    elif checked.text:
        lines.append(f"ok for torch {checked.version}")
    lines += [f"note: {note}" for note in asked.notes]
    return "\n".join(lines), checked.ok


class _Asked(NamedTuple):
    checked: Checked
    variable: str | None
    notes: list[str]


def _ask(text: str | None, version: TorchVersion | None, environ: Mapping[str, str]) -> _Asked:
    notes: list[str] = []
    version = version or installed_torch()
    if version is None:
        version = NEWEST
        notes.append(f"torch is not installed here: checked for {version}; name another with --torch")
    source = None
    if text is None:
        environment = from_environment(environ, version)
        text, source = environment.text, environment.variable
        notes += environment.notes
        if source is None:
            notes.append("no allocator settings in the environment: torch uses its defaults")
    checked = check(text, version)
    return _Asked(checked, source, [*notes, *checked.notes])


def _conf(arguments: argparse.Namespace) -> int:
    version = TorchVersion.parse(arguments.torch) if arguments.torch else None
    if not arguments.json:
        text, ok = describe_conf(arguments.string, version, os.environ)
        print(text)
        return 0 if ok else 1
    checked, source, notes = _ask(arguments.string, version, os.environ)
    print(
        json.dumps(
            {
                "ok": checked.ok,
                "settings": checked.settings,
                "problems": [problem._asdict() for problem in checked.problems],
                "notes": notes,
                "corrected": checked.corrected,
                "torch": str(checked.version),
                "variable": source,
            }
        )
    )
    return 0 if checked.ok else 1
