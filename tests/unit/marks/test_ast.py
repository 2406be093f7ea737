"""Lines through the syntax tree: which line is named, and that the cell behaves as without it. Runs on every Python."""

# ruff: noqa: E501 - programs on one line each
from __future__ import annotations

import ast
import builtins
import contextlib
import io
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from marked_cells import Enough, Joined  # type: ignore[import-not-found]
from random_programs import program  # type: ignore[import-not-found]

from gpumem_magic.recording.marks.ast_marks import AstMarks

if TYPE_CHECKING:
    from collections.abc import Callable

    from marked_cells import Notebook


def ast_marks(progress: Callable[[], int] | None = None, max_marks: int = 1_000_000) -> AstMarks:
    return AstMarks(progress=progress, max_marks=max_marks)


def measured(notebook: Notebook, source: str, **options: Any) -> Joined:
    return notebook.measured(source, marks=ast_marks(), **options)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("floods", [False, True])
def test_random_programs_are_never_given_a_wrong_line(notebook: Notebook, seed: int, floods: bool) -> None:  # noqa: FBT001
    earlier, cell = program(seed, floods=floods)
    notebook.run(earlier)
    first = len(notebook.truth.time_us)
    notebook.truth.limit = first + 300
    marks = ast_marks(notebook.truth.count if seed % 2 else None)
    with contextlib.suppress(Exception, Enough):  # programs may well end in one
        notebook.run(cell, marks)
    columns = marks.stop()
    assert columns is not None
    joined = Joined(columns, notebook.truth, first, ())
    wrong = [(given, true) for given, true in joined.wrong() if not known_gap(cell, true)]
    assert wrong == []
    assert all(joined.given(index) for index in range(len(joined)))


def known_gap(cell: str, true: object) -> bool:
    """Return whether an allocation is in a context manager that an exception or a ``break`` leaves: no mark fires."""
    assert isinstance(true, list)
    return "with " in cell.splitlines()[true[0][1] - 1]


def test_each_kind_of_statement(notebook: Notebook) -> None:
    source = """\
if alloc():
    alloc()
elif alloc():
    pass
for i in (alloc() + n for n in range(2)):
    alloc()
    if i < 2:
        continue
    alloc()
else:
    alloc()
with manager():
    alloc()
while alloc() < 11 + start:
    x = 1
try:
    alloc()
    raise ValueError
except ValueError:
    alloc()
finally:
    alloc()
match alloc():
    case int():
        alloc()
def f(a=alloc()):
    return alloc()
@f.__class__.__call__ if False else (lambda f: (alloc(), f)[1])
def g():
    pass
class C:
    x = alloc()
f()
"""
    notebook.run(
        "import contextlib\n@contextlib.contextmanager\ndef manager():\n    alloc()\n    yield\n    alloc()\nstart = 0"
    )
    joined = measured(notebook, source)
    assert joined.wrong() == []
    assert joined.innermost()[:5] == [1, 2, 5, 6, 9]


def test_a_loop_of_arithmetic_is_one_place_and_costs_two_marks(notebook: Notebook) -> None:
    joined = measured(notebook, "x = 0\nfor i in range(1000):\n    x += i\nalloc()")
    assert len(joined.marks.place) == 3
    assert joined.marks.last_lines[1] == (3,)
    assert joined.innermost() == [4]


def test_a_hot_loop_is_switched_off_and_what_follows_is_exact(notebook: Notebook) -> None:
    joined = measured(
        notebook,
        "for epoch in range(2):\n    for i in range(100_000):\n        x = abs(i)\n        y = alloc() if i == 90_000 else 0\n    alloc()\nalloc()",
    )
    assert joined.innermost() == [(2, 4), 5, (2, 4), 5, 6]
    assert len(joined.marks.place) < 60_000


PROGRAMS = {
    "docstring": '"""Text."""\nx = __doc__',
    "future": '"""Text."""\nfrom __future__ import annotations\ndef f(a: nonsense) -> nothing: pass\nprint(f.__annotations__, __doc__)',
    "scopes": "x = 1\ndef f():\n    global x\n    x += 1\n    y = 0\n    def g():\n        nonlocal y\n        y += 1\n    g()\n    return y\nprint(f(), x)",
    "global at the top": "global z\nz = 3\nfor i in range(2):\n    global w\n    w = i\nprint(z, w)",
    "loops": "for i in range(5):\n    if i == 1: continue\n    if i == 3: break\n    print(i)\nelse:\n    print('no')\nwhile True:\n    break\nelse:\n    print('no')\nfor i in []: pass\nelse: print('else')",
    "classes": "class A:\n    'Doc.'\n    x: int = 1\n    def f(self): return super().__init__\nprint(A.__doc__, A.__annotations__, A.f.__qualname__)",
    "annotations": "x: int = 1\ny: str\nprint(__annotations__)",
    "star": "from math import *\nprint(floor(pi))\ndel pi",
    "try": "def f():\n    try:\n        return 1\n    finally:\n        print('f')\nprint(f())\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(repr(e))\nelse:\n    print('no')\nfinally:\n    print('end')\nprint('e' in globals())",
    "match": "match [1, {'a': 2}]:\n    case [1, {'a': x}] if x > 1:\n        print(x)\n    case _:\n        print('no')",
    "semicolons": "a = 1; b = 2; print(a, b);",
    "one line": "for i in range(2): print(i); x = i\nif x: print('x')",
    "namespace": "before = sorted(globals())\nx = 1\nprint([n for n in dir() if 'gpumem' in n], [n for n in before if 'gpumem' in n])",
    "error": "def f():\n    return 1 / 0\nx = 1\nfor i in range(3):\n    if i == 1:\n        f()",
    "error in header": "x = 0\nwhile 1 / (2 - x):\n    x += 1",
    "error in a with": "import contextlib\nwith contextlib.suppress(KeyError):\n    {}[1]\nwith contextlib.suppress(KeyError):\n    y = (\n        1 /\n        0)",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('x') from e",
    "assert": "x = 1\nassert x == 2, f'{x}'",
    "lambda": "fs = [lambda n=n: n for n in range(3)]\nprint([f() for f in fs], {k: v for k, v in zip('ab', 'cd')})",
    "walrus": "while (n := len(globals().get('seen', []))) < 3:\n    seen = [0] * (n + 1)\nprint(n)",
    "deep": "\n".join("    " * n + f"for i{n} in range(2):" for n in range(15))
    + "\n"
    + "    " * 15
    + "pass\nprint('deep')",
}


