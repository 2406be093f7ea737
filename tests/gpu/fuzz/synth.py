"""Snapshots of random programs without a GPU: the model itself plays them, in torch's format.

It proves nothing about the allocator; it proves that a recording is read back as the program that it shows.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpumem_magic.allocator.addresses import Driver
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.program import Op as Step
from gpumem_magic.allocator.program import Program
from gpumem_magic.allocator.settings_text import parse_settings

if TYPE_CHECKING:
    from gpumem_magic.allocator.settings_model import AllocatorSettings

    from .programs import FuzzProgram

HANDLES = (0, 0x5580_0010, 0x5580_0020, 0x5580_0030)


class Squeeze(NamedTuple):
    """From step `first` until `last` something else leaves torch no more than `limit` bytes of the device."""

    first: int
    last: int
    limit: int


def play(
    program: FuzzProgram, conf: str, *, dies: bool = False, squeeze: Squeeze | None = None, stacks: bool = False
) -> dict[str, Any]:
    """Play a program under a setting; return what `fuzz.play.Player.play` would; `stacks`: a line for each step."""
    writer = _Writer(program)
    settings = parse_settings(conf)
    model = _Logged(writer.program(), settings, Driver(), program.limit, goes_on=not dies)
    model.squeeze = squeeze
    model.run()
    failed = [failure.step for failure in model.failures]
    return {
        "snapshot": model.snapshot(conf, settings, stacks=stacks),
        "limit": program.limit,
        "counters": {"reserved": model.reserved_peak, "num_ooms": len(failed), "num_alloc_retries": model.retries},
        "changes": [],
        "failed_at": writer.sources[failed[0]] if failed else None,
        "empties": [],
    }


class _Writer:
    """Turns fuzz operations into the model's."""

    def __init__(self, fuzz: FuzzProgram) -> None:
        self.rng = random.Random(fuzz.seed)  # noqa: S311 - no secret
        self.fuzz = fuzz
        self.codes: list[int] = []
        self.arguments: list[int] = []
        self.sources: list[int] = []
        self.requested: list[int] = []
        self.group: list[int] = []
        self.groups: dict[tuple[tuple[int, int], int], int] = {((0, 0), 0): 0}
        self.number: dict[int, int] = {}
        self.shared: set[int] = set()
        self.pending: list[int] = []
        self.source = 0

    def add(self, code: Step, argument: int = 0) -> None:
        """Write one step."""
        self.codes.append(int(code))
        self.arguments.append(argument)
        self.sources.append(self.source)

    def program(self) -> Program:  # noqa: C901 - a branch for each kind of operation
        """Return the model's program."""
        pools: list[tuple[int, int]] = [(0, 0)]
        graph_pools: dict[int, tuple[int, int]] = {}
        for source, op in enumerate(self.fuzz.ops):
            self.source = source
            # torch looks for what is complete when it is asked for memory, and not for a private pool's.
            if op.name == "alloc" and len(pools) == 1 and self.pending and self.rng.random() < 0.6:
                self.add(Step.COMPLETE, self.pending.pop(self.rng.randrange(len(self.pending))))
            if op.name == "alloc":
                self.number[op.a] = number = len(self.requested)
                pair = (pools[-1], HANDLES[op.stream])
                self.requested.append(op.b)
                self.group.append(self.groups.setdefault(pair, len(self.groups)))
                self.add(Step.ALLOC, number)
            elif op.name == "record":
                self.shared.add(op.a)
            elif op.name == "free":
                number = self.number[op.a]
                self.add(Step.FREE_LATER if op.a in self.shared else Step.FREE, number)
                if op.a in self.shared:
                    self.pending.append(number)
            elif op.name in {"empty", "capture"}:
                for number in self.pending:
                    self.add(Step.COMPLETE, number)
                self.pending.clear()
                self.add(Step.EMPTY_CACHE)
                if op.name == "capture":
                    graph_pools[op.a] = pool = graph_pools.get(op.b, (op.a + 1, 0))
                    pools.append(pool)
                    self.add(Step.BEGIN_CAPTURE)
            elif op.name == "end_capture":
                pools.pop()
                self.add(Step.END_CAPTURE)
            elif op.name == "pool":
                pools.append((0, op.a + 1))
            elif op.name == "end_pool":
                pools.pop()
        return Program(
            codes=np.array(self.codes, dtype=np.uint8),
            arguments=np.array(self.arguments, dtype=np.int32),
            events=np.arange(len(self.codes), dtype=np.int32),
            requested=np.array(self.requested, dtype=np.int64),
            group=np.array(self.group, dtype=np.int32),
            groups=tuple(self.groups),
        )


