"""The thread: it reads while somebody looks, yields to a slow driver, and tells a fault once."""

import logging
import math
import threading
import time

import pytest

from gpumem_magic.nvml.model import Device, Reading
from gpumem_magic.nvml.poller import FaultLog, Poller
from gpumem_magic.nvml.reader import Reader

LOG = logging.getLogger("test.gpumem")


class Watcher:
    """Somebody who looks, until told otherwise."""

    def __init__(self, session, interval=0.02):
        self.looks = True
        self.enough = math.inf
        self.readings: list[Reading] = []
        self.arrived = threading.Condition()
        self.poller = Poller(
            Reader(session),
            self.take,
            wanted=lambda: self.looks and len(self.readings) < self.enough,
            interval=lambda: interval,
            log=LOG,
        )

    def take(self, reading):
        with self.arrived:
            self.readings.append(reading)
            self.arrived.notify_all()

    def wait(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.readings) >= count, timeout=60)


@pytest.fixture
def watcher(session):
    watcher = Watcher(session)
    yield watcher
    watcher.poller.stop()


def test_nothing_is_called_while_nobody_looks(fake_nvml, watcher):
    watcher.looks = False
    watcher.poller.wake()
    time.sleep(0.2)
    assert fake_nvml.calls() == {}
    watcher.looks = True
    watcher.poller.wake()
    watcher.wait(3)
    watcher.looks = False
    fake_nvml.wait_until_quiet()
    count = len(watcher.readings)
    watcher.looks = True
    watcher.poller.wake()
    watcher.wait(count + 1)


def test_a_reading_knows_whether_nobody_looked_before_it(session):
    rested, looks, arrived, asleep = [], True, threading.Semaphore(0), threading.Event()

    def wanted():
        if not looks:
            asleep.set()
        return looks

    def take(_reading):
        rested.append(poller.rested)
        arrived.release()

    poller = Poller(Reader(session), take, wanted=wanted, interval=lambda: 0.01, log=LOG)
    try:
        poller.wake()
        assert arrived.acquire(timeout=60)
        assert arrived.acquire(timeout=60)
        looks = False
        assert asleep.wait(60)
        before = len(rested)
        looks = True
        poller.wake()
        while len(rested) < before + 2:
            assert arrived.acquire(timeout=60)
    finally:
        poller.stop()
    assert True not in rested[:before]
    assert rested[before : before + 2] == [True, False]


def test_one_reading_on_demand(watcher):
    watcher.looks = False
    watcher.poller.wake(once=True)
    watcher.wait(1)
    time.sleep(0.2)
    assert len(watcher.readings) == 1


def test_ticks_move_the_tiers(fake_nvml, watcher):
    # The twentieth reading would ask for the mode again.
    watcher.enough = 5
    watcher.poller.wake()
    watcher.wait(5)
    watcher.poller.stop()
    calls = fake_nvml.calls()
    assert calls["nvmlDeviceGetMigMode"] == 1
    assert calls["nvmlDeviceGetMemoryInfo_v2"] == len(watcher.readings) == 5


def test_slow_driver_is_asked_less_often(fake_nvml, session):
    fake_nvml.control({"delay_us": {"nvmlDeviceGetMemoryInfo_v2": 100_000}})
    watcher = Watcher(session)
    watcher.poller.wake()
    watcher.wait(1)
    while watcher.poller.last_seconds == 0:
        time.sleep(0.01)
    # A reading of 0.1 s is a fifth of the pause, not the 0.02 s asked for.
    assert watcher.poller.pause >= 0.5
    watcher.poller.stop()


def test_driver_that_hangs_is_seen_and_does_not_keep_the_process(fake_nvml, session):
    fake_nvml.control({"delay_us": {"nvmlDeviceGetMemoryInfo_v2": 4_000_000}})
    watcher = Watcher(session)
    watcher.poller.wake()
    while watcher.poller.busy_seconds <= 0.2:
        time.sleep(0.01)
    watcher.poller.stop(timeout=0.1)
    assert watcher.poller.busy_seconds > 0
    # The session is closed only when the call has come back.
    watcher.wait(1)


def test_fault_of_our_own_is_told_once_and_the_thread_goes_on(session, caplog):
    watcher = Watcher(session)
    good = watcher.take

    def bad(reading):
        good(reading)
        raise RuntimeError("boom")

    watcher.poller._publish = bad
    with caplog.at_level(logging.ERROR, logger=LOG.name):
        watcher.poller.wake()
        watcher.wait(4)
        watcher.poller.stop()
    assert [record.message for record in caplog.records] == ["gpumem: a reading failed; the monitor goes on"]


def reading(problem=None, *devices):
    return Reading(0, "580", problem, devices)


def test_fault_is_logged_when_it_begins_and_when_it_ends(caplog):
    faults = FaultLog(LOG)
    lost = Device(1, "GPU-b", lost="the GPU has fallen off the bus", missing={"memory": "x"})
    with caplog.at_level(logging.INFO, logger=LOG.name):
        for _ in range(3):
            faults.note(reading(None, Device(0, "GPU-a"), lost))
        faults.note(reading(None, Device(0, "GPU-a"), Device(1, "GPU-b")))
        for _ in range(3):
            faults.note(reading("The driver is gone."))
        faults.note(reading())
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "gpumem: GPU 1 (GPU-b): the GPU has fallen off the bus"),
        ("INFO", "gpumem: GPU 1 (GPU-b): the GPU has fallen off the bus: over"),
        ("WARNING", "gpumem: The driver is gone."),
        ("INFO", "gpumem: The driver is gone.: over"),
    ]


def test_missing_values_are_debug_lines(caplog):
    faults = FaultLog(LOG)
    with caplog.at_level(logging.DEBUG, logger=LOG.name):
        for _ in range(3):
            faults.note(reading(None, Device(0, missing={"power_w": "not supported"})))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "gpumem: GPU 0: power_w: not supported"),
    ]