def outcome(source: str, marks: AstMarks | None, *, whole: bool) -> tuple[str, dict[str, str], list[object]]:
    """Run a cell and return what it printed, its namespace, and its traceback as (file, line, column, function)."""
    tree: Any = ast.parse(source)
    if marks is not None:
        tree = ast.fix_missing_locations(marks.transformer.visit(tree))
    units = [tree] if whole else [ast.Module(body=[statement], type_ignores=[]) for statement in tree.body]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    out = io.StringIO()
    trace: list[object] = []
    with contextlib.redirect_stdout(out):
        try:
            for unit in units:
                exec(compile(unit, "<cell 1>", "exec"), namespace)  # noqa: S102 - the test's own code
        except Exception as error:  # noqa: BLE001 - what the cell raises is compared
            found = traceback.TracebackException.from_exception(error)
            chain: Any = found
            while chain is not None:
                trace.append(str(chain))
                trace += [
                    (f.filename, f.lineno, getattr(f, "colno", 0), getattr(f, "end_colno", 0), f.name)
                    for f in chain.stack
                    if f.filename == "<cell 1>"
                ]
                chain = chain.__cause__ or chain.__context__
    namespace.pop("__builtins__")
    return out.getvalue(), {name: type(value).__name__ for name, value in namespace.items()}, trace


@pytest.mark.parametrize("whole", [False, True], ids=["statements", "module"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cell_behaves_as_without_marks(name: str, whole: bool) -> None:  # noqa: FBT001
    source = PROGRAMS[name]
    if not whole and "__future__" in source:
        pytest.skip("a statement by itself has no future")
    marks = ast_marks()
    plain = outcome(source, None, whole=whole)
    ours = outcome(source, marks, whole=whole)
    assert marks.stop() is not None or name == "future"
    assert marks.notes == ()
    assert ours == plain


def test_the_body_of_timeit_stays_a_function(notebook: Notebook) -> None:
    marks = ast_marks()
    body: Any = marks.transformer.visit(ast.parse("for i in range(3):\n    x = abs(i)"))
    template: Any = ast.parse("def inner(n):\n    for _ in range(n):\n        pass\n    return locals()")
    template.body[0].body[0].body = body.body
    exec(compile(ast.fix_missing_locations(template), "<magic-timeit>", "exec"), notebook.namespace)  # noqa: S102
    assert notebook.namespace["inner"](50_000) == {"n": 50_000, "_": 49_999, "i": 2, "x": 2}
    columns = marks.stop()
    assert columns is not None
    assert 8_000 < len(columns.place) < 100_000


def test_nothing_stays_in_builtins(notebook: Notebook) -> None:
    before = set(dir(builtins))
    measured(notebook, "for i in range(3):\n    for j in range(3):\n        alloc()")
    assert set(dir(builtins)) == before


def test_two_recordings_at_once(notebook: Notebook) -> None:
    outer, inner = ast_marks(), ast_marks()
    tree: Any = outer.transformer.visit(inner.transformer.visit(ast.parse("for i in range(2):\n    alloc()")))
    exec(compile(ast.fix_missing_locations(tree), "<cell 1>", "exec"), notebook.namespace)  # noqa: S102
    for marks in (inner, outer):
        columns = marks.stop()
        assert columns is not None
        assert Joined(columns, notebook.truth, 0, ()).innermost() == [2, 2]


def test_a_tree_that_cannot_be_marked_runs_as_it_is(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = ast_marks()

    def broken(_: object) -> None:
        raise RuntimeError("unknown statement")

    monkeypatch.setattr(marks, "number", broken)
    notebook.run("x = alloc()", marks)
    marks.stop()
    assert notebook.namespace["x"] == 1
    assert marks.notes[0].text == (
        "line marks ended early (RuntimeError: unknown statement); the cell itself is not affected"
    )


def test_code_that_a_magic_compiles_meanwhile_stands_below_its_line() -> None:
    marks = ast_marks()
    places: list[None] = []
    names: dict[str, Any] = {}

    def run(source: str, name: str) -> None:
        tree = ast.fix_missing_locations(marks.transformer.visit(ast.parse(source)))
        exec(compile(tree, name, "exec"), names)  # noqa: S102

    names["magic"] = lambda: run("a = 1\nhere()\n", "<timed exec>")
    names["here"] = lambda: places.append(None)
    run("x = 1\nmagic()\nhere()\n", "<cell>")
    columns = marks.stop()
    assert columns is not None
    inner, outer = ("<timed exec>", 2, "<module>"), ("<cell>", 2, "<module>")
    assert (inner, outer) in columns.places
    assert (("<cell>", 3, "<module>"),) in columns.places
    assert len(places) == 2
