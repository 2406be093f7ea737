"""A real recording cut into cells and put together again is the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem_magic.allocator.cut import cut
from gpumem_magic.analysis import analyse, analyse_trace
from gpumem_magic.analysis.notebook import Run, notebook_analysis
from gpumem_magic.recording.model import Cell, Outcome, Recording, SourceKind
from gpumem_magic.report import Report
from gpumem_magic.report.container import decode
from gpumem_magic.report.document import view_document
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"


def trace_of(name: str):
    return read_trace(DATA / f"{name}.pickle.xz")


def cells(name: str, count: int, *, without: frozenset[int] = frozenset()) -> list[Run]:
    """Cut a recording into cells of equally many events; some of them were not measured."""
    trace = trace_of(name)
    times = np.unique(trace.devices[0].events.time_us)
    edges = times[np.linspace(0, len(times) - 1, count + 1).astype(int)]
    runs = []
    for number in range(count):
        start, end = int(edges[number]), int(edges[number + 1]) - (1 if number < count - 1 else 0)
        recording = Recording(
            cell=Cell(number + 1, None, "", ()),
            source=SourceKind.CUDA,
            outcome=Outcome.OK,
            started_us=start,
            ended_us=end,
            trace=cut(trace, start, end),
        )
        if number not in without:
            runs.append(Run(analyse(recording), f"id{number + 1}"))
    return runs


@pytest.mark.parametrize("name", ["mlp_train.c0", "kv_cache.c0", "leak_losses.c0", "streams.c0", "load_swap.c1"])
def test_the_whole_is_what_one_recording_of_it_says(name):
    whole = analyse_trace(trace_of(name)).devices[0]
    runs = cells(name, 4)
    (device,) = notebook_analysis(runs).devices
    assert device.headline.allocated_peak == whole.headline.allocated_peak
    assert device.headline.allocated_after == whole.headline.allocated_after
    assert device.headline.reserved_peak == whole.headline.reserved_peak
    # Lifetimes that span cells are one again.
    assert device.timeline.lifetimes == whole.timeline.lifetimes
    moments = whole.timeline.time_us
    own = device.timeline.allocated[np.searchsorted(device.timeline.time_us, moments, "right")]
    theirs = whole.timeline.allocated[np.searchsorted(moments, moments, "right")]
    edges = {run.analysis.started_us for run in runs}
    inside = np.array([int(moment) not in edges for moment in moments])
    # The peak's own change may be told from its neighbours in the same microsecond in one and not in the other.
    assert np.count_nonzero(own[inside] != theirs[inside]) <= 2 * len(runs)
    assert sum(row.bytes for row in device.peak) == device.headline.allocated_peak
    assert sum(row.bytes for row in device.end) == device.headline.allocated_after


def test_memory_stays_with_the_cell_that_made_it():
    runs = cells("leak_losses.c0", 3)
    (device,) = notebook_analysis(runs).devices
    held: dict[str | None, int] = {}
    for row in device.end:
        held[device.groups[row.group].cell] = held.get(device.groups[row.group].cell, 0) + row.bytes
    assert {"In [1]", "In [2]", "In [3]"} <= set(held)
    assert not any(group.kind == "before" for group in device.groups)


def test_what_came_and_went_between_measured_cells_does_so_at_the_next_start():
    whole = cells("leak_losses.c0", 5)
    runs = cells("leak_losses.c0", 5, without=frozenset({1, 3}))
    analysis = notebook_analysis(runs)
    (device,) = analysis.devices
    assert [span.cell_id for span in analysis.cells] == ["id1", "id3", "id5"]
    for run in runs:
        own = run.analysis.devices[0]
        at = int(np.searchsorted(device.timeline.time_us, own.timeline.time_us[-1], "right"))
        assert device.timeline.allocated[at] == own.timeline.allocated[-1]
    between = [g for g, group in enumerate(device.groups) if group.label == "made outside measured cells"]
    lives = device.timeline
    starts = set(lives.time_us[lives.start[np.isin(lives.group, between) & (lives.start >= 0)]].tolist())
    assert starts == {runs[1].analysis.started_us, runs[2].analysis.started_us}
    assert device.headline.allocated_after == whole[-1].analysis.devices[0].headline.allocated_after


def test_the_document_names_the_cells_and_holds_together():
    analysis = notebook_analysis(cells("mlp_train.c0", 3))
    for limit in (None, 20_000):
        header, arrays = decode(view_document(analysis, limit))
        assert [cell["title"] for cell in header["cells"]] == ["In [1]", "In [2]", "In [3]"]
        assert [cell["cellId"] for cell in header["cells"]] == ["id1", "id2", "id3"]
        assert arrays["d0.span"].size == header["devices"][0]["timeline"]["lifetimes"]
    assert analysis.sentence.startswith(
        "3 measured runs: peak 710 MiB, reached by In [1], workloads.py:22 mlp_train; 65.0 MiB"
    )


def test_text_tells_equal_lines_of_several_cells_apart():
    text = Report(notebook_analysis(cells("leak_losses.c0", 3))).to_text(20)
    assert "In [1] workloads.py:113 leak_los" in text
    assert "In [2] workloads.py:113 leak_los" in text


def test_nothing_measured_is_said():
    assert notebook_analysis([]).sentence == "0 measured runs: none allocated or freed anything."
