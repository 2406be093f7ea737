"""The loops of a notebook's cells, and when each of their iterations began, by the line marks.

Two kinds of marks exist. ``sys.monitoring`` notes a loop's header before each iteration; marks that were written into
the cell's syntax tree note it only where the header does something. So an iteration begins where the header is left for
the body, and where no header is noted each time, where the body's first line comes again.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpumem_magic._parsing import parse_quietly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.recording.model import Marks

__all__ = [
    "Loop",
    "adds_to_itself",
    "ends_a_run",
    "find_loops",
    "iteration_starts",
    "lines_in_scope",
    "loops_on_one_line",
    "parse_cell",
]

_MOST_BLANKED = 50
_JOINS = ("cat(", "concat", "stack(", "pad(", "append(")


class Loop(NamedTuple):
    """A loop statement: lines of its header, of its body's first statement, and of its end, all included.

    `first_end` is the last line of a first statement whose own line comes again before it is over: a loop's, a
    ``with``'s; of others it is `first`. `together` is the number of statements that share the body's first line and run
    once in each iteration; 0 where that depends. `can_wait`: it is in a coroutine, which lets others run in between.
    """

    file: str
    scope: str
    header: int
    first: int
    first_end: int
    last: int
    together: int = 1
    can_wait: bool = False

    def holds(self, line: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Tell which lines belong to header or body."""
        inside: NDArray[np.bool_] = (line >= self.header) & (line <= self.last)
        return inside


def parse_cell(source: str) -> ast.Module | None:
    """Parse a cell's text as typed, its magics' lines left out and line numbers kept; None when it is no Python."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        text = line.lstrip()
        if text.startswith(("%", "!", "?")):
            lines[number] = line[: len(line) - len(text)] + "pass"
    for _ in range(_MOST_BLANKED):
        try:
            return parse_quietly("\n".join(lines), ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            # ``files = !ls`` and ``help?`` are lines of IPython's own.
            number = (error.lineno or 0) - 1
            if not 0 <= number < len(lines) or not any(sign in lines[number] for sign in "!%?"):
                return None
            text = lines[number].lstrip()
            lines[number] = lines[number][: len(lines[number]) - len(text)] + "pass"
        except (ValueError, RecursionError, MemoryError):
            return None
    return None


def find_loops(file: str, source: str) -> tuple[Loop, ...]:
    """Return the loop statements of a cell in the order of their headers. Loops on one line are left out."""
    tree = parse_cell(source)
    return () if tree is None else tuple(sorted(_loops(file, tree, "<module>"), key=lambda loop: loop.header))


def _loops(file: str, node: ast.AST, scope: str, *, can_wait: bool = False) -> Iterator[Loop]:
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        inner = child.name if is_scope else scope  # type: ignore[attr-defined]
        waits = isinstance(child, ast.AsyncFunctionDef) if is_scope else can_wait
        if isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
            first, end = child.body[0], child.body[-1].end_lineno
            if first.lineno > child.lineno and end is not None:
                again = isinstance(first, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith))
                first_end = (first.end_lineno if again else None) or first.lineno
                yield Loop(file, scope, child.lineno, first.lineno, first_end, end, _together(child.body), waits)
        yield from _loops(file, child, inner, can_wait=waits)


def _together(body: Sequence[ast.stmt], line: int | None = None) -> int:
    """Count the statements on a body's first line, where each of them runs once in each iteration; else 0."""
    line = body[0].lineno if line is None else line
    count = 0
    for statement in body:
        if statement.lineno != line:
            break
        within = 0
        if isinstance(statement, (ast.Try, ast.With, ast.AsyncWith)) and statement.body[0].lineno == line:
            within = _together(statement.body, line)
            if not within:
                return 0
            # The end of a ``with`` runs on its own line again.
            within += not isinstance(statement, ast.Try)
        elif isinstance(statement, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Match)):
            return 0
        count += 1 + within
    return count


def loops_on_one_line(line: str) -> bool:
    """Tell whether a line of code is a whole loop: ``for x in xs: kept.append(f(x))``. Its iterations leave no mark."""
    try:
        statements = parse_quietly(line.strip(), ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(statement, (ast.For, ast.AsyncFor, ast.While)) for statement in statements)


