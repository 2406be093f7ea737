"""Text: what is said, its alignment, and terminals that know few characters."""

from __future__ import annotations

from dataclasses import replace

import make_documents  # type: ignore[import-not-found]
import pytest

from gpumem_magic._format import encodable
from gpumem_magic.recording.model import Note
from gpumem_magic.report.text import clip, display_width, report_text


def lines_of(text):
    return text.split("\n")


def test_sentence_numbers_and_table():
    lines = lines_of(report_text(make_documents.busy(50)))
    assert lines[0].startswith("gpumem: Peak 1.17 GiB at line 3 `y = model(x) # модель`, ")
    assert lines[1] == (
        "  before 1.00 GiB · peak 1.17 GiB · after 1.00 GiB · reserved 8.00 GiB · device used 11.0 GiB of 80.0 GiB"
        " · 1.0 s · 3,002 events"
    )
    assert lines[2] == "  at the peak:"
    assert lines[3].split() == ["1.00", "GiB", "85%", "before", "the", "cell", "██████████▎"]
    assert lines[4].split()[:5] == ["176", "MiB", "15%", "line", "3"]


def test_top_limits_the_rows_and_the_rest_is_counted():
    lines = lines_of(report_text(make_documents.complete(), top=1))
    assert "   1.80 GiB   41%  5 more" in lines
    assert not any("at the peak" in line for line in lines_of(report_text(make_documents.complete(), top=0)))


def test_each_device_has_its_numbers():
    text = report_text(make_documents.complete())
    assert "\n  cuda:0: before " in text
    assert "\n  cuda:1: before 2.00 MiB · peak 32.0 MiB · after 30.0 MiB" in text


def test_notes_close_the_report_warnings_first():
    assert lines_of(report_text(make_documents.complete()))[-2:] == [
        "  ! a warning with <i>markup</i> & entities",
        "  note: для сведения",
    ]


def test_nothing_to_draw_is_one_line():
    empty = make_documents.analysis((), text="Nothing was allocated or freed on a GPU in this cell.")
    assert report_text(empty) == "gpumem: Nothing was allocated or freed on a GPU in this cell."


def test_bars_stand_below_each_other_in_any_script():
    table = [line for line in lines_of(report_text(make_documents.complete())) if "%" in line and "█" in line]
    # Isolates (two characters) take no cell.
    assert len({display_width(line.split("█")[0]) for line in table[:3]}) == 1


def test_right_to_left_source_is_isolated():
    line = next(line for line in lines_of(report_text(make_documents.complete())) if "هدف" in line and "4 B" in line)
    assert "\u2066loss = criterion(y, هدف)\u2069" in line


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "no-such-encoding"])
def test_a_poor_terminal_still_reads(encoding):
    text = report_text(make_documents.complete(), encoding=encoding)
    text.encode(encoding if encoding != "no-such-encoding" else "ascii")
    assert text.startswith("gpumem: Out of memory at line 5 `??????(loss)` on cuda:0: it asked for 90.0 GiB")
    assert "#######" in text


def test_utf8_keeps_everything():
    assert encodable("損失 · هدف …", "utf-8") == "損失 · هدف …"


def test_width_counts_cells():
    assert display_width("損失a") == 5
    assert display_width("e\u0301") == 1
    assert clip("損失の逆伝播", 7) == "損失の…"
    assert display_width(clip("損失の逆伝播", 8)) <= 8
    assert clip("abc", 3) == "abc"


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_rows_fit_the_width(width):
    text = report_text(make_documents.complete(), width=width)
    rows = [line for line in lines_of(text) if "%  " in line]
    assert rows
    # A row is never narrower than its numbers and its label.
    assert all(display_width(row) <= max(width, 52) for row in rows)


def test_control_characters_of_a_note_stay_on_one_line():
    source = replace(make_documents.gap(), notes=(Note("warning", "one line"),))
    assert lines_of(report_text(source))[-1] == "  ! one line"
