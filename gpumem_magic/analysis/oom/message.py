"""What an out-of-memory error says: torch 2.1 to 2.15 on CUDA, ROCm, XPU, MPS and the CPU, and its libraries.

The texts are those of ``c10/cuda/CUDACachingAllocator.cpp``, ``c10/xpu/XPUCachingAllocator.cpp``,
``aten/src/ATen/mps/MPSAllocator.mm`` and ``c10/core/impl/alloc_cpu.cpp``; torch attaches no numbers to the exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from gpumem_magic._format import format_bytes
from gpumem_magic.analysis.oom.sizes import SIZE, Size, find_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Backend", "Kind", "OomMessage", "ProcessUse", "parse_message"]

Backend: TypeAlias = Literal["cuda", "hip", "xpu", "mps", "cpu", "unknown"]
Kind: TypeAlias = Literal["allocator", "rejected", "absurd", "buffer", "driver", "library", "host", "killed", "shared"]

# A traceback of a worker stands before the text that counts; nobody writes more than this after it.
_LONGEST = 1 << 18
# 1 EB is what torch itself refuses; no device, driver or host holds it.
_IMPOSSIBLE = 1 << 60


class ProcessUse(NamedTuple):
    """A process that the message lists; `used` is None where the number is impossible."""

    pid: int
    used: Size | None


@dataclass(frozen=True)
class OomMessage:
    """The numbers of one message. None means unknown, and `missing` holds the reason under the same name.

    Attributes
    ----------
    backend
        Whose memory ran out; ``"unknown"`` where JAX does not tell a GPU from a TPU or the host.
    kind
        ``"allocator"`` (torch's own, with numbers), ``"rejected"`` (refused before the driver was asked),
        ``"absurd"`` (more than 1 EB), ``"buffer"`` (more than one buffer of MPS may hold), ``"driver"`` (a plain
        driver error), ``"library"`` (cuBLAS, cuDNN, NCCL, JAX, CuPy), ``"host"`` (CPU memory), ``"killed"`` (the system
        ended a loader's worker) or ``"shared"`` (shared memory of a loader's workers).
    device
        Ordinal in the process, None when the text does not tell (and for the CPU).
    tried
        Bytes asked of the driver: for the caching allocators the segment, not the tensor.
    total, free
        The device's bytes, and those that the driver had left.
    allowed
        Most bytes that this process may reserve, where a limit is set.
    allocated
        Bytes in use by torch, *free* blocks of private pools included.
    private_pools
        Of these, bytes in private pools.
    unallocated
        Reserved by torch and not allocated.
    this_process
        All that this process holds on the device, torch's and the rest.
    other
        MPS: bytes that the process allocated past torch's allocator.
    processes
        Others on the device, as far as the driver lists them (in a container this process may be among them).
    worker
        ``"DataLoader worker process 0"`` where the error came from another process, or None.
    missing
        Why a number is None.
    thread
        ``"replica 1 on device 1"`` where the error came from another thread of this process, or None.
    """

    backend: Backend
    kind: Kind
    device: int | None = None
    tried: Size | None = None
    total: Size | None = None
    free: Size | None = None
    allowed: Size | None = None
    allocated: Size | None = None
    private_pools: Size | None = None
    unallocated: Size | None = None
    this_process: Size | None = None
    other: Size | None = None
    processes: tuple[ProcessUse, ...] = ()
    worker: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    thread: str | None = None

    @property
    def reserved(self) -> Size | None:
        """Bytes that torch held in segments: `allocated` and `unallocated`."""
        if self.allocated is None or self.unallocated is None:
            return None
        return self.allocated.plus(self.unallocated)


# name → what stands around the size.
_DEVICE_NUMBERS = {
    "tried": r"Tried to allocate {size}",
    # torch 2.1 wrote "capacty".
    "total": r"total capac(?:i)?ty of {size}",
    "free": r"of which {size} is free",
    "allowed": r"{size} allowed;",
    "allocated": r"Of the allocated memory {size} is allocated by PyTorch",
    "private_pools": r"with {size} allocated in private pools",
    "unallocated": r"{size} is reserved by PyTorch but unallocated",
    "this_process": r"this process has {size} memory in use",
}
# torch 2.0 and older put everything into one pair of brackets.
_OLD_NUMBERS = {
    "total": r"{size} total capacity",
    "allocated": r"{size} already allocated",
    "free": r"already allocated; {size} free",
    "reserved": r"{size} reserved in total by PyTorch",
}
_MPS_NUMBERS = {
    "tried": r"Tried to allocate {size}",
    "allocated": r"MPS allocated: {size}",
    "other": r"other allocations: {size}",
    "allowed": r"max allowed: {size}",
}
_REJECTED_NUMBERS = {
    "tried": r"[Rr]equested size: {size}",
    "allowed": r"(?:[Ll]imit|[Aa]llowed)[^:;.]{0,40}: {size}",
    "total": r"(?:[Tt]otal|[Cc]apacity)[^:;.]{0,40}: {size}",
}
_HOST = re.compile(r"you tried to allocate (\d{1,24}) bytes")
_OTHERS = re.compile(r"(?:allocate|allocating) (\d[\d,]{0,30}) bytes")
_ROCM = re.compile(r"\bROCM|\bhip[A-Z_]|\brocm")
_NVIDIA = re.compile(r"\bcuda|\bGPU(?:_\d|\b)|/device:GPU|allocated so far", re.IGNORECASE)
_NUMPY = re.compile(rf"Unable to allocate {SIZE}")
_BEGIN = re.compile(
    r"(?P<torch>(?:CUDA|HIP|XPU) out of memory\.)|(?P<mps>MPS backend out of memory)|(?P<buffer>Invalid buffer size: )"
    r"|(?P<other>RESOURCE_EXHAUSTED: Out of memory|Out of memory allocating )"
    r"|(?P<driver>(?:CUDA|HIP) error: out of memory|\bout of memory\b|\w*_ERROR_OUT_OF_(?:DEVICE_|HOST_)?MEMORY"
    r"|hipErrorOutOfMemory)"
    r"|(?P<library>(?:CU|HIP|ROC)[A-Z]{2,12}_STATUS_(?:ALLOC_FAILED|NOT_ENOUGH_WORKSPACE)"
    r"|Failed to CUDA (?:m|c)alloc|CUDA failure 2\b)"
    r"|(?P<host>DefaultCPUAllocator: (?:can't|not enough)|not enough memory: you tried|Unable to allocate \d"
    r"|\bMemoryError\b)"
)
_WORKER = re.compile(r"Caught \w{1,80} in (.{1,80}?)\.")
_ENDED = re.compile(
    r"(?P<who>DataLoader worker \(pid \d{1,10}\)) is killed by signal: "
    r"(?:(?P<killed>Killed\b)|[^.]{1,40}\. It is possible that dataloader's workers are out of shared memory)"
)
_CUT_SHORT = "torch 2.3 ends its message before the numbers"
_NOT_SAID = "the message does not say"


def parse_message(text: str) -> OomMessage | None:
    """Read an out-of-memory error. Never raises.

    Parameters
    ----------
    text
        The exception's text; what a worker process or a library puts around it may stand there too.

    Returns
    -------
    OomMessage or None
        What it says, or None when it is no out-of-memory error.
    """
    text = text[-_LONGEST:]
    ended = _ENDED.search(text)
    if ended is not None:
        missing = dict.fromkeys(_DEVICE_NUMBERS, "a worker that was ended says nothing")
        kind: Kind = "killed" if ended["killed"] else "shared"
        return OomMessage("cpu", kind, worker=ended["who"], missing=missing)
    # The most telling text wins, wherever it stands: a library's error may quote the allocator's.
    found = {str(match.lastgroup): match for match in reversed(list(_BEGIN.finditer(text)))}
    worker = _WORKER.search(text)
    message = _read(text, found)
    if message is None or worker is None:
        return message
    # DataParallel's replicas and the loader's pinning run on threads of this process.
    is_process = "process" in worker[1]
    return replace(message, worker=worker[1]) if is_process else replace(message, thread=worker[1])


def _read(text: str, found: Mapping[str, re.Match[str]]) -> OomMessage | None:
    if "torch" in found:
        begin = found["torch"]
        backend: Backend = "xpu" if begin[0].startswith("XPU") else "hip" if begin[0].startswith("HIP") else "cuda"
        return _read_device(text[begin.start() :], backend)
    if "mps" in found:
        return _finish("mps", "allocator", _sizes(_MPS_NUMBERS, text[found["mps"].start() :]), None)
    if "buffer" in found:
        return _finish("mps", "buffer", _sizes({"tried": "Invalid buffer size: {size}"}, text), None)
    if "other" in found:
        # JAX and CuPy have allocators of their own on the same device.
        tried = _OTHERS.search(text)
        missing = dict.fromkeys(_DEVICE_NUMBERS, "another library's allocator asked the driver, past torch's")
        owner = _other_backend(text)
        if owner == "unknown":
            missing["device"] = "the message says of no device that it ran out: a GPU, a TPU or the host"
        size = None if tried is None else Size.exact(int(tried[1].replace(",", "")))
        return OomMessage(owner, "library", tried=size, missing=missing)
    if "host" in found:
        return _read_host(text)
    hip = "hip" in text.lower() or "ROC" in text
    xpu = "UR_RESULT_ERROR" in text or "level_zero" in text.lower()
    if "library" in found:
        reason = "a library asked the driver itself, past torch's allocator"
        return OomMessage("hip" if hip else "cuda", "library", missing=dict.fromkeys(_DEVICE_NUMBERS, reason))
    if "driver" in found:
        reason = "a plain driver error carries no numbers"
        return OomMessage(
            "xpu" if xpu else "hip" if hip else "cuda", "driver", missing=dict.fromkeys(_DEVICE_NUMBERS, reason)
        )
    return None


def _other_backend(text: str) -> Backend:
    """Return whose memory another library ran out of: JAX says the same on a GPU, a TPU and the host."""
    if _ROCM.search(text):
        return "hip"
    # CuPy alone counts what it allocated so far, and has memory of GPUs only.
    return "cuda" if _NVIDIA.search(text) else "unknown"


def _sizes(patterns: Mapping[str, str], text: str) -> dict[str, Size | None]:
    return {name: find_size(pattern, text) for name, pattern in patterns.items()}


def _read_device(text: str, backend: Backend) -> OomMessage:
    if "more than 1EB" in text[:200]:
        reason = "torch refused before asking the driver"
        return OomMessage(backend, "absurd", missing=dict.fromkeys(_DEVICE_NUMBERS, reason))
    if "preemptively rejected" in text[:200]:
        return _finish(backend, "rejected", _sizes(_REJECTED_NUMBERS, text), _device(text))
    sizes = _sizes(_DEVICE_NUMBERS, text)
    old = _sizes(_OLD_NUMBERS, text)
    if old["reserved"] is not None:
        for name in ("total", "allocated", "free"):
            sizes[name] = sizes[name] or old[name]
        if old["allocated"] is not None:
            sizes["unallocated"] = old["reserved"].minus(old["allocated"])
    processes = tuple(
        ProcessUse(int(match[1]), parse_size(match[2], match[3]))
        for match in re.finditer(rf"Process (\d{{1,10}}) has {SIZE} memory in use", text)
    )
    cut = re.search(r"\. GPU (?:\W{0,2})$", text.rstrip("\n")) is not None
    reason = _CUT_SHORT if cut else _NOT_SAID
    return _finish(backend, "allocator", sizes, _device(text), processes=processes, reason=reason)


def _device(text: str) -> int | None:
    found = re.search(r"\bGPU (\d{1,4}|[\x00-\x1f])(?=\D)", text)
    if found is None:
        return None
    # torch 2.3 printed the number as a character.
    return int(found[1]) if found[1].isdigit() else ord(found[1])


def _read_host(text: str) -> OomMessage:
    exact, rounded = _HOST.search(text), _NUMPY.search(text)
    tried = None
    if exact is not None:
        tried = Size.exact(int(exact[1]))
    elif rounded is not None:
        tried = parse_size(rounded[1], rounded[2])
    missing = {} if tried is not None else {"tried": _NOT_SAID}
    missing |= dict.fromkeys(("total", "free", "allocated", "this_process"), "CPU errors carry the request alone")
    return OomMessage("cpu", "host", tried=tried, missing=missing)


def _finish(
    backend: Backend,
    kind: Kind,
    sizes: Mapping[str, Size | None],
    device: int | None,
    *,
    processes: tuple[ProcessUse, ...] = (),
    reason: str = _NOT_SAID,
) -> OomMessage:
    """Put the numbers together; impossible ones go, with a reason."""
    missing = {name: reason for name, size in sizes.items() if size is None}
    kept = dict(sizes)
    total = sizes.get("total")
    for name, size in sizes.items():
        if name == "tried" or size is None:
            continue
        problem = _impossible(name, size, total)
        if problem is not None:
            kept[name], missing[name] = None, problem
    checked = tuple(
        use if use.used is None or _impossible("process", use.used, total) is None else ProcessUse(use.pid, None)
        for use in processes
    )
    return OomMessage(backend, kind, device=device, processes=checked, missing=missing, **kept)  # type: ignore[arg-type]


def _impossible(name: str, size: Size, total: Size | None) -> str | None:
    """Say why a number cannot be true. Under WSL and Windows the driver gives all ones for "not available"."""
    if size.low >= _IMPOSSIBLE:
        return f"the message says {format_bytes(size.value)}, which is the driver's word for unknown"
    if name in {"total", "allowed"} or total is None or size.low <= total.high:
        return None
    if name in {"allocated", "unallocated", "private_pools"}:
        # These are torch's own counters: true, and then part of them lies in the host's memory.
        return None
    return f"the message says {format_bytes(size.value)}, more than the device holds ({format_bytes(total.value)})"
