"""Settings checked, in words: what the command line and the magic both say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic.allocator.conf.check import check
from gpumem_magic.allocator.conf.environment import NEWEST, from_environment, installed_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.allocator.conf.check import Checked
    from gpumem_magic.allocator.conf.environment import TorchVersion

__all__ = ["Asked", "ask", "describe_conf"]


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
    asked = ask(text, version, environ)
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
    elif text is not None:
        lines.append("nothing is set: torch uses its defaults")
    lines += [f"note: {note}" for note in asked.notes]
    return "\n".join(lines), checked.ok


class Asked(NamedTuple):
    """Settings as checked, the variable that they came from (None: given), and all notes."""

    checked: Checked
    variable: str | None
    notes: list[str]


def ask(text: str | None, version: TorchVersion | None, environ: Mapping[str, str]) -> Asked:
    """Check `text`, or what `environ` says; see `describe_conf`."""
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
    return Asked(checked, source, [*notes, *checked.notes])
