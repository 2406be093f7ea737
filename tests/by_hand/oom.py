"""A device's allocator by hand, and cells that ran out of its memory."""

from __future__ import annotations

import numpy as np

from gpumem_magic.analysis import analyse
from gpumem_magic.holders.model import Category, Holder, HolderKind, HolderScan, Storage
from gpumem_magic.recording.model import (
    Cell,
    DeviceReading,
    Failure,
    Marks,
    Outcome,
    Recording,
    SourceKind,
)
from gpumem_magic.trace.model import Action, Block, BlockState, DeviceTrace, Events, Segment, StackTable, Trace

MIB, GIB = 1 << 20, 1 << 30
START = 1_700_000_000_000_000
FILE = "cell.py"
CELL = Cell(3, None, "%%gpumem\na = make()\nb = model(a)\nc = torch.empty(n)\n", (FILE,))
DEFAULTS = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}
ALLOWED = "1024.00 MiB allowed; "


class Heap:
    """A device's allocator by hand: addresses are chosen, the events and the final state follow."""

    def __init__(self):
        self.events, self.lines = [], []
        self.segments = {}  # address → (size, stream, pool)
        self.blocks = {}  # address → size
        self.old = 0

    def _event(self, action, address, size, line=0, stream=0):
        self.events.append((action, address, size, stream, START + 10 * len(self.events)))
        self.lines.append(line)

    def segment(self, address, size, stream=0, pool=(0, 0), *, recorded=True):
        self.segments[address] = (size, stream, pool)
        if recorded:
            self._event(Action.SEGMENT_ALLOC, address, size, stream=stream)

    def release(self, address):
        """Give an empty segment back to the driver."""
        size, stream, _ = self.segments.pop(address)
        self._event(Action.SEGMENT_FREE, address, size, stream=stream)

    def alloc(self, address, size, line, stream=0):
        self.blocks[address] = size
        self._event(Action.ALLOC, address, size, line, stream)

    def before(self, address, size):
        """In use before the cell."""
        self.blocks[address] = size

    def free(self, address):
        size = self.blocks.pop(address)
        self._event(Action.FREE_REQUESTED, address, size)
        self._event(Action.FREE_COMPLETED, address, size)

    def oom(self, size, free, line=4):
        self._event(Action.OOM, free, size, line)

    def device(self):
        segments = []
        for at, (size, stream, pool) in sorted(self.segments.items()):
            blocks, cursor = [], at
            for address in sorted(address for address in self.blocks if at <= address < at + size):
                if address > cursor:
                    blocks.append(Block(cursor, address - cursor, 0, BlockState.INACTIVE, 0))
                length = self.blocks[address]
                blocks.append(Block(address, length, length, BlockState.ACTIVE_ALLOCATED, 0))
                cursor = address + length
            if cursor < at + size:
                blocks.append(Block(cursor, at + size - cursor, 0, BlockState.INACTIVE, 0))
            small = size == 2 * MIB
            segments.append(Segment(at, size, stream, small, pool, is_expandable=False, stack=0, blocks=tuple(blocks)))
        action, address, size, stream, time_us = zip(*self.events, strict=True)
        events = Events(
            np.array(action, np.uint8),
            np.array(address, np.uint64),
            np.array(size, np.int64),
            np.array(stream, np.int64),
            np.array(time_us, np.int64),
            np.zeros(len(action), np.int32),
            np.full(len(action), -1, np.int32),
        )
        return DeviceTrace(0, "cuda", events, tuple(segments))

    def marks(self):
        places = tuple(((FILE, line, "<module>"),) for line in range(5))
        times = np.array([event[4] for event in self.events], np.int64)
        return Marks(times, np.ones(len(times), np.int64), np.array(self.lines, np.int32), places)


