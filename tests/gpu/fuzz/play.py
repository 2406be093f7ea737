"""Play a program on a GPU with torch's own allocator. Only this file needs torch."""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .programs import FuzzProgram

RING = 8_000
# Cycles of the GPU's clock in a microsecond, about.
CYCLES = 1_500


def torch_module() -> Any:
    """Import torch late: the orchestrator of fresh processes must not."""
    import torch

    return torch


def set_at_run_time(text: str) -> None:
    """Change allocator settings in this process."""
    torch = torch_module()
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if setter is not None:
        setter(text)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.memory._set_allocator_settings(text)


class Player:
    """Plays programs in this process, one after another.

    Attributes
    ----------
    total
        Bytes of the device, of which a memory fraction is a share.
    """

    def __init__(self) -> None:
        torch = torch_module()
        # What was imported is not looked at again: a collection then takes no time.
        gc.collect()
        gc.freeze()
        torch.cuda.init()
        torch.cuda._sleep(100)
        torch.cuda.synchronize()
        self.total = torch.cuda.get_device_properties(0).total_memory
        # Stream 0 is the default one; the last one is for captures.
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]

    def is_empty(self) -> bool:
        """Give everything back; tell whether the allocator is as good as new."""
        torch = torch_module()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return bool(torch.cuda.memory_reserved() == 0 and not torch.cuda.memory.memory_snapshot())

    def play(self, program: FuzzProgram, *, dies: bool = False) -> dict[str, Any]:
        """Play a program from an empty allocator; with `dies` it ends at the first request that fails.

        Returns
        -------
        dict
            ``snapshot`` (torch's own), ``limit`` (bytes), ``counters`` (torch's), ``changes`` (µs, settings text),
            ``failed_at`` (index of the first operation that ran out of memory, or None).
        """
        torch = torch_module()
        # torch multiplies the same way, so this is its limit to the byte.
        fraction = 1.0 if program.limit is None else min(1.0, program.limit / self.total)
        torch.cuda.set_per_process_memory_fraction(fraction)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=RING, clear_history=True
        )
        run = _Run(program, self.streams)
        try:
            run.go(dies=dies)
            snapshot = torch.cuda.memory._snapshot()
            stats = torch.cuda.memory_stats()
        finally:
            torch.cuda.memory._record_memory_history(None)
            run.close()
        counters = {name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "active", "requested", "reserved")}
        counters |= {name: stats[name] - before.get(name, 0) for name in ("num_ooms", "num_alloc_retries")}
        return {
            "snapshot": snapshot,
            "limit": None if program.limit is None else int(fraction * self.total),
            "counters": counters,
            "changes": run.changes,
            "failed_at": run.failed_at,
            "empties": run.empties,
        }


class _Run:
    """One run of a program: what is alive in it."""

    def __init__(self, program: FuzzProgram, streams: list[Any]) -> None:
        self.program, self.streams = program, streams
        self.alive: dict[int, Any] = {}
        self.graphs: dict[int, Any] = {}
        self.pools: dict[int, Any] = {}
        self.within = contextlib.ExitStack()
        self.changes: list[tuple[int, str]] = []
        self.empties: list[tuple[int, int]] = []
        self.failed_at: int | None = None

    def go(self, *, dies: bool) -> None:
        """Play every operation; a request that fails is left out, as a program that catches the error would."""
        torch = torch_module()
        for index, op in enumerate(self.program.ops):
            try:
                getattr(self, f"do_{op.name}")(op)
            except torch.OutOfMemoryError:
                if self.failed_at is None:
                    self.failed_at = index
                if dies:
                    return

    def close(self) -> None:
        """Let everything go."""
        torch = torch_module()
        self.within.close()
        for held in self.alive.values():
            if isinstance(held, int):
                torch.cuda.caching_allocator_delete(held)
        self.alive.clear()
        for graph in self.graphs.values():
            graph.reset()
        self.graphs.clear()
        torch.cuda.synchronize()
        self.pools.clear()

    def do_alloc(self, op: Any) -> None:
        torch = torch_module()
        stream = self.streams[op.stream]
        if op.text == "raw":
            self.alive[op.a] = torch.cuda.caching_allocator_alloc(op.b, 0, stream)
        else:
            with torch.cuda.stream(stream):
                self.alive[op.a] = torch.empty(op.b, dtype=torch.uint8, device="cuda")

    def do_free(self, op: Any) -> None:
        held = self.alive.pop(op.a, None)
        if isinstance(held, int):
            torch_module().cuda.caching_allocator_delete(held)

    def do_record(self, op: Any) -> None:
        held = self.alive.get(op.a)
        if held is None:
            return
        torch = torch_module()
        stream = self.streams[op.stream]
        if op.b and not torch.cuda.is_current_stream_capturing():
            with torch.cuda.stream(stream):
                torch.cuda._sleep(op.b * CYCLES)
        held.record_stream(stream)

    def do_empty(self, op: Any) -> None:  # noqa: ARG002 - one signature for all
        began = time.time_ns() // 1000
        torch_module().cuda.empty_cache()
        self.empties.append((began, time.time_ns() // 1000 + 1))

    def do_sync(self, op: Any) -> None:  # noqa: ARG002 - one signature for all
        torch_module().cuda.synchronize()

    def do_capture(self, op: Any) -> None:
        torch = torch_module()
        self.graphs[op.a] = graph = torch.cuda.CUDAGraph()
        pool = self.graphs[op.b].pool() if op.b >= 0 else None
        self.within.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the graph is empty: no kernel is launched
        self.within.enter_context(torch.cuda.graph(graph, pool=pool, stream=self.streams[-1]))

    def do_end_capture(self, op: Any) -> None:  # noqa: ARG002 - one signature for all
        self.within.close()

    def do_pool(self, op: Any) -> None:
        torch = torch_module()
        if op.a not in self.pools:
            self.pools[op.a] = torch.cuda.MemPool()
        self.within.enter_context(torch.cuda.use_mem_pool(self.pools[op.a]))

    def do_end_pool(self, op: Any) -> None:  # noqa: ARG002 - one signature for all
        self.within.close()

    def do_set(self, op: Any) -> None:
        from .programs import run_time_text

        text = run_time_text(op.text)
        set_at_run_time(text)
        self.changes.append((time.time_ns() // 1000, text))
