"""Writes the view documents beside this file, and what a reader of each must find in it (JSON).

Both halves of the product are tested against them: Python writes, TypeScript reads. After a change of the format:

    python tests/data/view/make_documents.py
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "unit" / "analysis"))

from story import START, Story  # type: ignore[import-not-found]# noqa: E402 - the path above is what makes it importable

from gpumem_magic.analysis.counters import analyse_counters  # noqa: E402
from gpumem_magic.analysis.curves import group_values  # noqa: E402
from gpumem_magic.analysis.devices import DeviceContext, Placement, analyse_device  # noqa: E402
from gpumem_magic.analysis.groups import PlaceNamer  # noqa: E402
from gpumem_magic.analysis.model import Analysis  # noqa: E402
from gpumem_magic.analysis.oom import diagnose  # noqa: E402
from gpumem_magic.analysis.sentence import sentence  # noqa: E402
from gpumem_magic.recording.model import (  # noqa: E402
    Cell,
    DeviceReading,
    Note,
    Outcome,
    Recording,
    Sample,
    SourceKind,
)
from gpumem_magic.report.container import decode  # noqa: E402
from gpumem_magic.report.document import detail_document, view_document  # noqa: E402
from gpumem_magic.trace.model import Frame, Region, StackTable  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
FILE = "/tmp/ipykernel_7/2419.py"  # noqa: S108 - a name, as IPython makes them
LIMIT = 80 * GIB
CELL = Cell(
    execution_count=7,
    label=None,
    source="%%gpumem\nmodel = build()\ny = model(x)  # модель\nloss = criterion(y, هدف)\n損失の逆伝播(loss)\ndel y\n",
    filenames=(FILE,),
)
STACKS = StackTable(
    (
        Frame("/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "forward"),
        Frame(FILE, 3, "<module>"),
        Frame("C:\\Users\\Ада\\обучение.py", 12, "прямой_проход"),
    ),
    ((), (0, 1), (0, 2, 1)),
)


def places(story, lines):
    """Give every event of a story the line that ran since the event number before it."""
    events = story.device().events
    table = tuple(((FILE, line, "<module>"),) for line in sorted({line for _, line in lines}))
    number = {place[0][1]: index for index, place in enumerate(table)}
    column = np.full(len(events), -1, np.int32)
    for first, line in lines:
        column[first:] = number[line]
    return Placement(column, table, ("line unknown",))


def context(story, *, end, placement=None, **fields):
    last = story.history()
    after = DeviceReading(
        story.device().key,
        START + end,
        allocated=int(last.allocated[-1]),
        reserved=int(last.reserved[-1]),
        device_used=int(last.reserved[-1]) + 3 * GIB,
        process_used=int(last.reserved[-1]) + GIB // 2,
        device_total=LIMIT,
        limit=LIMIT,
        name="NVIDIA H200 <b>&amp;",
    )
    return DeviceContext(PlaceNamer(CELL), STACKS, START, START + end, placement=placement, after=after, **fields)


def analysis(devices, *, title="In [7]", outcome=Outcome.OK, error=None, notes=(), text=None):
    recording = Recording(CELL, SourceKind.CUDA, outcome, START, START + 1_000_000, error=error)
    oom = diagnose(devices, recording)
    return Analysis(
        title=title,
        sentence=text if text is not None else sentence(devices, recording, oom),
        origin="cell",
        outcome=outcome,
        error=error,
        cell=CELL,
        source=SourceKind.CUDA,
        started_us=START,
        ended_us=START + 1_000_000,
        devices=tuple(devices),
        stacks=STACKS,
        notes=tuple(notes),
        drawable=bool(devices),
        oom=oom,
    )


def complete():
    """Two devices, every kind of group and marker, an idle stretch of half a second."""
    story = Story(reserved=2 * GIB)
    story.old(900 * MIB)
    goes = story.old(100 * MIB + 1)
    lines = [(0, 2)]
    story.at(1000).segment(4 * GIB)
    weights = [story.alloc(200 * MIB + 100 * i, stack=0) for i in range(4)]
    lines.append((len(story.events), 3))
    acts = [story.at(500_000 + 900 * i).alloc(300 * MIB, stack=1 + i % 2, stream=7 * (i % 2)) for i in range(9)]
    lines.append((len(story.events), 4))
    loss = story.at(520_000).alloc(4)
    lines.append((len(story.events), 5))
    for i, act in enumerate(reversed(acts)):
        grad = story.at(530_000 + 700 * i).alloc(40 * MIB)
        story.free(act)
        if i % 2:
            story.free(grad)
    story.at(540_000).oom(90 * GIB, 60 * GIB)
    story.at(540_001).segment(-GIB)
    lines.append((len(story.events), 6))
    story.at(600_000).free(goes)
    story.free(weights[3])
    del loss
    samples = [Sample(START + t, "cuda:0", None, None, 9 * GIB + t * 1000, 7 * GIB) for t in range(0, 900_000, 100_000)]
    regions = (Region("шаг 1", 0, START + 500_000, START + 540_000), Region("open", 0, None, None))
    first = analyse_device(
        story.device(),
        story.history(),
        context(story, end=1_000_000, placement=places(story, lines), samples=samples, regions=regions),
    )
    other = Story(reserved=64 * MIB, device=1)
    kept = other.old(2 * MIB)
    other.at(700_000).alloc(30 * MIB)
    other.free(kept)
    second = analyse_device(other.device(), other.history(), context(other, end=1_000_000))
    notes = [Note("warning", "a warning with <i>markup</i> & entities"), Note("info", "для сведения")]
    return analysis(
        [first, second], outcome=Outcome.OUT_OF_MEMORY, error="OutOfMemoryError: CUDA out of memory.", notes=notes
    )


def busy(steps):
    """A training loop: `steps` steps of 20 allocations each, every tenth step larger."""
    story = Story(reserved=8 * GIB)
    story.old(GIB)
    generator = np.random.default_rng(7)
    lines = []
    for step in range(steps):
        scale = 8 if step % 10 == 3 else 1 + step % 3
        lines.append((len(story.events), 3))
        sizes = (generator.integers(1, 2000, 20) * 1024 * scale).tolist()
        acts = [
            story.at(step * 1000 + 10 * i).alloc(size, stack=1 + i % 2, stream=7 * (i % 5 == 0))
            for i, size in enumerate(sizes)
        ]
        lines.append((len(story.events), 5))
        for i, act in enumerate(reversed(acts)):
            story.at(step * 1000 + 400 + 10 * i).free(act)
        if step % 25 == 0:
            story.alloc(MIB)
    placement = places(story, lines)
    device = analyse_device(story.device(), story.history(), context(story, end=steps * 1000, placement=placement))
    return analysis([device])


def counters():
    """No events, counters and samples only."""

    def reading(time_us, allocated, peak):
        return DeviceReading("cuda:0", time_us, allocated, allocated + GIB, peak, limit=LIMIT, device_total=LIMIT)

    samples = tuple(
        Sample(START + t, "cuda:0", value * MIB, 2 * GIB, None, None) for t, value in ((200_000, 500), (400_000, 900))
    )
    recording = Recording(
        CELL,
        SourceKind.COUNTERS,
        Outcome.OK,
        START,
        START + 600_000,
        before=(reading(START, 100 * MIB, 100 * MIB),),
        after=(reading(START + 600_000, 300 * MIB, 1000 * MIB),),
        samples=samples,
    )
    devices = analyse_counters(recording)
    return analysis(devices, text=sentence(devices, recording))


def gap():
    """Two hours between two changes: more microseconds than 32 bits hold."""
    story = Story(reserved=GIB)
    first = story.at(10).alloc(3 * MIB)
    story.at(7_200_000_000).alloc(MIB)
    story.free(first)
    device = analyse_device(story.device(), story.history(), context(story, end=7_200_000_500))
    return analysis([device])


def by_kind(timeline, pick):
    """Sum what is alive after a change by size, duration and stream, by the classes that the format names."""
    sums: dict[str, dict[str, int]] = {"bySize": {}, "byLifetime": {}, "byStream": {}}
    for number in range(timeline.lifetimes):
        start, end = int(timeline.start[number]), int(timeline.end[number])
        if start > pick or (end >= 0 and end <= pick):
            continue
        size = int(timeline.size[number])
        large = sum(size > limit for limit in (64 * 1024, MIB, 10 * MIB, 100 * MIB, GIB))
        if end < 0:
            duration = 0 if start < 0 else 1
        elif start < 0:
            duration = 2
        else:
            lasted = int(timeline.time_us[end] - timeline.time_us[start])
            duration = 7 - sum(lasted > limit for limit in (1_000, 10_000, 100_000, 1_000_000))
        for name, key in (
            ("bySize", 5 - large),
            ("byLifetime", duration),
            ("byStream", int(timeline.stream[number])),
        ):
            sums[name][str(key)] = sums[name].get(str(key), 0) + size
    return sums


def expectations(source, data):
    """Return what any correct reader finds: totals at some moments, by group, from the analysis and not from `data`."""
    header, _ = decode(data)
    devices = []
    for device in source.devices:
        timeline = device.timeline
        moments = []
        if timeline.changes:
            picks = np.unique(
                np.append(np.linspace(0, timeline.changes - 1, 9).astype(int), max(timeline.peak_change, 0))
            )
            # The last change of a microsecond: the state at a time is after all changes of that time.
            picks = np.unique(np.searchsorted(timeline.time_us, timeline.time_us[picks], "right") - 1)
            groups = np.arange(len(device.groups), dtype=np.int32)
            values = group_values(timeline, picks, groups)
            for column, pick in enumerate(picks.tolist()):
                moments.append(
                    {
                        "timeUs": int(timeline.time_us[pick]),
                        "allocated": int(timeline.allocated[pick + 1]),
                        "byGroup": {str(g): int(v) for g, v in enumerate(values[:, column]) if v},
                        **by_kind(timeline, pick),
                    }
                )
        devices.append(
            {
                "key": device.key,
                "allocatedPeak": device.headline.allocated_peak,
                "peakUs": device.headline.peak_us,
                "allocatedAfter": device.headline.allocated_after,
                "lifetimes": int(timeline.blocks.sum()),
                "moments": moments,
            }
        )
    return {
        "sentence": header["sentence"],
        "complete": all(d["timeline"]["rest"] is None for d in header["devices"]),
        "devices": devices,
    }


def main():
    empty = analysis((), text="Nothing was allocated or freed on a GPU in this cell.")
    long = busy(400)
    documents = {
        "complete": (complete(), None),
        "aggregated": (long, 20_000),
        "empty": (empty, None),
        "counters": (counters(), None),
        "gap": (gap(), None),
    }
    for name, (source, limit) in documents.items():
        data = view_document(source, limit)
        (HERE / f"{name}.bin").write_bytes(data)
        text = json.dumps(expectations(source, data), ensure_ascii=False, indent=1)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {len(data):,} bytes\n")
    stretch = replace(long, devices=long.devices[:1])
    (HERE / "detail.bin").write_bytes(detail_document(stretch, 0, START + 100_000, START + 105_000, 1_000_000))


if __name__ == "__main__":
    main()
