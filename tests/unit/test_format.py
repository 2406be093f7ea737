"""Text from anywhere shows what it holds and steers nothing."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem_magic._format import visible
from gpumem_magic.analysis import analyse_trace
from gpumem_magic.report import build
from gpumem_magic.report.fallback import escape
from gpumem_magic.trace.convert import from_snapshot


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\r\nb\tc\x7f\x9b", "a\\x0d\\x0ab\\x09c\\x7f\\x9b"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("\u2066x\u2069\u2028\ud800", "\\u2066x\\u2069\\u2028\\ud800"),
    ],
)
def test_what_steers_is_shown_as_its_escape(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "модель.py",
        "خطأ‌ها",
        "損失の逆伝播(loss)",
        "שלום\u200f!",
        "क्षति",
        "👩\u200d🔬",
        "e\u0301",
        "a\u00a0b",
        "C:\\x1b\\temp",
    ],
)
def test_real_scripts_stay_as_they_are(text):
    assert visible(text) == text


def test_characters_can_be_kept():
    assert visible("a\nb\tc", keep="\n") == "a\nb\\x09c"
    assert escape("a\n<b>\x00\u202e") == "a\n&lt;b&gt;\\x00\\u202e"


@given(st.text())
def test_nothing_else_changes_and_everything_can_be_encoded(text):
    visible(text).encode("utf-8")
    assert visible(visible(text)) == visible(text)
    assert html.unescape(escape(text)) == visible(text, keep="\t\n")


def _hostile(name: str) -> object:
    frame = {"filename": f"/home/me/{name}.py", "line": 3, "name": f"f{name}"}
    events = [
        {"action": "segment_alloc", "addr": 1 << 30, "size": 2 << 20, "stream": 0, "time_us": 10, "frames": [frame]},
        {"action": "alloc", "addr": 1 << 30, "size": 2 << 20, "stream": 0, "time_us": 11, "frames": [frame]},
        {"action": f"odd{name}", "addr": 0, "size": 0, "stream": 0, "time_us": 12, "frames": []},
    ]
    block = {"address": 1 << 30, "size": 2 << 20, "requested_size": 2 << 20, "state": "active_allocated"}
    segment = {"device": 0, "address": 1 << 30, "total_size": 2 << 20, "blocks": [block]}
    return {"segments": [segment], "device_traces": [events]}


@pytest.mark.parametrize("name", ["\x1b]0;x\x07", "\u202etxt", "\x9b2J", "a\nb\r"])
def test_a_snapshot_steers_no_report(name):
    report = build(from_snapshot(_hostile(name)), title=f"file{name}")
    text = report.to_text()
    forbidden = set(name) - set("abtx]0;2J")
    assert not forbidden & set(text.replace("\n", ""))
    assert len(text.splitlines()) == text.count("\n") + 1
    assert visible(name) in text
    page = report.to_html().decode("utf-8")
    body = page[page.index("<main") : page.index("</main>")]
    assert not (forbidden - {"\n", "\r"}) & set(body)
    assert not forbidden & set(repr(report.sentence).encode().decode())
    assert not forbidden & set(analyse_trace(from_snapshot(_hostile(name))).sentence)
