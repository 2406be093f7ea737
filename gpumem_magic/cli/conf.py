"""``gpumem-magic conf``: allocator settings, checked without torch."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from gpumem_magic.allocator.conf import TorchVersion, check, from_environment, installed_torch
from gpumem_magic.allocator.conf.environment import NEWEST

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parsers"]


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


def _conf(arguments: argparse.Namespace) -> int:
    notes: list[str] = []
    version = TorchVersion.parse(arguments.torch) if arguments.torch else installed_torch()
    if version is None:
        version = NEWEST
        notes.append(f"torch is not installed here: checked for {version}; name another with --torch")
    text = arguments.string
    source = None
    if text is None:
        environment = from_environment(os.environ, version)
        text, source = environment.text, environment.variable
        notes += environment.notes
        if source is None:
            notes.append("no allocator settings in the environment: torch uses its defaults")
    checked = check(text, version)
    notes += checked.notes
    if arguments.json:
        print(
            json.dumps(
                {
                    "ok": checked.ok,
                    "settings": checked.settings,
                    "problems": [problem._asdict() for problem in checked.problems],
                    "notes": notes,
                    "corrected": checked.corrected,
                    "torch": str(version),
                    "variable": source,
                }
            )
        )
        return 0 if checked.ok else 1
    if text:
        print(f"{source}={text}" if source else text)
    for problem in checked.problems:
        # The caret points into the line above, so the variable's name in front of it counts.
        indent = problem.at + (len(source) + 1 if source else 0)
        print(f"{' ' * indent}^ {problem.message}")
        print(f"{' ' * indent}  torch {version}: {problem.then}")
    if checked.problems:
        print(f"write instead: {checked.corrected}" if checked.corrected else "write instead: nothing (unset it)")
    elif text:
        print(f"ok for torch {version}")
    for note in notes:
        print(f"note: {note}")
    return 0 if checked.ok else 1