def reading(heap=None, *, total=80 * GIB, limit=None, outside=GIB // 2, others=0, **fields):
    reserved = sum(size for size, _, _ in heap.segments.values()) if heap is not None else fields.pop("reserved", 0)
    allocated = sum(heap.blocks.values()) if heap is not None else fields.pop("allocated", 0)
    return DeviceReading(
        "cuda:0",
        START + 10_000,
        allocated=allocated,
        reserved=reserved,
        process_used=reserved + outside,
        device_used=reserved + outside + others,
        device_total=total,
        limit=total if limit is None else limit,
        **fields,
    )


def cell(
    heap=None,
    *,
    after=None,
    conf=DEFAULTS,
    failure=None,
    holders=None,
    outcome=Outcome.OUT_OF_MEMORY,
    error=None,
    **more,
):
    trace = None if heap is None else Trace((heap.device(),), StackTable(), (), conf)
    recording = Recording(
        CELL,
        SourceKind.CUDA if trace is not None else SourceKind.NONE,
        outcome,
        START - 10,
        START + 10_000,
        after=(after,) if after is not None else (),
        trace=trace,
        marks=heap.marks() if heap is not None else None,
        error=error or "OutOfMemoryError: CUDA out of memory.",
        failure=failure,
        **more,
    )
    return analyse(recording, holders=holders)


def full_card(total=80 * GIB):
    """A card of 80 GiB with 79 GiB in live tensors, of which line 2 made 60."""
    heap = Heap()
    heap.segment(1 << 40, 60 * GIB)
    heap.alloc(1 << 40, 60 * GIB, 2)
    heap.segment(2 << 40, 19 * GIB)
    heap.alloc(2 << 40, 19 * GIB, 3)
    heap.oom(2 * GIB, total - 79 * GIB - GIB // 2)
    return heap


def scattered(conf=DEFAULTS, failure=None):
    """Four segments of 256 MiB, a block of 64 MiB in the middle of each, and 128 MiB wanted under a limit of 1 GiB."""
    heap = Heap()
    for number in range(4):
        at = (number + 1) << 40
        heap.segment(at, 256 * MIB)
        heap.alloc(at, 96 * MIB, 2)
        heap.alloc(at + 96 * MIB, 64 * MIB, 3)
        heap.alloc(at + 160 * MIB, 96 * MIB, 2)
        heap.free(at)
        heap.free(at + 160 * MIB)
    heap.oom(128 * MIB, 70 * GIB)
    return cell(heap, after=reading(heap, limit=GIB), conf=conf, failure=failure)


def kept_by(kind, path, device="cuda:0"):
    holder = Holder(kind, path, path)
    return HolderScan((Storage(device, 1 << 40, 60 * GIB, 1, (1,), "uint8", Category.OTHER, (holder,)),), 1, 0.0, None)


def from_text(text, *, after=None, frames=((FILE, 4, "<module>"),), host=None, **more):
    return cell(after=after, failure=Failure(text, frames=frames, host=host), **more).oom


def cuda(tried, total, free, process, allocated, unallocated, more=""):  # noqa: PLR0917 - the text's order
    own = f"Including non-PyTorch memory, this process has {process} memory in use. " if process else ""
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which {free} is "
        f"free. {more}{own}Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved "
        "by PyTorch but unallocated."
    )


def held_by(paths, idle=(), device="cuda:0"):
    """A scan in which each path keeps 20 GiB of a card that is full."""
    storages = tuple(
        Storage(device, (n + 1) << 40, 20 * GIB, 1, (1,), "uint8", Category.OTHER, (Holder(HolderKind.VARIABLE, p, p),))
        for n, p in enumerate(paths)
    )
    return HolderScan(storages, 1, 0.0, None, idle=dict(idle))


def full_of_variables():
    heap = Heap()
    for number in (1, 2, 3):
        heap.segment(number << 40, 20 * GIB, recorded=False)
        heap.before(number << 40, 20 * GIB)
    heap.segment(9 << 40, 19 * GIB)
    heap.alloc(9 << 40, 19 * GIB, 3)
    heap.oom(20 * GIB, GIB // 2)
    return heap
