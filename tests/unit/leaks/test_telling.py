"""How leaks are told: each once, with the numbers that prove it, and as plain values for the view."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic.analysis.leaks import Keeper
from gpumem_magic.analysis.leaks.evidence import rhythm
from gpumem_magic.analysis.leaks.plain import plain
from gpumem_magic.analysis.leaks.remedies import remedy
from gpumem_magic.holders.model import Category, Holder, HolderKind, HolderScan, Storage
from gpumem_magic.recording.model import Note
from gpumem_magic.report import Report
from gpumem_magic.report.container import decode
from gpumem_magic.report.text import report_text

KIB, MIB = 1 << 10, 1 << 20


def two_leaks(script):
    run = script("for x in xs:\n    a.append(f(x))\n    if x % 5 == 0:\n        b.append(g(x))\n")
    for turn in range(20):
        run.at(1).at(2).alloc(f"a{turn}", MIB).at(3)
        if turn % 5 == 0:
            run.at(4).alloc(f"b{turn}", 2 * MIB)
    return run.at(1)


def test_the_first_is_told_in_the_sentence_the_others_below_it(script):
    analysis = two_leaks(script).analysis()
    text = report_text(analysis)
    first = "line 2 `a.append(f(x))` keeps 1.00 MiB more each iteration, 20 times: 20.0 MiB"
    second = "line 4 `b.append(g(x))` keeps 2.00 MiB more every 5th iteration, 4 times: 8.00 MiB"
    assert text.splitlines()[0].startswith(f"gpumem: Leak: {first} (1 more below). Peak 28.0 MiB")
    assert text.count(first) == text.count(second) == 1
    assert f"  ! leak: {second}" in text.splitlines()


def test_the_same_leak_on_two_devices_is_two_and_says_where(script):
    analysis = two_leaks(script).analysis()
    other = replace(
        analysis.devices[0],
        key="cuda:1",
        growth=replace(
            analysis.devices[0].growth,
            leaks=tuple(replace(leak, device="cuda:1") for leak in analysis.devices[0].growth.leaks),
        ),
    )
    notes = [note.text for note in replace(analysis, devices=(analysis.devices[0], other)).growth_notes]
    assert [text.rpartition(", on ")[2] for text in notes] == ["cuda:0", "cuda:1", "cuda:1"]
    assert sum("line 2" in text for text in notes) == 1


@pytest.mark.parametrize(
    ("keeper", "changes", "expected"),
    [
        (
            Keeper("kept[0]", "kept", "variable", MIB),
            {},
            "drop what is no longer needed from `kept`, or keep it on the CPU",
        ),
        (Keeper("kept[0]", "kept", "variable", MIB), {"device": "cpu"}, "drop what is no longer needed from `kept`"),
        (
            Keeper("losses[0].grad_fn → MulBackward0", "losses", "autograd graph", MIB, 80),
            {},
            "`.detach()` what `losses` keeps, or run it under torch.no_grad(): the graph behind it is what grows",
        ),
        (
            Keeper("f (functools cache)", "f", "variable", MIB),
            {},
            "give the cache of `f` a maxsize, or call f.cache_clear()",
        ),
        (
            Keeper("errors[0].__traceback__ (frame f, local `x`)", "errors", "variable", MIB),
            {},
            "keep the error's text in `errors`, not the error: its frames hold their locals",
        ),
        (
            Keeper("reference cycle A.me → A", "reference cycle A.me → A", "reference cycle", MIB),
            {},
            "gc.collect() frees it now; without the cycle it goes at once",
        ),
        (
            Keeper("cache", "cache", "variable", MIB),
            {"kind": "regrown"},
            "make `cache` once, as large as it gets, and write into it, or join the pieces on the CPU",
        ),
        (
            Keeper("kept[0]", "kept", "variable", MIB),
            {"kind": "reruns"},
            "make `kept` anew at the top of the cell, or clear it before the next run",
        ),
        (Keeper("Out[3]", "Out[3]", "output history", MIB), {}, "end the cell with `;`, or %gpumem_free --out"),
    ],
)
def test_what_to_do_about_it(script, keeper, changes, expected):
    leak = two_leaks(script).growth().leaks[0]
    assert remedy(replace(leak, keepers=(keeper,), **changes)) == expected
    assert remedy(leak) == ""


def test_what_to_do_stands_below_the_sentence(script):
    run = two_leaks(script)
    held = tuple(
        Storage(
            "cuda:0",
            run.address(f"a{n}"),
            MIB,
            1,
            (1,),
            "float32",
            Category.OTHER,
            (Holder(HolderKind.VARIABLE, f"a[{n}]", "a"),),
        )
        for n in range(20)
    )
    analysis = run.analysis(holders=HolderScan(held, 1, 0.0, None))
    lines = report_text(analysis).splitlines()
    assert lines[1] == "  do: drop what is no longer needed from `a`, or keep it on the CPU"
    assert "held by `a`" in lines[0]
    todo = "Do: drop what is no longer needed from `a`, or keep it on the CPU"
    assert Note("info", todo) in analysis.verdict_notes
    # In the interactive view as well, and where no script runs before what is folded away.
    header, _ = decode(Report(analysis).to_document())
    assert {"level": "info", "text": todo} in header["notes"]
    assert todo in Report(analysis).static_bundle()[0]["text/html"].split("<details>")[0]


def test_as_plain_values(script):
    growth = two_leaks(script).growth()
    told = json.loads(json.dumps(plain(growth)))
    first, second = told["leaks"]
    assert told["iterations"] == 20
    assert (first["kind"], first["bytes"], first["bytesPerIteration"]) == ("kept", 20 * MIB, MIB)
    assert (first["grown"], first["every"], first["left"], first["leftPer"]) == (20, 1, [MIB] * 20, 1)
    assert (second["every"], second["left"]) == (5, [2 * MIB, 0, 0, 0, 0] * 4)
    assert first["loop"] == {"label": "line 1", "source": "for x in xs:", "cell": None, "line": 1}
    (line,) = second["lines"]
    assert (line["source"], line["blocks"], line["bytes"]) == ("b.append(g(x))", 4, 8 * MIB)
    assert plain(None) is None
    assert plain(replace(growth, leaks=())) is None


@pytest.mark.parametrize(("kind", "expected"), [("kept", 3 * KIB), ("regrown", KIB)])
def test_a_long_loop_becomes_a_small_chart(script, kind, expected):
    growth = two_leaks(script).growth()
    long = replace(growth.leaks[0], kind=kind, left=(KIB,) * 600)
    (leak,) = json.loads(json.dumps(plain(replace(growth, leaks=(long,)))))["leaks"]
    assert (leak["left"], leak["leftPer"]) == ([expected] * 200, 3)


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [([0, 1, 2, 3], 1), ([0, 4, 8, 12], 4), ([0, 1, 2, 3, 4, 7], 1), ([0, 3, 4, 11], None), ([5], None), ([], None)],
)
def test_the_rhythm_of_iterations(iterations, expected):
    assert rhythm(np.array(iterations, np.int64)) == expected


def test_late_and_irregular_growth_says_so(script):
    def sentence(turns):
        run = script("for x in xs:\n    y = f(x)\n")
        for turn in range(30):
            run.at(1).at(2).alloc("t", MIB).free("t")
            if turn in turns:
                run.alloc(f"y{turn}", MIB)
        return run.at(1).growth().leaks[0].sentence

    assert "more each iteration, the last 20 of 30: 20.0 MiB" in sentence(range(10, 30))
    assert "more in 6 of 30 iterations: 6.00 MiB" in sentence({1, 4, 11, 17, 24, 29})
