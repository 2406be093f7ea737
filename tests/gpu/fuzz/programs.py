"""Random allocation programs, and the settings to play them under. Pure: the same seed is the same program anywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20

# Name → what PYTORCH_CUDA_ALLOC_CONF would say. Those with garbage collection are always played under a limit.
SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "split32": "max_split_size_mb:32",
    "split64": "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "round4": "roundup_power2_divisions:4",
    "round-list": "roundup_power2_divisions:[1:4,2:2,4:8,16:1,64:2,>:4]",
    "split-expandable": "max_split_size_mb:32,expandable_segments:True",
    "gc": "garbage_collection_threshold:0.5",
    "gc-split": "garbage_collection_threshold:0.6,max_split_size_mb:48,roundup_power2_divisions:8",
    "gc-expandable": "garbage_collection_threshold:0.4,expandable_segments:True",
    "segment40": "large_segment_size_mb:40",
    "segment32-expandable": "large_segment_size_mb:32,expandable_segments:True",
}


class Op(NamedTuple):
    """One step of a program.

    `name` is one of: ``alloc`` (a = identity, b = bytes, stream, text ``"tensor"`` or ``"raw"``), ``free`` (a),
    ``record`` (a: another stream uses it from now on, for about b microseconds), ``empty``, ``sync``, ``capture``
    (a = graph, b = graph whose pool is shared or -1), ``end_capture``, ``pool`` (a), ``end_pool``, ``set`` (text).
    """

    name: str
    a: int = 0
    b: int = 0
    stream: int = 0
    text: str = ""


@dataclass
class FuzzProgram:
    """Operations, and the most bytes that may be reserved (None: no limit)."""

    seed: int
    ops: list[Op] = field(default_factory=list)
    limit: int | None = None
    streams: int = 1

    @property
    def has_streams(self) -> bool:
        """Whether frees wait for other streams, so that the run depends on timing."""
        return any(op.name == "record" for op in self.ops)

    @property
    def changes_settings(self) -> bool:
        """Whether a setting is changed in the middle."""
        return any(op.name == "set" for op in self.ops)


def sizes(rng: random.Random) -> list[tuple[float, int, int]]:
    """Return the program's taste: (weight, least, most) bytes of each kind of request."""
    kinds = [
        (1, 4 * KIB),
        (4 * KIB, 256 * KIB),
        (200 * KIB, 1100 * KIB),
        (MIB, 3 * MIB),
        (2 * MIB, 10 * MIB),
        (9 * MIB, 22 * MIB),
        (18 * MIB, 40 * MIB),
        (30 * MIB, 90 * MIB),
    ]
    chosen = rng.sample(kinds, rng.randint(2, 5))
    # Large requests are rarer, or nothing else would fit.
    return [(rng.random() / (1 + low / (8 * MIB)), low, high) for low, high in chosen]


EDGES = [512, 513, 4096, MIB, MIB + 1, 2 * MIB, 10 * MIB, 10 * MIB - 512, 20 * MIB, 20 * MIB + 512, 32 * MIB, 48 * MIB]


def request(rng: random.Random, taste: list[tuple[float, int, int]], known: list[int]) -> int:
    """Draw a number of bytes: a new one, one that was asked for before (as programs do), or one at an edge."""
    draw = rng.random()
    if known and draw < 0.45:
        return rng.choice(known[-40:])
    if draw > 0.97:
        return rng.choice(EDGES) + rng.choice([0, 0, -1, 1])
    _, low, high = rng.choices(taste, [weight for weight, _, _ in taste])[0]
    return int(low * (high / low) ** rng.random())