def adds_to_itself(line: str) -> bool:
    """Tell whether a line makes something anew out of itself: ``cache = torch.cat([cache, key])``.

    Of a line that cannot be read by itself, that is not known, and taken as so where it joins tensors.
    """
    try:
        statements = parse_quietly(line.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return any(word in line for word in _JOINS)
    for statement in statements:
        if isinstance(statement, ast.AugAssign):
            return True
        if isinstance(statement, ast.Assign):
            names = {ast.unparse(target) for target in statement.targets}
            if any(isinstance(node, ast.expr) and ast.unparse(node) in names for node in ast.walk(statement.value)):
                return True
        elif any(word in line for word in _JOINS):
            return True
    return False


def lines_in_scope(places: Sequence[tuple[tuple[str, int, str], ...]], file: str, scope: str) -> NDArray[np.int32]:
    """Return, per place, the line of the innermost frame of one function; 0 where it was not running."""
    lines = np.zeros(len(places) + 1, np.int32)  # one more: place -1 is nowhere
    for index, place in enumerate(places):
        lines[index] = next((line for name, line, function in place if name == file and function == scope), 0)
    return lines


def iteration_starts(marks: Marks, loop: Loop, lines: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return when each iteration began, Unix microseconds, in order.

    Parameters
    ----------
    marks
        Line marks.
    loop
        A loop.
    lines
        What `lines_in_scope` returns for it.
    """
    now, time_us = _of_one_thread(marks, lines)
    in_header = (now >= loop.header) & (now < loop.first)
    after_header = np.append(False, in_header)[:-1]
    from_header = (now >= loop.first) & (now <= loop.last) & after_header
    if marks.has_functions and np.count_nonzero(from_header) >= 2:
        begins = from_header
    else:
        before = np.append(np.int32(0), now)[:-1]
        begins = (now == loop.first) & ~((before > loop.first) & (before <= loop.first_end))
        if marks.has_functions:
            # There a line is noted again when a function that it called returns.
            begins &= before != loop.first
        elif loop.together > 1:
            # Each statement of the line is noted.
            begins &= (np.cumsum(begins) - 1) % loop.together == 0
        elif not loop.together and loop.last > loop.first:
            # How many of them are is not known, but another line comes after them.
            begins &= before != loop.first
    # The header fetches the batch, which belongs to the iteration that gets it.
    is_entered = in_header & ~after_header
    at = np.flatnonzero(begins)
    fetched = after_header[at]
    previous = at[fetched] - 1
    if not is_entered[previous].all():  # a header of several lines, each of them noted
        entered = np.flatnonzero(is_entered)
        previous = entered[np.searchsorted(entered, previous, "right") - 1]
    at[fetched] = previous
    starts: NDArray[np.int64] = time_us[at]
    return starts


def _of_one_thread(marks: Marks, lines: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return a function's lines and their times on the thread that ran most of it."""
    now = lines[marks.place]
    if len(now) and marks.thread.min() == marks.thread.max():  # sorting 300,000 threads tells no more
        return now, marks.time_us
    threads, counts = np.unique(marks.thread[now > 0], return_counts=True)
    own = marks.thread == threads[int(np.argmax(counts))] if len(threads) else np.zeros(len(now), bool)
    return now[own], marks.time_us[own]


def ends_a_run(marks: Marks, loop: Loop, lines: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which iterations were the last before the loop was left: what these keep grows with its runs, not with it.

    Parameters
    ----------
    marks, loop, lines
        As for `iteration_starts`.
    starts
        What it returned.
    """
    now, time_us = _of_one_thread(marks, lines)
    if loop.can_wait:
        # What runs while it waits does not leave it.
        here = now > 0
        now, time_us = now[here], time_us[here]
    inside = loop.holds(now)
    left = time_us[1:][inside[:-1] & ~inside[1:]]
    run = np.searchsorted(left, starts, "right")
    last: NDArray[np.bool_] = np.append(run[1:] != run[:-1], True)[: len(starts)]
    return last
