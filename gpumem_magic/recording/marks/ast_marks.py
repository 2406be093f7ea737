"""Line marks through the cell's syntax tree (Python 3.10 and 3.11, which have no ``sys.monitoring``).

One call is put before each statement outside function and class bodies, with the statement's own location, so that
tracebacks, line numbers and the displayed last expression stay as they were. Code inside functions gets none: what
happens there is known by the line that called it.

What it costs decides its form. A call is 0.2 µs, too much for a loop of millions; so each loop has a switch,

    if __gpumem_1_switch_4__: __gpumem_1_mark__(17)

which is turned off when its lines run too often, together with those of the loops inside it; the place then is "lines 3
to 7", the whole loop. The switch is declared global, because 3.11 specialises global loads (two checks in an iteration
of 45 ns are 6 to 13 %; undeclared ones 75 to 120 %; 3.10 has no such thing: 33 to 50 %). Loops of plain arithmetic,
without a call, attribute, subscript or ``@`` in them, get one mark for all their lines, and so cost nothing. The
names live in ``builtins`` while the cell runs, where no listing of the user's namespace shows them.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import sys
import threading
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING

from gpumem_magic.recording.marks.pace import Pace
from gpumem_magic.recording.marks.store import BLOCK, NOWHERE, UNKNOWN, Spot, ThreadLog, build_marks
from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumem_magic.recording.model import Marks

__all__ = ["AstMarks"]

_LOOK_SECONDS = 0.05
_ASK = -1  # instead of a number: the slow path decides
_sessions = itertools.count(1)

# What a loop of plain arithmetic consists of. A tensor may still hide behind a name, so it gets a (coarser) place too.
_LIGHT = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Expr,
    ast.If,
    ast.For,
    ast.While,
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.Name,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.NamedExpr,
    ast.Tuple,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


class _Region:
    """A part of the code that is switched on and off as one: a loop, or a whole unit of compilation.

    Attributes
    ----------
    entry
        Number of the mark before the loop; None for a unit.
    whole
        Number of the mark that stands for all lines of the region.
    """

    __slots__ = ("entry", "inner", "on", "parent", "switch", "whole")

    def __init__(self, switch: str, parent: _Region | None) -> None:
        self.switch = switch
        self.parent = parent
        self.inner: list[_Region] = []
        self.entry: int | None = None
        self.whole = UNKNOWN
        self.on = True
        if parent is not None:
            parent.inner.append(self)

    def outwards(self) -> list[_Region]:
        """Return this region and those around it."""
        regions: list[_Region] = [self]
        while regions[-1].parent is not None:
            regions.append(regions[-1].parent)
        return regions


class _Unit:
    """One syntax tree; its file and function name are known once its code runs.

    `caller` is the number of the mark under which it was compiled: a magic's line, whose body it is.
    """

    __slots__ = ("caller", "file", "name")

    def __init__(self, caller: int = NOWHERE) -> None:
        self.caller = caller
        self.file = ""
        self.name = "<module>"


class _Statement:
    """What one mark stands for."""

    __slots__ = ("first", "last", "region", "unit")

    def __init__(self, unit: _Unit, region: _Region, first: int, last: int) -> None:
        self.unit = unit
        self.region = region
        self.first = first
        self.last = last


class _Table:
    """All statements, by number; the first two numbers are `NOWHERE` and `UNKNOWN`."""

    def __init__(self) -> None:
        self.statements: list[_Statement | None] = [None, None]

    def add(self, statement: _Statement) -> int:
        self.statements.append(statement)
        return len(self.statements) - 1

    def path(self, number: int) -> list[Spot]:
        """Return the place of a mark as a stack, outermost first: its line, below those of the magics around it."""
        lines: list[Spot] = []
        found = self.statements[number]
        while found is not None:
            lines.append(Spot(number, NOWHERE, (found.unit.file, found.unit.name), (found.first, found.last)))
            number = found.unit.caller
            found = self.statements[number]
        return lines[::-1]


def _is_light(loop: ast.For | ast.While) -> bool:
    body: list[ast.AST] = [*loop.body, *loop.orelse]
    if isinstance(loop, ast.While):
        body.append(loop.test)
    else:
        body.append(loop.target)
    nodes = (node for part in body for node in ast.walk(part))
    return all(isinstance(node, _LIGHT) and not isinstance(node, ast.MatMult) for node in nodes)


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(statement: ast.stmt) -> int:
    """Return the last line of what a statement does itself, its bodies left out."""
    if not isinstance(getattr(statement, "body", None), list) and not isinstance(statement, ast.Match):
        return statement.end_lineno or statement.lineno
    last = statement.lineno
    for name in ("test", "target", "iter", "subject", "items", "args", "bases", "keywords", "returns"):
        part = getattr(statement, name, None)
        for node in part if isinstance(part, list) else [part] if part is not None else []:
            ends = (getattr(inner, "end_lineno", None) or 0 for inner in ast.walk(node))
            last = max(last, *ends)
    return last


def _leading(body: Sequence[ast.stmt]) -> int:
    """Return how many statements must stay first: a docstring and imports from ``__future__``."""
    count = 0
    for index, statement in enumerate(body):
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not future and not (text and index == 0):
            break
        count += 1
    return count


class _Transformer(ast.NodeTransformer):
    """Puts the marks into a module; never raises, but returns the tree untouched and tells why."""

    def __init__(self, session: AstMarks) -> None:
        self._session = session

    def visit(self, node: ast.AST) -> ast.AST:
        """Return `node` with marks when it is a module, else as it is."""
        if not isinstance(node, ast.Module) or not node.body or not self._session.running:
            return node
        try:
            return _Marker(self._session).module(node)
        except Exception as error:  # noqa: BLE001 - becomes a note; the cell must run
            self._session.fail(error)
            return node


class _Marker:
    """Works on one tree. The original nodes are kept until all of the new ones exist."""

    def __init__(self, session: AstMarks) -> None:
        self._session = session
        self._unit = _Unit(session.newest())

    def module(self, module: ast.Module) -> ast.Module:
        first = _first_line(module.body[0])
        last = max(getattr(statement, "end_lineno", None) or statement.lineno for statement in module.body)
        region = self._session.region(None)
        region.whole = self._number(region, first, last)
        lead = _leading(module.body)
        body = [*module.body[:lead], *self._body(module.body[lead:], region, None)]
        return ast.Module(body=body, type_ignores=module.type_ignores)

    def _number(self, region: _Region, first: int, last: int) -> int:
        return self._session.number(_Statement(self._unit, region, first, last))

    def _mark(self, region: _Region, number: int, at: ast.stmt) -> ast.stmt:
        call = ast.Call(ast.Name(self._session.function, ast.Load()), [ast.Constant(number)], [])
        mark = ast.If(ast.Name(region.switch, ast.Load()), [ast.Expr(call)], [])
        for node in ast.walk(mark):
            if isinstance(node, (ast.expr, ast.stmt)):
                ast.copy_location(node, at)
                # One line long, so that no traceback underlines more than a line of it.
                node.end_lineno, node.end_col_offset = node.lineno, node.col_offset
        return mark

    def _body(self, body: Sequence[ast.stmt], region: _Region, header: int | None) -> list[ast.stmt]:
        """Return statements with a mark before each; `header` is the mark of the loop that ``continue`` goes to."""
        result: list[ast.stmt] = []
        for statement in body:
            line = _first_line(statement)
            if isinstance(statement, ast.Continue) and header is not None:
                number = header
            elif isinstance(statement, (ast.For, ast.While)) and _is_light(statement):
                number = self._number(region, line, statement.end_lineno or line)
                result += [self._mark(region, number, statement), statement]
                continue
            else:
                number = self._number(region, line, _last_line(statement))
            result += [self._mark(region, number, statement), self._statement(statement, region, number, header)]
        return result

    def _statement(self, old: ast.stmt, region: _Region, number: int, header: int | None) -> ast.stmt:
        """Return a statement with marks in its bodies."""
        new = ast.copy_location(type(old)(**dict(ast.iter_fields(old))), old)
        if isinstance(new, (ast.For, ast.AsyncFor, ast.While)):
            self._loop(new, region, number, header)
        elif isinstance(new, (ast.With, ast.AsyncWith)):
            # The managers' ends run on the line of the ``with``.
            new.body = [*self._body(new.body, region, header), self._mark(region, number, old)]
        elif isinstance(new, ast.If):
            new.body = self._body(new.body, region, header)
            new.orelse = self._body(new.orelse, region, header)
        elif isinstance(new, ast.Match):
            new.cases = [
                ast.match_case(case.pattern, case.guard, self._body(case.body, region, header)) for case in new.cases
            ]
        elif isinstance(new, ast.Try) or type(new).__name__ == "TryStar":
            self._try(new, region, header)  # type: ignore[arg-type]
        return new

    def _loop(self, new: ast.For | ast.AsyncFor | ast.While, region: _Region, number: int, header: int | None) -> None:
        inner = self._session.region(region)
        inner.entry = number
        inner.whole = self._number(inner, new.lineno, new.end_lineno or new.lineno)
        again = self._number(inner, new.lineno, _last_line(new))
        body = self._body(new.body, inner, again)
        # The header runs once more after each round, but ``next`` of a range does nothing worth a mark.
        if not (isinstance(new, ast.For) and _is_range(new.iter)):
            body.append(self._mark(inner, again, new))
        declaration = ast.copy_location(ast.Global([inner.switch]), new.body[0])
        new.orelse = self._body(new.orelse, region, header)
        new.body = [declaration, *body]

    def _try(self, new: ast.Try, region: _Region, header: int | None) -> None:
        new.body = self._body(new.body, region, header)
        new.orelse = self._body(new.orelse, region, header)
        new.finalbody = self._body(new.finalbody, region, header)
        new.handlers = [
            ast.copy_location(
                ast.ExceptHandler(handler.type, handler.name, self._body(handler.body, region, header)), handler
            )
            for handler in new.handlers
        ]


class AstMarks:
    """See `gpumem_magic.recording.marks.start`. `stop` comes after the cell's code has ended."""

    def __init__(self, *, progress: Callable[[], int] | None, max_marks: int) -> None:
        self._prefix = f"__gpumem_{next(_sessions)}_"
        self.function = f"{self._prefix}mark__"
        self.running = True
        self._table = _Table()
        self._numbers: list[int] = [NOWHERE, UNKNOWN]
        self._regions: list[_Region] = []
        self._logs: dict[int, ThreadLog] = {}
        self._max_marks = max_marks
        self._notes: list[Note] = []
        self._looks: threading.Thread | None = None
        self._over = threading.Event()
        self._marks: Marks | None = None
        self._pace = Pace(time_ns(), progress)
        self.transformer: ast.NodeTransformer = _Transformer(self)
        setattr(builtins, self.function, self._mark)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why lines are missing or incomplete."""
        return tuple(self._notes)

    # For the transformer

    def region(self, parent: _Region | None) -> _Region:
        """Make a region below `parent`, switched on."""
        region = _Region(f"{self._prefix}switch_{len(self._regions)}__", parent)
        self._regions.append(region)
        setattr(builtins, region.switch, True)
        return region

    def number(self, statement: _Statement) -> int:
        """Enter a statement; its first mark asks for the file name."""
        self._numbers.append(_ASK)
        return self._table.add(statement)

    def newest(self) -> int:
        """Return the number of this thread's newest mark."""
        log = self._logs.get(get_ident())
        return NOWHERE if log is None else log.newest

    def fail(self, error: Exception) -> None:
        """Give up marking; the cell goes on."""
        text = f"line marks ended early ({type(error).__name__}: {error}); the cell itself is not affected"
        self._notes.append(Note("warning", " ".join(text.split())))
        self._over.set()
        for region in self._regions:
            setattr(builtins, region.switch, False)

    # Marks

    def _mark(self, number: int) -> None:
        try:
            found = self._numbers[number]
            if found >= 0:
                log = self._logs[get_ident()]
                count = log.count
                log.times[count] = time_ns()
                log.spots[count] = found
                # Last, so that an interrupt in between loses a mark and mixes up none.
                log.count = count + 1
                return
        except LookupError:  # a new thread, or the block is full
            pass
        try:
            self._ask(number)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self.fail(error)

    def _ask(self, number: int) -> None:
        statement = self._table.statements[number]
        if statement is None:
            return
        if not statement.unit.file:
            code = sys._getframe(2).f_code
            statement.unit.file, statement.unit.name = code.co_filename, code.co_name
        found = self._numbers[number]
        if found == _ASK:
            found = number
            quiet = next((region for region in self._regions if region.entry == number and not region.on), None)
            if quiet is not None and not self._pace.spend_wake(time_ns()):
                found = quiet.whole
            elif quiet is not None:
                self._switch(quiet, on=True)
            if quiet is None or quiet.on:
                self._numbers[number] = found
        log = self._logs.get(get_ident()) or self._logs.setdefault(get_ident(), ThreadLog(get_ident()))
        if log.count >= BLOCK:
            is_too_often = not self._pace.spend(BLOCK, time_ns())
            # The older half may still belong to what came before the loop.
            recent = set(log.spots[BLOCK // 2 :]) if is_too_often else set()
            log.flush(max(4 * BLOCK, self._max_marks // len(self._logs)))
            if is_too_often:
                found = self._go_quiet(statement.region, recent)
        log.times[log.count] = time_ns()
        log.spots[log.count] = found
        log.count += 1

    def _go_quiet(self, current: _Region, recent: set[int]) -> int:
        """Switch off the smallest region that holds all `recent` marks; return the number that stands for it."""
        around = current.outwards()
        for number in recent:
            statement = self._table.statements[number]
            if statement is not None:
                outer = statement.region.outwards()
                # Another unit's marks have nothing in common with this one's.
                around = [region for region in around if region in outer] or around
        self._switch(around[0], on=False)
        if self._looks is None:
            self._looks = threading.Thread(target=self._look, name="gpumem_magic line marks", daemon=True)
            self._looks.start()
        return around[0].whole

    def _switch(self, region: _Region, *, on: bool) -> None:
        region.on = on
        setattr(builtins, region.switch, on)
        if region.entry is not None:
            self._numbers[region.entry] = _ASK
        for inner in region.inner:
            self._switch(inner, on=on)

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                quiet = [region for region in self._regions if not region.on]
                if quiet and self._pace.allocated_since_check():
                    self._pace.spend_wake(time_ns())  # paid or not, a look is due
                    for region in quiet:
                        self._switch(region, on=True)
            except Exception as error:  # noqa: BLE001 - becomes a note
                self.fail(error)

    def stop(self) -> Marks | None:
        """Stop watching and return the marks."""
        if not self.running:
            return self._marks
        self.running = False
        self._over.set()
        for name in (self.function, *(region.switch for region in self._regions)):
            if hasattr(builtins, name):
                delattr(builtins, name)
        try:
            # Another thread may just have made it, and will start it: it then ends at once.
            if self._looks is not None and self._looks.is_alive():
                self._looks.join(1)
            if self._logs:
                self._marks = build_marks(self._logs.values(), self._table, has_functions=False)
            elif not self._notes:
                text = "lines are unknown: on Python before 3.12 they are known for cells only; use --stacks python"
                self._notes.append(Note("info", text))
        except Exception as error:  # noqa: BLE001 - becomes a note
            self.fail(error)
        return self._marks
