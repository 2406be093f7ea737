"""The join of events with marks, on hand-made columns."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpumem_magic.analysis.lines import (
    CLOCK_TOLERANCE_US,
    DROPPED,
    OUTSIDE,
    TOO_OFTEN,
    TWO_THREADS,
    attribute,
    clock_offset,
)
from gpumem_magic.recording.marks import store
from gpumem_magic.recording.model import Marks

PLACES = (
    (("<cell>", 1, "<module>"),),
    (("<cell>", 2, "<module>"),),
    (("<cell>", 7, "f"), ("<cell>", 2, "<module>")),
    (),
)


def marks(rows: list[tuple[int, int, int]], **options: object) -> Marks:
    """Make marks of (time, thread, place)."""
    time_us, thread, place = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else (np.zeros(0, np.int64),) * 3
    )
    last_lines = tuple(tuple(entry[1] for entry in stack) for stack in PLACES)
    return Marks(time_us, thread, place.astype(np.int32), PLACES, last_lines=last_lines, **options)  # type: ignore[arg-type]


def joined(given: Marks, times: list[int], **options: object) -> list[int | str]:
    lines = attribute(given, np.array(times, np.int64), **options)  # type: ignore[arg-type]
    return [place if place >= 0 else lines.reasons[-1 - place] for place in lines.place.tolist()]


def test_an_event_belongs_to_the_last_mark_not_later_than_it() -> None:
    given = marks([(100, 1, 0), (200, 1, 1), (250, 1, 2), (300, 1, 1), (400, 1, -1)])
    assert joined(given, [99, 100, 199, 200, 299, 300, 399, 400, 900]) == [
        OUTSIDE, 0, 0, 1, 2, 1, 1, OUTSIDE, OUTSIDE,
    ]  # fmt: skip


def test_events_may_come_in_any_order() -> None:
    given = marks([(100, 1, 0), (200, 1, 1), (300, 1, -1)])
    assert joined(given, [250, 150, 350, 250]) == [1, 0, OUTSIDE, 1]


def test_of_marks_in_one_microsecond_the_last_counts() -> None:
    assert joined(marks([(100, 1, 0), (100, 1, 2), (100, 1, 1)]), [100]) == [1]


def test_threads_without_marks_work_for_the_running_line() -> None:
    given = marks([(100, 1, 0), (200, 1, 1), (300, 1, -1)])
    assert joined(given, [150, 250], thread=np.array([77, 0])) == [0, 1]


def test_two_threads_at_once_are_unknown_unless_at_one_place() -> None:
    given = marks([(100, 1, 0), (150, 2, 1), (200, 2, 0), (250, 2, -1), (300, 1, -1)])
    assert joined(given, [120, 160, 220, 260]) == [0, TWO_THREADS, 0, 0]
    assert [note.text for note in attribute(given, np.array([160])).notes] == [
        "two threads ran notebook code at once; --stacks python tells their lines apart"
    ]


def test_a_thread_that_python_did_not_start_runs_while_its_caller_waits() -> None:
    # Thread 1 waits in backward (place 0); autograd's thread 2 runs a checkpoint's forward (place 1) and leaves it.
    rows = [(100, 1, 0), (150, 2, 1), (200, 2, -1)]
    assert joined(marks(rows, foreign=(2,)), [120, 160, 220]) == [0, 1, 0]
    assert joined(marks(rows), [120, 160, 220]) == [0, TWO_THREADS, 0]


def test_two_threads_that_python_did_not_start_contradict_each_other() -> None:
    rows = [(100, 1, 0), (150, 2, 1), (160, 3, 0)]
    assert joined(marks(rows, foreign=(2, 3)), [155, 170]) == [1, TWO_THREADS]


def test_three_threads_at_once() -> None:
    given = marks([(100, 1, 0), (150, 2, 1), (160, 3, 0)])
    assert joined(given, [155, 170]) == [TWO_THREADS, TWO_THREADS]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
def test_the_events_own_thread_decides(order: tuple[int, int, int]) -> None:
    one, two, three = order
    given = marks([(100, one, 0), (110, two, 1), (120, three, 2)])
    assert joined(given, [200, 200, 200, 200], thread=np.array([one, two, three, 0])) == [0, 1, 2, TWO_THREADS]


def test_an_event_of_a_thread_that_is_outside_is_not_given_to_others() -> None:
    given = marks([(100, 1, 0), (110, 2, 1), (120, 2, -1)])
    assert joined(given, [200, 200], thread=np.array([1, 2])) == [0, OUTSIDE]


def test_dropped_marks_are_the_reason_before_the_first_one() -> None:
    assert joined(marks([(100, 1, 0)], dropped=5), [50, 150]) == [DROPPED, 0]


def test_a_place_without_entries_is_no_line() -> None:
    assert joined(marks([(100, 1, 3)]), [150]) == [TOO_OFTEN]


def test_no_marks_at_all() -> None:
    assert joined(marks([]), [150]) == [OUTSIDE]
    assert joined(marks([(100, 1, 0)]), []) == []


def test_the_clocks_offset_is_taken_off_and_said() -> None:
    given = marks([(100, 1, 0), (200, 1, 1)])
    assert joined(given, [220], offset_us=30) == [0]
    assert attribute(given, np.array([220]), offset_us=CLOCK_TOLERANCE_US).notes == ()
    assert attribute(given, np.array([9_220]), offset_us=9_000).notes[0].text == (
        "torch's clock was +9,000 µs off the lines' clock, which was corrected"
    )


def test_lines_inside_functions_need_a_newer_python() -> None:
    notes = attribute(marks([(100, 1, 0)], has_functions=False), np.array([150])).notes
    assert notes[0].text == "lines inside functions need Python 3.12; memory is shown at the line that called them"


@pytest.mark.parametrize(
    ("entries", "calls", "offset"),
    [
        ([105], [(100, 110)], 0),
        ([130], [(100, 110)], 20),
        ([70], [(100, 110)], -30),
        ([105, 1_130], [(100, 110), (1_100, 1_110)], 10),
        ([], [(100, 110)], None),
        ([5_000_000], [(100, 110)], None),
        ([105], [], None),
    ],
)
def test_clock_offset(entries: list[int], calls: list[tuple[int, int]], offset: int | None) -> None:
    assert clock_offset(np.array(entries, np.int64), calls) == offset


def test_many_events_and_marks_against_a_plain_search() -> None:
    rng = np.random.default_rng(3)
    times = np.sort(rng.integers(0, 50_000, 20_000))
    place = rng.integers(-1, 3, 20_000)
    given = marks(list(zip(times.tolist(), [1] * 20_000, place.tolist(), strict=True)))
    events = rng.integers(0, 60_000, 30_000)
    expected = []
    for event in events.tolist():
        at = int(np.searchsorted(times, event, side="right")) - 1
        expected.append(OUTSIDE if at < 0 or place[at] < 0 else int(place[at]))
    assert joined(given, events.tolist()) == expected


def test_the_latest_marks_are_those_since_the_thread_came_from_nowhere() -> None:
    log = store.ThreadLog(threading.get_ident())
    spots = [7, 8, store.NOWHERE, 9, 10, 11]
    log.extend(np.arange(4), np.array(spots[:4], np.uint32), 1_000)
    log.spots[:2], log.count = spots[4:], 2
    assert log.latest(10) == [9, 10, 11]
    assert log.latest(2) == [10, 11]
    log.spots[2], log.count = store.NOWHERE, 3
    assert log.latest(10) == []
