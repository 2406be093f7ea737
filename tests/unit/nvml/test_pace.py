"""The rhythm of `log` and `watch`."""

import pytest

from gpumem_magic.cli import pace as module
from gpumem_magic.cli.pace import Pace


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping and the test move; it lists the sleeps."""

    class Clock:
        def __init__(self):
            self.now = 100.0
            self.slept = []

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.slept.append(seconds)
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_steps_are_even_whatever_a_reading_takes(clock):
    pace = Pace(2.0)
    for took in (0.5, 1.5, 0.0):
        clock.now += took
        pace.wait()
    assert clock.slept == [1.5, 0.5, 2.0]
    assert clock.now == 106.0


def test_steps_that_a_slow_driver_cost_are_not_made_up_for(clock):
    pace = Pace(1.0)
    clock.now += 600
    pace.wait()
    assert clock.slept == []
    for _ in range(2):
        pace.wait()
    assert clock.slept == [1.0, 1.0]
