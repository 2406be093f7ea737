"""``gpumem-magic conf``: allocator settings, checked without torch."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from gpumem_magic._errors import BadUsageError
from gpumem_magic.allocator.conf import TorchVersion
from gpumem_magic.allocator.conf.environment import NEWEST, installed_torch
from gpumem_magic.allocator.conf.table import describe_options, option_rows
from gpumem_magic.allocator.conf.text import ask, describe_conf

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
    parser.add_argument("--options", action="store_true", help="list every option: values, default, releases, meaning")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=_conf)


def _conf(arguments: argparse.Namespace) -> int:
    version = TorchVersion.parse(arguments.torch) if arguments.torch else None
    if arguments.options:
        return _options(arguments, version or installed_torch() or NEWEST)
    if not arguments.json:
        text, ok = describe_conf(arguments.string, version, os.environ)
        print(text)
        return 0 if ok else 1
    checked, source, notes = ask(arguments.string, version, os.environ)
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


def _options(arguments: argparse.Namespace, version: TorchVersion) -> int:
    if arguments.string is not None:
        raise BadUsageError("--options lists every option: it takes no settings to check")
    if arguments.json:
        print(json.dumps({"torch": str(version), "options": option_rows(version)}))
    else:
        print(describe_options(version))
    return 0
