"""``%gpumem_whatif``: what other allocator settings would have done with a measured cell, or with a snapshot file."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import publish_display_data

from gpumem_magic import _reports
from gpumem_magic._errors import BadUsageError, GpumemError, SnapshotError
from gpumem_magic._format import say
from gpumem_magic.magics.arguments import options_of, unquoted
from gpumem_magic.magics.diff import operand
from gpumem_magic.magics.live import live_line_for
from gpumem_magic.magics.tools import as_magic

if TYPE_CHECKING:
    from gpumem_magic.report import Report

__all__ = ["WhatIfMagics", "register", "unregister"]

_NAME = "gpumem_whatif"
_GIB = 2**30


class WhatIfMagics:
    """The line magic of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @as_magic(
        _NAME,
        argument(
            "target",
            nargs="?",
            metavar="LABEL|PATH",
            help="a measured cell (3, a --label, train~1) or a snapshot file of torch. Default: the last cell.",
        ),
        argument(
            "--conf",
            action="append",
            metavar="STRING",
            help='a PYTORCH_CUDA_ALLOC_CONF value to try, "" for torch\'s defaults; may be repeated. '
            "Default: the usual ones.",
        ),
        argument(
            "--cap-gib",
            type=float,
            metavar="X",
            help="most GiB that may be reserved. Default: the limit that the process had, as far as it is known.",
        ),
        argument("--device", metavar="DEVICE", help="only this one, in torch's notation: cuda:0. Default: all."),
        expands=True,
    )
    def gpumem_whatif(self, line: str) -> None:
        """Show what other allocator settings would have reserved, and whether that would have fitted.

        The recording is replayed through a model of torch's allocator; nothing touches the GPU. The best setting
        comes as a line to paste.
        """
        found = options_of(self.gpumem_whatif, line, "%gpumem_whatif")
        confs = None if found.conf is None else [unquoted(conf) for conf in found.conf]
        try:
            cap = _bytes(found.cap_gib)
            report = _only(_target(found.target), found.device)
            texts, tables = self._answers(report, confs, cap)
        except BadUsageError as error:
            raise UsageError(f"%{_NAME}: {error}") from None
        except GpumemError as error:
            say(f"gpumem: {error}")
            return
        # A setting is replayed as the newest torch takes it.
        refused = [
            f"warning: the torch that is installed here would not take it: {line}" for line in _unknown_here(confs)
        ]
        texts += [f"  {line}" for line in refused]
        tables += [f"<div>⚠ {escape(line)}</div>" for line in refused]
        text = "\n".join(texts)
        if hasattr(self._shell, "kernel"):
            publish_display_data({"text/plain": text, "text/html": "".join(tables)})
        else:
            say(text)

    def _answers(self, report: Report, confs: list[str] | None, cap: int | None) -> tuple[list[str], list[str]]:
        # The replay's rooms come with the first question.
        from gpumem_magic.report.whatif.words import table_html, text

        live = live_line_for(self._shell)

        def progress(done: int, total: int) -> None:
            if live is not None and done < total:
                live.show(f"gpumem: replayed under {done} of {total} settings")

        try:
            answers = report.explored(confs, cap=cap, progress=progress).answers.values()
        finally:
            if live is not None:
                live.clear()
        return [f"gpumem: {text(answer)}" for answer in answers], [table_html(answer) for answer in answers]


def _unknown_here(confs: list[str] | None) -> list[str]:
    """Say what is wrong with settings in the installed torch, and right in the newest."""
    from gpumem_magic.allocator.conf import check
    from gpumem_magic.allocator.conf.environment import NEWEST, installed_torch

    version = installed_torch()
    if version is None or confs is None:
        return []
    lines = []
    for conf in confs:
        known = {problem.message for problem in check(conf, NEWEST).problems}
        lines += [problem.message for problem in check(conf, version).problems if problem.message not in known]
    return lines


def _bytes(gib: float | None) -> int | None:
    if gib is not None and not 0 < gib < 2**20:
        raise BadUsageError("--cap-gib must be a positive number of GiB")
    return None if gib is None else int(gib * _GIB)


def _target(name: str | None) -> Report:
    from gpumem_magic.report import Report

    if name is None and _reports.last() is None:
        raise BadUsageError("no cell was measured yet: put %%gpumem on its first line, or name a snapshot file")
    report = operand("last" if name is None else unquoted(name))
    if not isinstance(report, Report):
        raise SnapshotError(f"{name}: an exported report holds no events to replay; give the snapshot file itself")
    return report


def _only(report: Report, device: str | None) -> Report:
    """Keep one device of a report, when one is asked for."""
    if device is None:
        return report
    wanted = unquoted(device)
    kept = tuple(one for one in report.devices if wanted in {one.key, one.key.rpartition(":")[2]})
    if not kept:
        known = ", ".join(one.key for one in report.devices) or "none"
        raise BadUsageError(f"no device {wanted} in {report.title}; it has {known}")
    return replace(report, analysis=replace(report.analysis, devices=kept))


def register(shell: Any) -> None:
    """Make the line magic known to `shell`."""
    shell.register_magic_function(WhatIfMagics(shell).gpumem_whatif, "line", _NAME)


def unregister(shell: Any) -> None:
    """Take it back."""
    shell.magics_manager.magics["line"].pop(_NAME, None)
