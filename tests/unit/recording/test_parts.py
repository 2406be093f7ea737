"""The small parts of the recorder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from gpumem_magic.recording import ticker
from gpumem_magic.recording.imports import ImportWatch, finished_module, finished_torch
from gpumem_magic.recording.model import Outcome, Sample
from gpumem_magic.recording.notes import Notes, one_line
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.quiet import stderr_without
from gpumem_magic.recording.sampler import Sampler, live_line
from gpumem_magic.recording.settings import cuda_is_used
from gpumem_magic.recording.ticker import call_every, shut_down


def test_an_import_is_noticed_after_the_module_ran(tmp_path, monkeypatch):
    (tmp_path / "freshly_made.py").write_text("value = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    watch = ImportWatch("freshly_made", lambda module: seen.append((module.value, finished_module("freshly_made"))))
    watch.start()
    try:
        import freshly_made  # type: ignore[import-not-found]
    finally:
        watch.stop()
    assert seen == [(42, None)]  # complete for us, but its import had not ended yet
    assert finished_module("freshly_made") is freshly_made
    loader = vars(freshly_made)["__loader__"]
    assert not type(loader).__module__.startswith("gpumem")
    assert vars(freshly_made)["__spec__"].loader is loader
    assert watch not in sys.meta_path
    del sys.modules["freshly_made"]


def test_a_module_that_does_not_exist_is_still_an_import_error():
    watch = ImportWatch("there_is_no_such_module", lambda _module: None)
    watch.start()
    try:
        with pytest.raises(ModuleNotFoundError):
            __import__("there_is_no_such_module")
    finally:
        watch.stop()


def test_noise_is_dropped_and_the_rest_passed_on_at_descriptor_level(capfd):
    with stderr_without(lambda line: line.startswith(b"noise")) as held:
        os.write(2, b"noise 1\nsignal 1\n")
        print("signal 2", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'noise 2\\nsignal 3\\n')"], check=True)
        assert held() > 0
    # pytest reads descriptor 2 and sys.stderr apart, so their order says nothing here.
    assert sorted(capfd.readouterr().err.splitlines()) == ["signal 1", "signal 2", "signal 3"]
    os.write(2, b"noise again\n")
    assert capfd.readouterr().err == "noise again\n"


def test_what_was_held_back_is_passed_on_after_an_error(capfd):
    def fail():
        os.write(2, b"before the error\n")
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"), stderr_without(lambda _line: False):
        fail()
    assert capfd.readouterr().err == "before the error\n"


def test_a_guard_turns_a_failure_into_one_line():
    def fail():
        raise RuntimeError("first line\nsecond line")

    notes = Notes()
    for _ in range(2):
        with notes.guard("reading the moon"):
            fail()
    assert notes.freeze() == (
        ("warning", "reading the moon failed (RuntimeError: first line); the cell itself is not affected"),
    )


def test_a_guard_lets_interrupts_pass():
    with pytest.raises(KeyboardInterrupt), Notes().guard("anything"):
        raise KeyboardInterrupt


class OutOfMemoryError(RuntimeError):
    pass


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        (ValueError("x"), Outcome.ERROR),
        (KeyboardInterrupt(), Outcome.INTERRUPTED),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), Outcome.OUT_OF_MEMORY),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), Outcome.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), Outcome.OUT_OF_MEMORY),
        (MemoryError(), Outcome.OUT_OF_MEMORY),
        (ValueError("this text mentions out of memory"), Outcome.ERROR),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), Outcome.OUT_OF_MEMORY),
        (RuntimeError("CUDA failure 209: no kernel image is available"), Outcome.ERROR),
        (caused(ValueError("batch 3"), OutOfMemoryError("CUDA out of memory")), Outcome.OUT_OF_MEMORY),
    ],
)
def test_outcomes(error, outcome):
    assert classify(error)[0] is outcome


class GroupOfErrors(Exception):  # noqa: N818  # ExceptionGroup, which Python 3.10 has not
    def __init__(self, *exceptions):
        super().__init__("unhandled errors in a TaskGroup")
        self.exceptions = exceptions


def handled(error, *, on_purpose):
    """Return an error as a handler of an out-of-memory error raises it, plainly or ``from None``."""
    error.__context__ = OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    error.__suppress_context__ = on_purpose
    return error


def test_an_error_among_several_is_the_outcome():
    outcome, _, failure = classify(GroupOfErrors(ValueError("x"), OutOfMemoryError("CUDA out of memory")))
    assert outcome is Outcome.OUT_OF_MEMORY
    assert failure is not None
    assert failure.text == "CUDA out of memory"


def test_a_handlers_own_error_is_the_outcome_with_the_verdict_beside_it():
    outcome, text, failure = classify(handled(KeyError("metrics"), on_purpose=False))
    assert (outcome, text) == (Outcome.ERROR, "KeyError: 'metrics'")
    assert failure is not None
    assert "2.00 GiB" in failure.text


def test_an_error_that_was_handled_on_purpose_is_over():
    outcome, _, failure = classify(handled(ValueError("smaller batch, please"), on_purpose=True))
    assert outcome is Outcome.ERROR
    assert failure is None


def test_errors_become_one_line():
    assert one_line(ValueError("a\nb")) == "ValueError: a"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(one_line(ValueError("x" * 1000))) == 300


def test_ticks_come_until_cancelled_and_share_a_thread():
    calls: list[str] = []

    def call() -> bool:
        calls.append(threading.current_thread().name)
        return True

    first = call_every(0.01, call)
    second = call_every(0.01, call, delay=0)
    deadline = time.monotonic() + 5
    while len(calls) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    first.cancel()
    second.cancel()
    count = len(calls)
    time.sleep(0.05)
    assert len(calls) == count >= 6
    assert set(calls) == {"gpumem-ticker"}
    shut_down()
    assert "gpumem-ticker" not in {thread.name for thread in threading.enumerate()}


def test_a_tick_that_says_no_is_not_called_again():
    calls: list[int] = []

    def once() -> bool:
        calls.append(1)
        return False

    tick = call_every(0.01, once)
    time.sleep(0.1)
    tick.cancel()
    assert calls == [1]
    shut_down()


def test_what_is_due_earlier_does_not_wait_for_what_is_due_later():
    later = call_every(600, lambda: True)
    came = threading.Event()

    def call() -> bool:
        came.set()
        return False

    call_every(600, call, delay=0.01)
    assert came.wait(60)
    later.cancel()
    shut_down()


def test_the_thread_ends_after_a_while_without_ticks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ticker, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(ticker, "_LOOK_SECONDS", 0.01)
    go_on = threading.Event()
    call_every(0.01, lambda: not go_on.is_set())
    threads = [thread for thread in threading.enumerate() if thread.name == "gpumem-ticker"]
    assert len(threads) == 1
    go_on.set()
    threads[0].join(60)
    assert not threads[0].is_alive()
    came = threading.Event()

    def call() -> bool:
        came.set()
        return False

    call_every(0.01, call)
    assert came.wait(60)
    shut_down()


def test_sampler_takes_samples_after_half_a_second_and_shows_every_third():
    shown: list[float] = []

    def read() -> list[Sample]:
        return [Sample(time.time_ns() // 1000, "cpu", None, None, 1, 2)]

    short = Sampler(read, None, Notes())
    short.start()
    assert short.stop() == ()
    sampler = Sampler(read, lambda _samples, seconds: shown.append(seconds), Notes())
    sampler.start()
    deadline = time.monotonic() + 20
    while len(sampler.samples) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    samples = sampler.stop()
    assert len(samples) >= 5
    # The last one may have been cancelled between being taken and being shown.
    assert (len(samples) + 2) // 3 - len(shown) in {0, 1}
    assert shown[0] >= 0.5
    assert all(later.time_us - sooner.time_us >= 150_000 for sooner, later in pairwise(samples))
    shut_down()


def test_a_failing_reading_ends_sampling_with_a_note():
    notes = Notes()

    def read() -> list[Sample]:
        raise OSError("gone")

    sampler = Sampler(read, None, notes)
    sampler.start()
    deadline = time.monotonic() + 20
    while not notes.freeze() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sampler.stop() == ()
    (note,) = notes.freeze()
    assert "the live line failed (OSError: gone)" in note.text
    shut_down()


def test_live_line_reads():
    line = live_line(
        [Sample(0, "cuda:0", 1 << 30, 2 << 30, 3 << 30, 3 << 30), Sample(0, "cpu", None, None, 1 << 30, 1 << 20)],
        12.4,
        {"cuda:0": 80 << 30},
    )
    assert line == (
        "gpumem: recording │ cuda:0: allocated 1.00 GiB · reserved 2.00 GiB · device used 3.00 GiB of 80.0 GiB"
        " │ cpu: this process 1.00 MiB · host used 1.00 GiB │ 12.4 s"
    )


def test_a_module_of_the_users_that_looks_a_little_like_torch_is_not_torch(monkeypatch):
    for stub in (SimpleNamespace(), SimpleNamespace(_C=1, cuda=SimpleNamespace()), SimpleNamespace(_C=1, cuda=None)):
        monkeypatch.setitem(sys.modules, "torch", stub)
        assert finished_torch() is None
        assert cuda_is_used() is None