class _Writer:
    """Keeps what is alive while a program is written."""

    def __init__(self, program: FuzzProgram, rng: random.Random, budget: int) -> None:
        self.program, self.rng, self.budget = program, rng, budget
        self.taste = sizes(rng)
        self.known: list[int] = []
        self.alive: dict[int, int] = {}
        self.shared: set[int] = set()
        self.bytes = self.peak = 0
        self.count = 0

    def add(self, name: str, a: int = 0, b: int = 0, *, stream: int = 0, text: str = "") -> None:
        self.program.ops.append(Op(name, a, b, stream, text))

    def alloc(self, *, stream: int | None = None, raw: bool = False) -> None:
        size = request(self.rng, self.taste, self.known)
        if self.bytes + size > self.budget:
            self.free()
            return
        self.known.append(size)
        if stream is None:
            stream = self.rng.randrange(self.program.streams)
        # What a raw pointer names cannot be recorded on another stream.
        text = "raw" if raw or self.rng.random() < 0.3 else "tensor"
        self.add("alloc", self.count, size, stream=stream, text=text)
        self.alive[self.count] = size
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        if text == "tensor" and self.program.streams > 1 and self.rng.random() < 0.3:
            other = self.rng.randrange(self.program.streams)
            self.add("record", self.count, self.rng.choice([0, 20, 200, 1500]), stream=other)
        self.count += 1

    def free(self) -> None:
        if not self.alive:
            return
        numbers = list(self.alive)
        # Old ones, young ones, any.
        pick = self.rng.choice([numbers[0], numbers[-1], self.rng.choice(numbers), self.rng.choice(numbers)])
        self.add("free", pick)
        self.bytes -= self.alive.pop(pick)


