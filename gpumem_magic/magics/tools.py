"""Line magics beside ``%%gpumem``: who holds memory, give it back, check the allocator's settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gpumem_magic._errors import BadUsageError
from gpumem_magic._format import say
from gpumem_magic.magics.arguments import options_of, unquoted
from gpumem_magic.magics.cells import running_number
from gpumem_magic.magics.settings_watch import SettingsWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.magics.auto import Keeper

__all__ = ["as_magic", "register", "unregister"]


_Function = TypeVar("_Function", bound="Callable[..., Any]")


def as_magic(name: str, *arguments: Any, expands: bool = False) -> Callable[[_Function], _Function]:
    """Give a magic its options and help.

    ``{x}`` and ``$x`` in its line are left alone, unless it `expands` them: worth it where a line names a file.
    """

    def decorate(function: _Function) -> _Function:
        decorators: list[Any] = [*reversed(arguments), magic_arguments(name)]
        if not expands:
            decorators.append(no_var_expand)
        for decorator in decorators:
            function = decorator(function)
        return function

    return decorate


class ToolMagics:
    """The line magics of one shell, whose ledger knows which cell made what."""

    def __init__(self, shell: Any, keeper: Keeper) -> None:
        self._shell = shell
        self._keeper = keeper
        self.watch = SettingsWatch()

    def after_cell(self, _result: Any) -> None:
        """Note which cell set the allocator's variables."""
        self.watch.after_cell(running_number(self._shell))

    @as_magic(
        "gpumem_who",
        argument(
            "--device",
            metavar="DEVICE",
            help="only this one: 1, cuda:1 or cpu. Default: all.",
        ),
        argument("--top", type=int, default=20, metavar="N", help="rows to show. Default: 20."),
        argument("--budget", type=float, default=2.0, metavar="SECONDS", help="look no longer than this. Default: 2."),
    )
    def gpumem_who(self, line: str) -> None:
        """Show who holds tensor memory: every live storage, and the path by which the notebook reaches it.

        With the cell and line that made it, where a measured cell did and that is certain.
        Variables, Out, the last error's frames, generators, closures, hooks, caches, autograd graphs and reference
        cycles are told apart. Nothing is freed; %gpumem_free does that.
        """
        from gpumem_magic.holders import describe_scan, who_holds

        found = options_of(self.gpumem_who, line, "%gpumem_who")
        scan = who_holds(self._shell, budget=max(0.0, found.budget))
        try:
            text = describe_scan(
                scan,
                device=None if found.device is None else unquoted(found.device),
                top=max(1, found.top),
                origins=self._keeper.origins(scan),
                unowned=self._keeper.unowned(scan),
            )
        except BadUsageError as error:
            raise UsageError(f"%gpumem_who: {error}") from None
        if "\n" in text and not self._keeper.entries:
            text += "\n  which cell made what is not known: %gpumem_auto on measures every cell from then on"
        say(text)

    @as_magic(
        "gpumem_free",
        argument("--out", action="store_true", help="also forget Out and _, which may be wanted."),
        argument("--vars", nargs="+", default=(), metavar="NAME", help="also delete these variables."),
        argument("--compiled", action="store_true", help="also forget what torch.compile made; it is then made again."),
    )
    def gpumem_free(self, line: str) -> None:
        """Give back what the notebook keeps by accident, and print what each step freed, measured.

        Reference cycles, the last error in all its holders, the debugger and torch's free cache; nothing that a
        variable still names. Devices without a context of this process are not touched.
        """
        from gpumem_magic.holders.release import kept_by_outputs, release, release_text

        found = options_of(self.gpumem_free, line, "%gpumem_free")
        try:
            steps = release(self._shell, outputs=found.out, variables=found.vars, compiled=found.compiled)
        except BadUsageError as error:
            raise UsageError(f"%gpumem_free: {error}") from None
        try:
            left = {} if found.out else kept_by_outputs(self._shell)
        except Exception:  # noqa: BLE001 - any object may be hostile; what was freed is said all the same
            left = {}
        say(release_text(steps, left))

    @as_magic(
        "gpumem_conf",
        argument("string", nargs="*", metavar="STRING", help="settings to check; without it, the environment's."),
        argument("--torch", metavar="VERSION", help="Release that will read them (default: the installed one)."),
        argument("--options", action="store_true", help="List every option: values, default, releases, meaning."),
    )
    def gpumem_conf(self, line: str) -> None:
        """Check allocator settings (PYTORCH_CUDA_ALLOC_CONF): what is wrong, what torch does with it, what to write.

        Also says which settings torch really uses in this kernel, whether the environment's came too late and by which
        cell, what can still be changed without a restart, and what counts in the processes that this kernel started.
        CUDA is never initialised to find out.
        """
        from gpumem_magic.allocator.conf.below import describe_below
        from gpumem_magic.allocator.conf.environment import NEWEST, TorchVersion, installed_torch
        from gpumem_magic.allocator.conf.in_session import describe_session
        from gpumem_magic.allocator.conf.table import describe_options
        from gpumem_magic.allocator.conf.text import describe_conf
        from gpumem_magic.recording.children import python_children

        found = options_of(self.gpumem_conf, line, "%gpumem_conf")
        try:
            given = TorchVersion.parse(found.torch) if found.torch else None
        except BadUsageError as error:
            raise UsageError(f"%gpumem_conf: {error}") from None
        version = installed_torch() or NEWEST
        if found.options:
            say(describe_options(given or version))
            return
        string = unquoted(" ".join(found.string)) if found.string else None
        text, _ = describe_conf(string, given, os.environ)
        facts = self.watch.facts(running_number(self._shell), version)
        lines = [*describe_session(facts), *describe_below(python_children(), facts)]
        say("\n".join([text, *lines] if text else lines))


_watching: dict[int, Callable[[Any], None]] = {}
_NAMES = ("gpumem_who", "gpumem_free", "gpumem_conf")


def register(shell: Any, keeper: Keeper) -> None:
    """Make the line magics known to `shell`."""
    magics = ToolMagics(shell, keeper)
    for name in _NAMES:
        function: Callable[[str], None] = getattr(magics, name)
        shell.register_magic_function(function, "line", name)
    shell.events.register("post_run_cell", magics.after_cell)
    _watching[id(shell)] = magics.after_cell


def unregister(shell: Any) -> None:
    """Take them back."""
    for name in _NAMES:
        shell.magics_manager.magics["line"].pop(name, None)
    after_cell = _watching.pop(id(shell), None)
    if after_cell is not None:
        shell.events.unregister("post_run_cell", after_cell)
