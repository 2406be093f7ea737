"""What the server remembers: an hour finely, a day coarsely, gaps as gaps."""

import pytest

from gpumem_magic.nvml.model import Device, Memory, Reading
from gpumem_magic.server.history import COARSE_SECONDS, FINE_ROWS, MOST_POINTS, History

SECOND = 1_000_000
BEGIN = 1_800_000_000 * SECOND


def device(index, used, utilization=10, uuid="auto"):
    memory = None if used is None else Memory(1000, used, 1000 - used, 0)
    return Device(index, f"GPU-{index}" if uuid == "auto" else uuid, "x", memory, utilization)


def fill(history, seconds, used_of, host=7):
    for second in seconds:
        reading = Reading(BEGIN + second * SECOND, "580", None, (device(0, used_of(second)),))
        history.append(reading, host, 1.0)


def test_nothing_yet():
    assert History().window(60, BEGIN) == {"timeUs": [], "devices": [], "host": {"memoryUsed": []}}


def test_points_come_back_exactly():
    history = History()
    fill(history, range(5), lambda second: 100 + second)
    window = history.window(60, BEGIN + 5 * SECOND)
    assert window == {
        "timeUs": [BEGIN + second * SECOND for second in range(5)],
        "devices": [
            {"uuid": "GPU-0", "index": 0, "memoryUsed": [100, 101, 102, 103, 104], "utilization": [10] * 5},
        ],
        "host": {"memoryUsed": [7] * 5},
    }


def test_window_is_cut():
    history = History()
    fill(history, range(100), lambda second: second)
    assert history.window(10, BEGIN + 100 * SECOND)["devices"][0]["memoryUsed"] == list(range(90, 100))


def test_time_when_nobody_looked_is_a_gap():
    history = History()
    fill(history, [0, 1, 2, 60, 61], lambda second: second)
    window = history.window(3600, BEGIN + 62 * SECOND)
    assert window["devices"][0]["memoryUsed"] == [0, 1, 2, None, 60, 61]
    assert window["host"]["memoryUsed"] == [7, 7, 7, None, 7, 7]
    assert window["timeUs"] == sorted(window["timeUs"])


def test_slow_interval_is_no_gap():
    history = History()
    for step in range(4):
        history.append(Reading(BEGIN + step * 10 * SECOND, None, None, (device(0, step),)), 7, 10.0)
    assert history.window(3600, BEGIN + 40 * SECOND)["devices"][0]["memoryUsed"] == [0, 1, 2, 3]


def test_unknown_is_unknown_and_devices_may_come_and_go():
    history = History()
    history.append(Reading(BEGIN, None, None, (device(0, 5),)), None, 1.0)
    history.append(Reading(BEGIN + SECOND, None, None, (device(0, None, None), device(1, 9))), 7, 1.0)
    history.append(Reading(BEGIN + 2 * SECOND, None, None, (device(1, 8),)), 7, 1.0)
    window = history.window(60, BEGIN + 3 * SECOND)
    assert window["host"]["memoryUsed"] == [None, 7, 7]
    assert [d["memoryUsed"] for d in window["devices"]] == [[5, None, None], [None, 9, 8]]
    assert window["devices"][0]["utilization"] == [10, None, None]


def test_a_full_ring_is_thinned_to_its_highest_values():
    history = History()
    fill(history, range(FINE_ROWS), lambda second: 999 if second == 1801 else second % 7)
    window = history.window(FINE_ROWS, BEGIN + FINE_ROWS * SECOND)
    used = window["devices"][0]["memoryUsed"]
    assert len(used) <= MOST_POINTS
    assert max(used) == 999
    assert len(window["timeUs"]) == len(used) == len(window["host"]["memoryUsed"])


def test_thinning_keeps_gaps():
    history = History()
    fill(history, [*range(1500), *range(1600, 3000)], lambda second: second)
    used = history.window(3600, BEGIN + 3000 * SECOND)["devices"][0]["memoryUsed"]
    gap = used.index(None)
    assert used.count(None) == 1
    assert used[gap - 1] == 1499
    assert used[gap + 1] in (1600, 1601, 1602)


def test_a_day_is_coarse_where_the_fine_ring_forgot():
    history = History()
    hours = 5
    fill(history, range(hours * 3600), lambda second: 500 if second == 1000 else 1)
    window = history.window(86400, BEGIN + hours * 3600 * SECOND)
    used = window["devices"][0]["memoryUsed"]
    # A peak of one second, four hours ago, is still there.
    assert max(used) == 500
    assert window["timeUs"][0] == BEGIN
    assert window["timeUs"] == sorted(set(window["timeUs"]))
    spacing = (window["timeUs"][1] - window["timeUs"][0]) / SECOND
    assert spacing >= COARSE_SECONDS


def test_utilisation_is_averaged_as_a_page_that_stayed_open_draws_it():
    history = History()
    for second in range(FINE_ROWS):
        busy = None if second % 4 == 3 else 100 * (second % 4 == 0)
        history.append(Reading(BEGIN + second * SECOND, "580", None, (device(0, second % 4, busy),)), 7, 1.0)
    window = history.window(FINE_ROWS, BEGIN + FINE_ROWS * SECOND, FINE_ROWS // 4)
    # The cut at the window's edge may leave a part of a group.
    groups = [(33, 3)] * (FINE_ROWS // 4)
    used = window["devices"][0]
    assert list(zip(used["utilization"], used["memoryUsed"], strict=True))[1:-1] == groups[1:-1]


def test_utilisation_of_yesterday_is_averaged_too():
    history = History()
    seconds = 4 * 3600
    for second in range(seconds):
        history.append(Reading(BEGIN + second * SECOND, "580", None, (device(0, 5, 100 * (second % 2)),)), 7, 1.0)
    window = history.window(86400, BEGIN + seconds * SECOND)
    # Seven or eight readings a point: four of seven at most are busy.
    assert all(43 <= busy <= 57 for busy in window["devices"][0]["utilization"][1:-1])


@pytest.mark.parametrize("seconds", [0.001, 1e12])
def test_windows_are_bounded(seconds):
    history = History()
    fill(history, range(3), lambda second: second)
    assert len(history.window(seconds, BEGIN + 2 * SECOND)["timeUs"]) in (1, 2, 3)
