"""Out-of-memory texts of every torch since 2.0, as printed, against the numbers in them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.analysis.oom.message import OomMessage, parse_message
from gpumem_magic.analysis.oom.sizes import Size, parse_size

MIB, GIB = 1 << 20, 1 << 30
REAL = Path(__file__).parents[2] / "data" / "oom" / "messages.json"

HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
V20 = (
    "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 1; 15.78 GiB total capacity; 13.20 GiB already allocated; "
    "512.75 MiB free; 14.10 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation."
)
V21 = (
    "CUDA out of memory. Tried to allocate 5.96 GiB. GPU 0 has a total capacty of 23.69 GiB of which 5.25 GiB is free. "
    "Process 2006998 has 256.00 MiB memory in use. Including non-PyTorch memory, this process has 18.17 GiB memory in "
    "use. Of the allocated memory 17.88 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
)
V22 = V21.replace("capacty", "capacity")
V23_FIRST = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU "
V23_SECOND = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU \x01 has a total capacity of 23.69 GiB of which 1.25 GiB is "
    "free. Including non-PyTorch memory, this process has 22.40 GiB memory in use. Of the allocated memory 21.00 GiB "
    "is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated." + HINT
)
V24 = (
    "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 138.08 GiB is "
    "free. Including non-PyTorch memory, this process has 874.00 MiB memory in use. Process 1404 has 834.00 MiB memory "
    "in use. Process 1413 has 30.00 MiB memory in use. 150.01 MiB allowed; Of the allocated memory 123.02 MiB is "
    "allocated by PyTorch, with 20.00 MiB allocated in private pools (e.g., CUDA Graphs), and 4.98 MiB is reserved by "
    "PyTorch but unallocated." + HINT
)
HIP = V24.replace("CUDA out", "HIP out").replace("CUDA Graphs", "HIP Graphs")
XPU = (
    "XPU out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 11.93 GiB of which 5.62 MiB is "
    "free. Of the allocated memory 10.43 GiB is allocated by PyTorch, and 94.57 MiB is reserved by PyTorch but "
    "unallocated. Please use `empty_cache` to release all unoccupied cached memory."
)
REJECTED = (
    "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
    "limit. Requested size: 4.00 GiB"
)
ABSURD = "CUDA out of memory. Tried to allocate more than 1EB memory."
MPS_OLD = (
    "MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 613.56 MB, max allowed: 18.13 GB). Tried "
    "to allocate 192.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
    "allocations (may cause system failure)."
)
MPS = MPS_OLD.replace(" GB", " GiB").replace(" MB", " MiB").replace("private pool", "shared pool")
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
)
CPU_WINDOWS = (
    "[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried to allocate "
    "40000000000 bytes."
)
NUMPY = "Unable to allocate 8.00 PiB for an array with shape (1125899906842624,) and data type float64"
WSL = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 16.00 GiB of which 0 bytes is "
    "free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory "
    "30.12 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)
DRIVER = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call."
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NCCL = "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc async 608 bytes"
WORKER = (
    "Caught OutOfMemoryError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
    '  File "worker.py", line 309, in _worker_loop\ntorch.OutOfMemoryError: ' + V24
)

ALL = {
    "2.0": V20,
    "2.1": V21,
    "2.2": V22,
    "2.3 first device": V23_FIRST,
    "2.3 second device": V23_SECOND,
    "2.4+": V24,
    "hip": HIP,
    "xpu": XPU,
    "rejected": REJECTED,
    "absurd": ABSURD,
    "mps old": MPS_OLD,
    "mps": MPS,
    "cpu": CPU,
    "cpu windows": CPU_WINDOWS,
    "numpy": NUMPY,
    "wsl": WSL,
    "driver": DRIVER,
    "cublas": CUBLAS,
    "nccl": NCCL,
    "worker": WORKER,
}


def read(text):
    message = parse_message(text)
    assert message is not None
    return message


def mib(text):
    return None if text is None else round(text.value / MIB, 2)


def test_sizes_keep_the_precision_of_the_text():
    size = parse_size("1.66", "GiB")
    assert size.low <= 1.66 * GIB <= size.high
    assert size.high - size.low == pytest.approx(0.01 * GIB, abs=2)
    assert parse_size("512", "bytes") == Size(512, 512)
    assert parse_size("512", "bytes").is_exact
    # MPS wrote GB and divided by 1024³ all the same.
    assert parse_size("2.00", "GB") == parse_size("2.00", "GiB")


def test_every_text_of_torch_2_4_and_later_gives_every_number():
    for text in (V24, HIP):
        message = read(text)
        assert (message.kind, message.device) == ("allocator", 0)
        assert mib(message.tried) == 32
        assert mib(message.total) == round(139.80 * 1024, 2)
        assert mib(message.free) == round(138.08 * 1024, 2)
        assert mib(message.allowed) == 150.01
        assert mib(message.allocated) == 123.02
        assert mib(message.private_pools) == 20
        assert mib(message.unallocated) == 4.98
        assert mib(message.reserved) == 128
        assert mib(message.this_process) == 874
        assert [(use.pid, mib(use.used)) for use in message.processes] == [(1404, 834), (1413, 30)]
        assert not message.missing
    assert read(V24).backend == "cuda"
    assert read(HIP).backend == "hip"


def test_torch_2_1_misspells_capacity_and_2_2_does_not():
    for text in (V21, V22):
        message = read(text)
        assert mib(message.total) == round(23.69 * 1024, 2)
        assert message.unallocated == Size(0, 0)
        assert [use.pid for use in message.processes] == [2006998]
        assert message.missing == {"allowed": "the message does not say", "private_pools": "the message does not say"}


def test_torch_2_0_has_its_numbers_in_brackets():
    message = read(V20)
    assert message.device == 1
    assert mib(message.tried) == 1.5 * 1024
    assert mib(message.free) == 512.75
    assert mib(message.unallocated) == pytest.approx(0.9 * 1024, abs=11)


def test_torch_2_3_prints_the_device_as_a_character():
    first = read(V23_FIRST)
    assert mib(first.tried) == 2048
    assert first.total is None
    assert first.missing["total"] == "torch 2.3 ends its message before the numbers"
    second = read(V23_SECOND)
    assert second.device == 1
    assert mib(second.unallocated) == 900


def test_other_backends():
    xpu = read(XPU)
    assert (xpu.backend, mib(xpu.tried), mib(xpu.unallocated)) == ("xpu", 20, 94.57)
    for text in (MPS, MPS_OLD):
        mps = read(text)
        assert mps.backend == "mps"
        assert mib(mps.tried) == 192
        assert mib(mps.other) == 613.56
        assert mib(mps.allowed) == round(18.13 * 1024, 2)
    cpu = read(CPU)
    assert (cpu.backend, cpu.kind, cpu.tried) == ("cpu", "host", Size(1 << 52, 1 << 52))
    assert read(CPU_WINDOWS).tried == Size(40000000000, 40000000000)
    assert read(NUMPY).tried.value == 8 << 50


def test_texts_without_numbers_say_why():
    assert read(ABSURD).kind == "absurd"
    assert read(DRIVER).kind == "driver"
    assert read(DRIVER).missing["free"] == "a plain driver error carries no numbers"
    for text in (CUBLAS, NCCL):
        assert read(text).kind == "library"
        assert "past torch's allocator" in read(text).missing["tried"]


def test_a_rejection_before_the_driver_was_asked():
    message = read(REJECTED)
    assert (message.kind, mib(message.tried)) == ("rejected", 4096)


def test_impossible_numbers_are_refused_with_a_reason():
    message = read(WSL)
    assert message.this_process is None
    assert "driver's word for unknown" in message.missing["this_process"]
    # Torch's own counters are true: part of it lies in the host's memory.
    assert mib(message.allocated) == round(30.12 * 1024, 2)
    too_much = read(WSL.replace("17179869184.00", "31.50"))
    assert too_much.this_process is None
    assert "more than the device holds (16.0 GiB)" in too_much.missing["this_process"]
    listed = read(V24.replace("834.00 MiB", "17179869184.00 GiB"))
    assert [use.used is None for use in listed.processes] == [True, False]


def test_a_workers_error_is_found_inside_its_traceback():
    message = read(WORKER)
    assert message.worker == "DataLoader worker process 3"
    assert mib(message.tried) == 32


@pytest.mark.parametrize("text", ["", "shape mismatch", "memory", "CUDA error: invalid device ordinal"])
def test_other_errors_are_none_of_ours(text):
    assert parse_message(text) is None


def test_real_messages_of_an_h200():
    rows = json.loads(REAL.read_text("utf-8"))
    assert len(rows) > 20
    for row in rows:
        message = read(row["message"])
        assert set(message.missing) <= {"private_pools", "this_process"}
        # What failed did not fit under the limit, to the precision of two decimals.
        assert message.reserved.plus(message.tried).high > message.allowed.low
        assert message.allowed.low <= row["cap_gib"] * GIB <= message.allowed.high


def fields_are_whole(message):
    for field in dataclasses.fields(OomMessage):
        value = getattr(message, field.name)
        assert value is None or not isinstance(value, Size) or 0 <= value.low <= value.high


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(ALL)), st.data())
def test_mutilated_texts_never_raise(name, data):
    text = ALL[name]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(at + 40, len(text))))
        text = text[:at] + data.draw(st.text(max_size=12)) + text[end:]
    message = parse_message(text)
    if message is not None:
        fields_are_whole(message)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_never_raises(text):
    parse_message(text)
    message = parse_message("CUDA out of memory. Tried to allocate " + text)
    assert message is not None
    fields_are_whole(message)


OTHERS = {
    "xpu 2.4": (
        (
            "XPU out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.91 GiB total capacity; 4.33 GiB already "
            "allocated; 4.37 GiB reserved in total by PyTorch)"
        ),
        ("xpu", "allocator", 20),
    ),
    "xpu driver": (
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        ("xpu", "driver", None),
    ),
    "rocm driver": (
        "HIP error: out of memory\nHIP kernel errors might be asynchronously reported",
        ("hip", "driver", None),
    ),
    "numba": ("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", ("cuda", "driver", None)),
    "jax": (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
        ("unknown", "library", 8192),
    ),
    "jax on a GPU": (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes on GPU_0_bfc.",
        ("cuda", "library", 8192),
    ),
    "cupy": (
        "Out of memory allocating 1,610,612,736 bytes (allocated so far: 12,884,901,888 bytes).",
        ("cuda", "library", 1536),
    ),
    "nccl": (
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        ("cuda", "driver", None),
    ),
    "cudnn": ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", ("cuda", "library", None)),
    "rocblas": (
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        ("hip", "library", None),
    ),
    "mps buffer": ("Invalid buffer size: 77.40 GiB", ("mps", "buffer", round(77.4 * 1024, 2))),
    "python": ("MemoryError", ("cpu", "host", None)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_backends_and_libraries_say(name):
    text, (backend, kind, tried) = OTHERS[name]
    message = read(text)
    assert (message.backend, message.kind, mib(message.tried)) == (backend, kind, tried)


@pytest.mark.parametrize(
    ("begin", "worker", "thread"),
    [
        ("Caught OutOfMemoryError in DataLoader worker process 3.", "DataLoader worker process 3", None),
        ("Caught RuntimeError in pin memory thread for device 0.", None, "pin memory thread for device 0"),
        ("Caught OutOfMemoryError in replica 1 on device 1.", None, "replica 1 on device 1"),
    ],
)
def test_threads_of_this_process_are_no_workers(begin, worker, thread):
    message = read(f"{begin}\nOriginal Traceback (most recent call last):\n{V24}")
    assert (message.worker, message.thread, mib(message.tried)) == (worker, thread, 32)
