"""``%%gpumem`` and ``%gpumem`` as IPython knows them: help, completion, nested use, and what to do when misused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core import magic as ipython_magic
from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments

from gpumem_magic.magics.arguments import read_request, split_statement
from gpumem_magic.magics.auto import Keeper
from gpumem_magic.magics.code import Body
from gpumem_magic.magics.session import Session
from gpumem_magic.recording.devices import check_device
from gpumem_magic.recording.options import STACK_MODES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.magics.arguments import Request

__all__ = ["GpumemMagics"]

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_FIRST_LINE = (
    "%%gpumem must be the first line of its cell (only comments and blank lines may stand above it): "
    "move it there, or measure one statement with %gpumem STATEMENT"
)


_ARGUMENTS: tuple[Any, ...] = (
    argument(
        "--device",
        metavar="DEVICE",
        help="what to show: a number or torch's notation (1, cuda:1); 'cpu' for the memory of CPU tensors. "
        "Without it: every GPU that was used, or CPU tensors where there is no GPU.",
    ),
    argument(
        "--stacks",
        choices=STACK_MODES,
        default="lines",
        help="who allocated: 'lines' of the notebook (nearly free), torch's 'python' stacks as well (some 10%% slower "
        "where Python is the bottleneck), 'cpp' frames on top (slow to read), or 'none'. Default: lines.",
    ),
    argument(
        "--max-entries",
        type=int,
        metavar="N",
        help="most events to keep: the newest of a GPU, the first ones of CPU tensors. Default: 1,000,000, "
        "or 200,000 with stacks, or 500,000 of CPU tensors.",
    ),
    argument("--label", metavar="NAME", help="what to call this cell in the report."),
    argument("--export", metavar="FILE.html", help="also write the report as one self-contained HTML file."),
    argument(
        "--whatif",
        action="store_true",
        help="with --export: the file also says what other allocator settings would have reserved.",
    ),
    argument(
        "--assert-no-leak",
        nargs="?",
        const="0",
        metavar="BYTES",
        help="fail the cell when more than BYTES (0; 64KiB works too) grew with the iterations of a loop, or with runs "
        "of this cell, at least three of them, and are still there.",
    ),
    argument(
        "--scratch",
        action="store_true",
        help="remove the names that the cell created when it ends, its result and its error too, give their memory "
        "back, and say what could not be freed. Names that were there before stay as the cell bound them.",
    ),
    argument("--keep", nargs="+", default=(), metavar="NAME", help="names that --scratch leaves; _ is the result."),
    argument("--top", type=int, default=5, metavar="N", help="rows of the text report's tables. Default: 5."),
    argument("--quiet", action="store_true", help="show nothing; the report is in gpumem_magic.last."),
)


def _as_magic(function: _Function) -> _Function:
    """Give a magic its options and help, leave `{x}` and `$x` in its line alone, let a trailing ';' silence it."""
    decorators: list[Any] = [
        *reversed(_ARGUMENTS),
        magic_arguments("gpumem"),
        ipython_magic.needs_local_scope,
        ipython_magic.no_var_expand,
    ]
    # IPython 7 has no such thing: there a ';' does not silence any magic's value.
    silenced = getattr(ipython_magic, "output_can_be_silenced", None)
    if silenced is not None:
        decorators.append(silenced)
    for decorate in decorators:
        function = decorate(function)
    return function


class GpumemMagics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self.keeper = Keeper(shell)
        self.session = Session(shell, self.read, self.keeper)

    def read(self, arguments: str) -> Request:
        """Read a magic line's options; raises ``UsageError``."""
        return read_request(type(self).gpumem, arguments, check_device)

    @_as_magic
    def gpumem(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Show where the GPU memory of this cell went.

        As the first line of a cell, the cell runs exactly as it would without it, and a report follows as its last
        output: the peak and the line that reached it, what stayed, and what there was before. The same report is
        ``gpumem_magic.last``, also under %%capture, which captures what is shown. Where the cell uses no torch, the
        report is of this process and those that it started, by sampling.

        %gpumem STATEMENT measures one statement:

            %gpumem --device 0 y = model(x)
        """
        __tracebackhide__ = True
        if cell is None:
            return self._statement(line, local_ns)
        request = self.read(line)
        return self.session.run_nested(request, Body.of(cell, self.session.running_sources()))

    def _statement(self, line: str, local_ns: dict[str, Any] | None) -> Any:
        __tracebackhide__ = True
        options, statement = split_statement(line)
        request = read_request(type(self).gpumem, options, check_device, "%gpumem")
        if not statement or statement.startswith("#"):
            raise UsageError(
                "%gpumem measures one statement: %gpumem y = model(x). "
                "To measure a whole cell, make %%gpumem (two percent signs) its first line"
            )
        return self.session.run_nested(request, Body(statement, statement, 0, is_statement=True), local_ns)

    def misplaced(self, line: str) -> None:  # noqa: ARG002 - the magic's signature
        """Say where ``%%gpumem`` belongs: IPython calls this when it stands below other code."""
        raise UsageError(_FIRST_LINE)
