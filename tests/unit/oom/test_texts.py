"""Verdicts from an error's text and readings alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from by_hand.oom import ALLOWED, GIB, MIB, cell, cuda, from_text, full_card, reading
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.analysis.oom import Cause
from gpumem_magic.analysis.oom.message import parse_message
from gpumem_magic.recording.failure import is_out_of_memory
from gpumem_magic.recording.model import (
    DeviceReading,
    Failure,
)

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (cuda("77.40 GiB", "38.60 GiB", "30.00 GiB", "8.60 GiB", "7.90 GiB", "200.00 MiB"), Cause.REQUEST, "77.4 GiB"),
        (cuda("2.00 GiB", "15.78 GiB", "1.20 GiB", "14.50 GiB", "9.00 GiB", "5.00 GiB"), Cause.FRAGMENTATION, "likely"),
        (cuda("20.00 MiB", "11.93 GiB", "5.62 MiB", "11.92 GiB", "11.40 GiB", "94.57 MiB"), Cause.DEMAND, "up to"),
        (cuda("20.00 MiB", "11.17 GiB", "12.50 MiB", "0.90 GiB", "506.00 MiB", "24.00 MiB"), Cause.OTHERS, "10.3 GiB"),
        (
            cuda("20.00 MiB", "11.17 GiB", "12.50 MiB", None, "506.00 MiB", "24.00 MiB"),
            Cause.OTHERS,
            "the driver does not tell which",
        ),
        (cuda("8.00 GiB", "79.00 GiB", "1.00 GiB", "78.00 GiB", "20.00 GiB", "1.00 GiB"), Cause.OUTSIDE, "57.0 GiB"),
        (
            cuda("16.00 MiB", "139.80 GiB", "138.13 GiB", "1.66 GiB", "1023.00 MiB", "1.00 MiB", ALLOWED),
            Cause.LIMIT,
            "1.00 GiB",
        ),
        # A segment is what torch names: the request was rounded up to it by less than 2 MiB.
        (
            cuda("700.00 MiB", "139.80 GiB", "137.31 GiB", "1.97 GiB", "1.46 GiB", "0 bytes", ALLOWED),
            Cause.LIMIT,
            "it asked for 698 to 700 MiB",
        ),
        (
            cuda("8.00 GiB", "79.00 GiB", "1.00 GiB", "78.00 GiB", "20.00 GiB", "1.00 GiB"),
            Cause.OUTSIDE,
            "for 8.00 GiB",
        ),
        (
            (
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                "per_process_memory_fraction limit. Requested size: 4.00 GiB"
            ),
            Cause.LIMIT,
            "the driver was not asked",
        ),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", Cause.REQUEST, "overflowed"),
        (
            (
                "MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 613.56 MB, max allowed: 18.13 "
                "GB). Tried to allocate 192.00 MB on private pool."
            ),
            Cause.DEMAND,
            "live tensors really hold 17.4 GiB of the Mac's 18.1 GiB",
        ),
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU ", Cause.UNKNOWN, "the numbers at hand do not tell"),
        ("CUDA error: out of memory", Cause.UNKNOWN, "without numbers"),
    ],
)
def test_from_the_errors_text_alone(text, cause, words):
    found = from_text(text)
    assert found.cause is cause, found.sentence
    assert words in found.sentence
    assert found.sentence.startswith("Out of memory at line 4 `c = torch.empty(n)`: ")


def test_a_container_lists_this_process_under_a_strange_number():
    more = "Process 3652628 has 47.51 GiB memory in use. "
    found = from_text(cuda("256.00 MiB", "47.53 GiB", "16.88 MiB", None, "47.14 GiB", "57.79 MiB", more))
    assert found.cause is Cause.DEMAND
    assert found.evidence.process.value == pytest.approx(47.51 * GIB, rel=1e-3)


def test_a_driver_error_is_judged_by_the_readings():
    others = reading(reserved=GIB, allocated=GIB, others=78 * GIB)
    assert from_text("CUDA error: out of memory", after=others).cause is Cause.OTHERS
    cached = reading(reserved=78 * GIB, allocated=8 * GIB, outside=GIB)
    found = from_text("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", after=cached)
    assert found.cause is Cause.OUTSIDE
    assert found.suggestions[0] == "call torch.cuda.empty_cache() before this line: it gives back up to 70.0 GiB"


@pytest.mark.parametrize(
    ("size", "used", "own", "cause"),
    [
        (1 << 50, 8, 1, Cause.REQUEST),
        (20 * GIB, 20, 16, Cause.DEMAND),
        (20 * GIB, 26, 1, Cause.OTHERS),
        (4 * GIB, 8, 1, Cause.LIMIT),
    ],
)
def test_the_cpu(size, used, own, cause):
    host = DeviceReading("cpu", 0, process_used=own * GIB, device_used=used * GIB, device_total=32 * GIB)
    text = (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        f"allocate {size} bytes. Error code 12 (Cannot allocate memory)"
    )
    found = from_text(text, after=host)
    assert found.cause is cause, found.sentence


def test_a_workers_error_is_not_explained_with_this_process_numbers():
    heap = full_card()
    text = (
        "Caught OutOfMemoryError in DataLoader worker process 3.\nOriginal Traceback:\ntorch.OutOfMemoryError: "
        + cuda("2.00 GiB", "80.00 GiB", "100.00 MiB", "79.00 GiB", "78.00 GiB", "10.00 MiB")
    )
    found = cell(heap, after=reading(heap), failure=Failure(text)).oom
    assert found.evidence.state is None
    assert "in DataLoader worker process 3" in found.sentence
    assert "whose memory is not recorded here" in found.unknown[0]


@pytest.mark.parametrize(("size", "cause"), [(64 * GIB, Cause.REQUEST), (4 * GIB, Cause.UNKNOWN)])
def test_a_workers_request_beyond_the_machine_is_that(size, cause):
    # How much the machine has is the same there; what this process and the others hold now tells nothing of then.
    host = DeviceReading("cpu", 0, process_used=2 * GIB, device_used=30 * GIB, device_total=32 * GIB)
    text = (
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback:\nRuntimeError: [enforce fail at "
        f"alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes."
    )
    found = from_text(text, after=host)
    assert found.cause is cause, found.sentence
    assert found.evidence.process is None
    assert not any("%%gpumem" in text for text in found.suggestions)
    if cause is Cause.UNKNOWN:
        assert found.suggestions[0].startswith(
            "run what DataLoader worker process 0 does in this process (num_workers=0)"
        )


def test_an_older_failure_that_was_caught_is_not_taken_for_this_one():
    heap = full_card()
    text = cuda("512.00 MiB", "80.00 GiB", "100.00 MiB", "79.00 GiB", "78.00 GiB", "10.00 MiB")
    found = cell(heap, after=reading(heap), failure=Failure(text)).oom
    assert found.evidence.state is None
    assert found.evidence.segment.value == 512 * MIB


def test_real_messages_get_a_verdict_that_their_counters_support():
    for row in json.loads((DATA / "oom" / "messages.json").read_text("utf-8")):
        found = from_text(row["message"])
        # All of them ran under a limit far below the card.
        assert found.cause in {Cause.LIMIT, Cause.FRAGMENTATION}, (row, found.sentence)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_combination_of_missing_numbers_gets_a_verdict(data):
    sizes = st.sampled_from(["0 bytes", "512 bytes", "2.00 MiB", "20.00 MiB", "1.00 GiB", "79.99 GiB", "9e9 GiB", ""])
    text = cuda(*(data.draw(sizes) for _ in range(6)))
    numbers = st.none() | st.integers(0, 1 << 45)
    after = DeviceReading(
        "cuda:0",
        0,
        **{
            field.name: data.draw(numbers)
            for field in dataclasses.fields(DeviceReading)
            if field.name in {"allocated", "reserved", "process_used", "device_used", "device_total", "limit"}
        },
    )
    kind = data.draw(st.sampled_from([text, "CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory"]))
    found = from_text(kind, after=after)
    assert found.sentence.endswith(".")
    assert found.suggestions
    assert all("\n" not in line for line in found.lines())


def host_only(text, *, process, used, limit=None):
    """A failure without torch: nothing but its text and the host."""
    host = DeviceReading("cpu", 0, process_used=process, device_used=used, device_total=32 * GIB, limit=limit)
    return from_text(text, host=host)


@pytest.mark.parametrize(
    ("host", "cause", "words", "first"),
    [
        (
            {"process": GIB, "used": 2 * GIB},
            Cause.UNKNOWN,
            "names no size, and the machine had 30.0 GiB of 32.0 GiB free right after it: this line asked for",
            "look at the size that this line asks for",
        ),
        (
            {"process": GIB, "used": 2 * GIB, "limit": 4 * GIB},
            Cause.LIMIT,
            "a limit on this process (ulimit -v lets it address 4.00 GiB) is the likely reason",
            "look at `ulimit -v`",
        ),
        (
            {"process": 30 * GIB, "used": 32 * GIB - 64 * MIB},
            Cause.DEMAND,
            "this process really holds 30.0 GiB of the machine's 32.0 GiB",
            "make this request smaller",
        ),
        (
            {"process": GIB, "used": 32 * GIB - 64 * MIB},
            Cause.OTHERS,
            "it found the machine full, with 64.0 MiB free; other processes hold 30.9 GiB",
            "close what else runs on this machine",
        ),
    ],
)
def test_a_bare_memory_error_is_judged_by_the_host(host, cause, words, first):
    found = host_only("MemoryError", **host)
    assert found.cause is cause, found.sentence
    assert words in found.sentence
    assert found.suggestions[0].startswith(first)
    assert not any("gpumem" in text for text in found.suggestions)


def test_numpys_request_beyond_the_machine_needs_no_torch():
    found = host_only("Unable to allocate 64.0 GiB for an array with shape (8589934592,)", process=GIB, used=2 * GIB)
    assert found.cause is Cause.REQUEST
    assert "more than the whole machine holds (32.0 GiB)" in found.sentence


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU "])
def test_only_a_cell_that_was_not_measured_is_told_to_measure_it(text):
    for is_measured in (True, False):
        found = from_text(text, is_measured=is_measured)
        assert found.cause is Cause.UNKNOWN
        assert any("run it under %%gpumem" in one for one in found.suggestions) is not is_measured


def test_the_first_thing_to_do_does_not_begin_with_or():
    found = from_text(cuda("2.00 GiB", "15.78 GiB", "1.20 GiB", "14.50 GiB", "9.00 GiB", "5.00 GiB"))
    assert found.suggestions[0].startswith("restart the kernel and begin with")
    assert "  do: restart the kernel and begin with" in found.text()


ENDED = "DataLoader worker (pid 4242) is killed by signal: {}."


def test_a_worker_that_the_system_ended_is_most_likely_out_of_memory():
    found = from_text(ENDED.format("Killed"))
    assert found.cause is Cause.UNKNOWN
    begins = (
        "Most likely out of memory at line 4 `c = torch.empty(n)` in DataLoader worker (pid 4242): the system ended"
    )
    assert found.sentence.startswith(begins)
    assert found.suggestions[0].startswith("use fewer workers")
    assert "dmesg" in found.suggestions[1]


def test_shared_memory_of_a_loaders_workers():
    more = "Bus error. It is possible that dataloader's workers are out of shared memory"
    found = from_text(ENDED.format(more))
    assert found.cause is Cause.LIMIT
    assert "the shared memory (/dev/shm) is full" in found.sentence
    assert "--shm-size" in found.suggestions[0]


@pytest.mark.parametrize("signal", ["Segmentation fault", "Terminated", "Aborted"])
def test_workers_that_end_for_another_reason(signal):
    assert parse_message(ENDED.format(signal)) is None
    assert not is_out_of_memory(RuntimeError(ENDED.format(signal)))