def write_program(
    seed: int,
    *,
    steps: int = 0,
    streams: bool = True,
    pools: bool = True,
    captures: bool = True,
    budget: int = 0,
    change: str = "",
) -> FuzzProgram:
    """Write the program of a seed.

    Parameters
    ----------
    seed
        Which one.
    steps
        About how many operations; 0 lets the seed choose 60 to 500.
    streams, pools, captures
        Whether it may use several streams (its run then depends on timing), private pools, and captures among these.
    budget
        Most requested bytes alive at once; 0 lets the seed choose.
    change
        A settings string to change to in the middle.
    """
    rng = random.Random(f"{seed}/{streams}/{pools}/{change}")  # noqa: S311 - no secret
    program = FuzzProgram(seed)
    program.streams = rng.choice([2, 3]) if streams and rng.random() < 0.4 else 1
    budget = budget or int(rng.choice([40, 150, 400, 900]) * MIB * rng.uniform(0.7, 1.3))
    writer = _Writer(program, rng, budget)
    steps = steps or int(60 * (500 / 60) ** rng.random())
    uses_pools = pools and rng.random() < 0.35
    graphs = mem_pools = 0
    change_at = rng.randint(steps // 4, 3 * steps // 4) if change else -1
    phase = 0.8
    step = 0
    while step < steps:
        step += 1
        if rng.random() < 0.03:
            phase = rng.choice([0.85, 0.6, 0.5, 0.5, 0.3, 0.15])
        draw = rng.random()
        if step == change_at:
            writer.add("set", text=change)
        elif draw < 0.008:
            writer.add("empty")
        elif draw < 0.012:
            writer.add("sync")
        elif uses_pools and captures and draw < 0.022 and graphs < 3:
            writer.add("capture", graphs, rng.randrange(graphs) if graphs and rng.random() < 0.4 else -1)
            graphs += 1
            step += _inside(writer, rng, stream=-1)
            writer.add("end_capture")
        elif uses_pools and draw < 0.032 and mem_pools < 3:
            # An old pool is used again, or a new one made.
            chosen = rng.randrange(mem_pools + 1)
            mem_pools = max(mem_pools, chosen + 1)
            writer.add("pool", chosen)
            step += _inside(writer, rng, stream=None)
            writer.add("end_pool")
        elif rng.random() < phase:
            writer.alloc()
        else:
            writer.free()
    return program


def _inside(writer: _Writer, rng: random.Random, stream: int | None) -> int:
    """Write what happens within a capture (on its own stream, -1) or a pool."""
    count = rng.randint(3, 40)
    for _ in range(count):
        if rng.random() < 0.6:
            writer.alloc(stream=stream)
        else:
            writer.free()
    return count


def with_limit(program: FuzzProgram, share: float) -> FuzzProgram:
    """Give a program a limit of `share` times the most bytes that it has alive."""
    alive: dict[int, int] = {}
    peak = now = 0
    for op in program.ops:
        if op.name == "alloc":
            alive[op.a] = (op.b + 511) // 512 * 512
            now += alive[op.a]
            peak = max(peak, now)
        elif op.name == "free":
            now -= alive.pop(op.a)
    program.limit = int(peak * share) + 24 * MIB
    return program


def round_of(number: int, *, changes: bool = True) -> tuple[str, FuzzProgram]:
    """Return setting and program of trace number `number` of a fuzzing run.

    Settings change every 8 traces; every fifth trace outside garbage collection has a limit, every 40th changes its
    setting in the middle.
    """
    names = list(SETTINGS)
    name = names[number // 8 % len(names)]
    rng = random.Random(f"round {number}")  # noqa: S311 - no secret
    change = ""
    if changes and number % 40 == 39:
        change = SETTINGS[rng.choice([other for other in names if other != name and "gc" not in other])] or "-"
    limited = "gc" in name or number % 5 == 3
    # A request under a limit may release oversize segments of its own pool, and torch before 2.12 does not record
    # which pool a segment belonged to. Collecting garbage (cudaFree) inside a capture ends the capture with an error
    # (seen in 12 of 12 programs, torch 2.11).
    program = write_program(number, change=change, pools=not (limited and "split" in name), captures=name != "gc")
    if limited:
        # A failing request inside a capture can end the capture, and CUDA with it: leave those more room.
        captures = any(op.name == "capture" for op in program.ops)
        with_limit(program, rng.uniform(1.4, 1.9) if captures else rng.uniform(0.75, 1.5))
    return name, program


# What every program of the fresh processes is played under: a setting, and a limit as a share of its live bytes.
FRESH: tuple[tuple[str, float | None], ...] = (
    ("default", None),
    ("expandable", None),
    ("split32", None),
    ("round4", None),
    ("round-list", None),
    ("segment40", None),
    ("split-expandable", None),
    ("default", 1.08),
    ("expandable", 1.05),
    ("gc", 1.3),
    ("gc-expandable", 1.15),
    ("gc-split", 1.2),
    ("round-expandable", None),
    ("split-expandable", 1.1),
    ("gc-list", 1.2),
)
# The last of them came later, for every third program from this seed on: with earlier seeds all stays as it was run.
_ALL_KINDS = 300
_FIRST_KINDS = 12
FRESH_SETTINGS = SETTINGS | {
    "round-expandable": "expandable_segments:True,roundup_power2_divisions:[1:2,8:4,>:1]",
    "gc-list": "garbage_collection_threshold:0.5,roundup_power2_divisions:[1:4,2:2,4:8,16:1,64:2,>:4]",
}


# Programs on several streams are played once more under these: how far one run is from the next.
AGAIN = tuple(variant for variant, (_, share) in enumerate(FRESH) if share is None)


def fresh_variants(seed: int) -> list[int]:
    """Return the runs of a program: of those of `FRESH`, and for several streams those that come again."""
    is_more = seed >= _ALL_KINDS and seed % 3 == 1
    variants = list(range(len(FRESH) if is_more else _FIRST_KINDS))
    if fresh_program(seed, None).has_streams:
        variants += [len(FRESH) + number for number, first in enumerate(AGAIN) if first in variants]
    return variants


def first_of(variant: int) -> int:
    """Return the variant of `FRESH` that a run plays."""
    return variant if variant < len(FRESH) else AGAIN[variant - len(FRESH)]


def fresh_program(seed: int, share: float | None) -> FuzzProgram:
    """Return the program of a fresh process: longer, every fifth on several streams, every sixth with pools.

    Of the later ones some with both: captures, pools and streams at once.
    """
    has_all = seed >= _ALL_KINDS and seed % 7 == 5
    program = write_program(
        seed,
        steps=400 + seed * 37 % 900,
        streams=seed % 5 == 2 or has_all,
        pools=seed % 6 == 3 or has_all,
        budget=(200 + seed * 61 % 900) * MIB,
    )
    if share is not None:
        with_limit(program, share)
        if program.limit is not None:
            program.limit -= 24 * MIB
    return program


def run_time_text(conf: str) -> str:
    """Return a settings string for a running process.

    `expandable_segments` and `large_segment_size_mb` keep their value unless they are named (torch 2.11 on a GPU).
    """
    parts = [] if conf in {"", "-"} else [conf]
    if "expandable_segments" not in conf:
        parts.append("expandable_segments:False")
    if "large_segment_size_mb" not in conf:
        parts.insert(0, "large_segment_size_mb:20")
        if "max_non_split_rounding_mb" not in conf:
            parts.append("max_non_split_rounding_mb:20")
    return ",".join(parts)
