"""Random notebooks: functions of an earlier cell, and a cell that calls them in every way that moves between lines."""

from __future__ import annotations

# ruff: noqa: E501 - programs on one line each
import random
import textwrap

_HEAD = """
import contextlib, functools
class Boom(Exception):
    pass
@contextlib.contextmanager
def manager():
    alloc()
    yield alloc()
    alloc()
class Plain:
    def __enter__(self):
        alloc()
        return self
    def __exit__(self, *exc):
        alloc()
        return False
"""


class _Writer:
    def __init__(self, seed: int, *, floods: bool) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable programs
        self.floods = floods
        self.functions: list[str] = []
        self.generators: list[str] = []

    def expression(self, level: int = 0) -> str:
        choices = ["alloc()", "alloc()", "1"]
        if self.functions and level < 3:
            name = self.random.choice(self.functions)
            choices += [f"{name}(d + 1)", f"{name}(d + 1) + alloc()", f"(alloc() + {name}(d + 1))"]
            choices += [f"functools.reduce(lambda a, b: a + {name}(d + 2), [1, 2], 0)"]
            choices += [f"max([alloc(),\n    {name}(d + 1),\n    alloc()])"]
        if self.generators:
            name = self.random.choice(self.generators)
            choices += [f"sum({name}(d + 1)) + alloc()", f"len([alloc() + y for y in {name}(d + 1)]) + alloc()"]
            choices += [f"next({name}(d + 1)) + alloc()", f"sum(y + alloc() for y in {name}(d + 1))"]
        return self.random.choice(choices)

    def block(self, level: int) -> str:
        count = self.random.randint(1, 3)
        return "\n".join(self.statement(level) for _ in range(count))

    def statement(self, level: int) -> str:  # noqa: PLR0911 - one kind of statement a branch
        pick = self.random.randint(0, 12 if level < 3 else 3)
        inner = textwrap.indent(self.block(level + 1), "    ") if pick > 3 else ""
        if pick <= 2:
            return f"x = {self.expression()}"
        if pick == 3:
            return self.flood() if self.floods and self.random.random() < 0.3 else "alloc()"
        if pick == 4:
            return f"for i in range(2):\n{inner}"
        if pick == 5:
            return f"try:\n{inner}\n    if d % 2 == 0:\n        raise Boom(alloc())\nexcept Boom:\n    alloc()\nfinally:\n    alloc()"
        if pick == 6:
            return f"with {self.random.choice(['manager()', 'Plain()'])}:\n{inner}\nalloc()"
        if pick == 7:
            return f"if alloc() % 2:\n{inner}\nelse:\n    alloc()"
        if pick == 8 and self.generators:
            name = self.random.choice(self.generators)
            end = self.random.choice(["g.close()", "alloc()", "del g"])
            throw = "try:\n    g.throw(Boom())\nexcept (Boom, StopIteration):\n    alloc()\n" * self.random.randint(
                0, 1
            )
            return f"g = {name}(d + 1)\nx = next(g, 0) + alloc()\nalloc()\n{throw}{end}"
        if pick == 9 and self.generators:
            return f"for y in {self.random.choice(self.generators)}(d + 1):\n{inner}\n    if alloc() % 3 == 0:\n        break"
        if pick == 10:
            return f"i = 0\nwhile i < 2:\n    i += 1\n{inner}\n    if i == 1:\n        continue\n    alloc()"
        if pick == 11 and self.functions:
            name = self.random.choice(self.functions)
            return f"try:\n    {name}(d + 2) if alloc() % 2 else int('x' * alloc())\nexcept (ValueError, Boom):\n    alloc()"
        return "def local(a=alloc()):\n    return a + alloc()\nx = local() + alloc()"

    def flood(self) -> str:
        loops = [
            "for i in range(N):\n    x = i",
            "for i in range(N):\n    tiny(i)",
            "for i in range(N // 2):\n    try:\n        fails()\n    except Boom:\n        pass",
            "x = sum(1 for i in range(N))",
            "x = sorted(range(N), key=lambda v: -v)\nalloc()",
            "for i in range(N):\n    if i % 1500 == 700:\n        alloc()",
            "for i in range(N):\n    tiny(i)\n    if i % 3000 == 2999:\n        x = alloc() + tiny(i)\n        alloc()",
            "for i in counter(N):\n    pass\nalloc()",
            "c = counter(N)\nfor i in c:\n    if i % 4000 == 3999:\n        x = alloc() + next(c)\n        alloc()",
        ]
        return self.random.choice(loops)

    def definition(self, index: int) -> str:
        kind = self.random.random()
        name = f"{'g' if kind < 0.35 else 'f'}{index}"
        guard = "if d > 3:\n    return 0\n" if kind >= 0.35 else "if d > 3:\n    return\n"
        body = guard + self.block(0)
        if kind < 0.35:
            body += f"\nx = yield alloc()\ny = (yield 1) or alloc()\n{self.block(1)}\nyield {self.expression()}"
            if self.generators and self.random.random() < 0.5:
                body += f"\nyield from {self.random.choice(self.generators)}(d + 1)\nalloc()"
            self.generators.append(name)
        else:
            if self.random.random() < 0.3:
                body += f"\nx = {name}(d + 2) + alloc()"
            if self.random.random() < 0.15:
                body += "\nif d > 2:\n    raise Boom"
            body += f"\nreturn {self.expression()}"
            self.functions.append(name)
        return f"def {name}(d):\n{textwrap.indent(body, '    ')}\n"


def program(seed: int, *, floods: bool = False) -> tuple[str, str]:
    """Return an earlier cell and a cell to measure."""
    writer = _Writer(seed, floods=floods)
    parts = [_HEAD]
    if floods:
        parts.append(
            "def tiny(v):\n    return v\ndef fails():\n    raise Boom\ndef counter(n):\n    for v in range(n):\n        yield v\n"
        )
    parts += [writer.definition(index) for index in range(5)]
    calls = [f"try:\n{textwrap.indent(writer.block(1), '    ')}\nexcept Boom:\n    alloc()" for _ in range(3)]
    return "\n".join(parts), "d = 0\n" + "\n".join(calls)