class _Logged(Model):
    """A model that notes what torch's recorder would."""

    squeeze: Squeeze | None = None

    def __init__(
        self, program: Program, settings: AllocatorSettings, addresses: Any, limit: int | None, *, goes_on: bool
    ) -> None:
        super().__init__(program, settings, addresses, limit=limit, survives=lambda _number: goes_on, traced=True)
        self.log: list[tuple[int, str, int, int, int]] = []  # step, action, address, size, stream

    def _obtain(self, size: int, group: int) -> tuple[int, int] | None:
        within = self.squeeze
        if within is not None:
            self.limit = within.limit if within.first <= self.step < within.last else None
        return super()._obtain(size, group)

    def _grow(self, action: str, at: int, size: int) -> None:
        super()._grow(action, at, size)
        self.log.append((self.step, action, at, size, self._stream()))

    def _shrink(self, action: str, at: int, size: int) -> None:
        super()._shrink(action, at, size)
        self.log.append((self.step, action, at, size, 0))

    def _complete(self, number: int) -> None:
        if number in self._pending:
            stream = self.program.groups[int(self.program.group[number])][1]
            address, size = self.address[number], int(self.program.requested[number])
            self.log.append((self.step, "free_completed", address, size, stream))
        super()._complete(number)

    def _stream(self) -> int:
        number = int(self.program.arguments[self.step])
        return self.program.groups[int(self.program.group[number])][1]

    def snapshot(self, conf: str, settings: AllocatorSettings, *, stacks: bool = False) -> dict[str, Any]:
        divisions = {str(1 << power): count for power, count in enumerate(settings.roundup_power2_divisions)}
        return {
            "segments": self._state(),
            "device_traces": [self._events(stacks=stacks)],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": conf,
                "max_split_size": settings.max_split_size or -1,
                "garbage_collection_threshold": settings.garbage_collection_threshold,
                "expandable_segments": settings.expandable_segments,
                "roundup_power2_divisions": divisions,
            },
        }

    def _events(self, *, stacks: bool) -> list[dict[str, Any]]:
        program = self.program
        noted: dict[int, list[tuple[str, int, int, int]]] = {}
        for step, *rest in self.log:
            noted.setdefault(step, []).append(tuple(rest))  # type: ignore[arg-type]
        failed = {failure.step: failure.size for failure in self.failures}
        events: list[dict[str, Any]] = []

        def add(action: str, addr: int, size: int, stream: int) -> None:
            where = "device_free" if action == "oom" else "addr"
            events.append({"action": action, where: addr, "size": size, "stream": stream, "time_us": len(events) + 1})
            if stacks:
                name = "empty_cache" if code == Step.EMPTY_CACHE else "step"
                events[-1]["frames"] = [{"filename": "program.py", "line": step + 1, "name": name}]

        last = self.failures[-1].step if self.failures and not self.failures[-1].is_survived else len(program.codes)
        for step, (code, number) in enumerate(program.steps()[: last + 1]):
            for action, at, size, stream in noted.get(step, ()):
                add(action, at, size, stream)
            if step in failed:
                pair = int(program.group[number])
                add("oom", 1 << 30 if self.squeeze is None else 1 << 20, failed[step], program.groups[pair][1])
            elif code in {Step.ALLOC, Step.FREE, Step.FREE_LATER} and self.address[number] >= 0:
                size, stream = int(program.requested[number]), program.groups[int(program.group[number])][1]
                action = "alloc" if code == Step.ALLOC else "free_requested"
                add(action, self.address[number], size, stream)
                if code == Step.FREE:
                    add("free_completed", self.address[number], size, stream)
        return events

    def _state(self) -> list[dict[str, Any]]:
        program = self.program
        last = self.failures[-1].step if self.failures and not self.failures[-1].is_survived else len(program.codes)
        steps = program.steps()[: last + 1]
        gone = {number for code, number in steps if code == Step.FREE}
        asked = {number for code, number in steps if code == Step.FREE_LATER}
        gone |= asked - self._pending.keys()
        used = {
            self.address[number]: number
            for code, number in steps
            if code == Step.ALLOC and number not in gone and self.address[number] >= 0
        }
        group_of = {key & ((1 << 64) - 1): group for group, keys in enumerate(self._lists) for key in keys}
        edges = sorted([*used, *self._free_at])
        segments: list[dict[str, Any]] = []
        end = -1
        for start in edges:
            number = used.get(start, -1)
            size = self._held[number] if number >= 0 else self._free_at[start]
            group = self._group[number] if number >= 0 else group_of[start]
            (pool, stream), small = program.groups[group // 2], bool(group & 1)
            state = "inactive" if number < 0 else "active_allocated"
            if number in self._pending:
                state = "active_pending_free"
            block = {
                "address": start,
                "size": size,
                "requested_size": int(program.requested[number]) if number >= 0 else 0,
                "state": state,
                "frames": [],
            }
            if start != end or start in self._segments:
                segments.append(
                    {
                        "device": 0,
                        "address": start,
                        "total_size": 0,
                        "stream": stream,
                        "segment_type": "small" if small else "large",
                        "segment_pool_id": pool,
                        "is_expandable": start not in self._segments,
                        "frames": [],
                        "blocks": [],
                    }
                )
            segments[-1]["blocks"].append(block)
            segments[-1]["total_size"] += size
            end = start + size
        return segments
