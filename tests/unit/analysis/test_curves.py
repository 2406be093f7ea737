"""Bins, envelopes and sums by owner, against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from story import START, Story  # type: ignore[import-not-found]

from gpumem_magic.analysis.axis import fold_axis
from gpumem_magic.analysis.curves import bin_edges, envelope, group_values
from gpumem_magic.analysis.timeline import build_timeline

steps = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 100_000), st.integers(0, 9)), min_size=1, max_size=60)


def timeline_of(plan, old=2):
    from dataclasses import replace

    story = Story()
    alive = [story.old(1000 * (i + 1)) for i in range(old)]
    now = 0
    for wait, size, victim in plan:
        now += wait
        story.at(now)
        if victim < 4 and alive:
            story.free(alive.pop(victim % len(alive)))
        else:
            alive.append(story.alloc(size))
    timeline = build_timeline(story.device().events, story.history())
    group = (timeline.size // 512 % 3).astype(np.int32)
    return replace(timeline, group=group), now


@settings(deadline=None)
@given(steps, st.integers(2, 40))
def test_envelope_equals_brute_force(plan, bins):
    timeline, span = timeline_of(plan)
    edges = bin_edges(timeline, START, START + span + 5, bins)
    low, high = envelope(timeline, edges)
    values = timeline.allocated.tolist()
    times = timeline.time_us.tolist()
    for i, (left, right) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        inside = [values[n + 1] for n, t in enumerate(times) if left < t <= right or (i == 0 and t == left)]
        before = [n for n, t in enumerate(times) if (t < left if i == 0 else t <= left)]
        inside.append(values[len(before)])
        assert (low[i], high[i]) == (min(inside), max(inside))
    assert high.max() == timeline.allocated.max()


@settings(deadline=None)
@given(steps)
def test_group_values_equal_brute_force(plan):
    timeline, _ = timeline_of(plan)
    changes = np.arange(-1, timeline.changes, dtype=np.int64)
    groups = np.arange(3, dtype=np.int32)
    values = group_values(timeline, changes, groups)
    assert np.array_equal(values.sum(axis=0), timeline.allocated)
    for column, change in enumerate(changes.tolist()):
        alive = timeline.alive(change)
        for group in range(3):
            assert values[group, column] == timeline.size[alive & (timeline.group == group)].sum()


def test_an_edge_lies_on_the_peak():
    timeline, span = timeline_of([(7, 100, 9)] * 30 + [(3, 900_000, 9)] + [(11, 1, 0)] * 4)
    edges = bin_edges(timeline, START, START + span, 8)
    assert timeline.time_us[timeline.peak_change] in edges
    assert edges[0] == START
    assert edges[-1] == START + span
    assert np.all(np.diff(edges) > 0)


def test_idle_stretches_fold_and_places_come_back():
    busy = np.concatenate([np.arange(20) * 1000, 9_000_000 + np.arange(20) * 1000]) + START
    axis = fold_axis(busy, START, START + 9_020_000)
    assert axis.folds == ((START + 19_000, START + 9_000_000),)
    assert axis.folded_us == 8_981_000
    assert float(axis.place(START)) == 0.0
    assert float(axis.place(START + 9_020_000)) == 1.0
    times = np.array([START + 5000, START + 9_010_000])
    assert np.allclose(axis.time(axis.place(times)), times, atol=1)
    # What is not idle keeps nearly all of the axis.
    assert float(axis.place(START + 19_000)) > 0.45


def test_pauses_that_nobody_notices_stay_and_those_between_cells_go():
    cell = START + np.arange(60) * 300 + np.arange(60) // 10 * 6000
    assert fold_axis(cell, START, START + 49_000).folds == ()
    notebook = START + np.arange(600) * 1000 + np.arange(600) // 30 * 120_000_000
    axis = fold_axis(notebook, START, START + 600_000 + 19 * 120_000_000)
    assert len(axis.folds) == 19
    start, to = axis.folds[0]
    assert np.isclose(axis.place(to) - axis.place(start), 0.3 / 19 / 1.3)
    spikes = START + np.arange(2000) * 10 + np.arange(2000) // 10 * 1_000_000
    assert fold_axis(spikes, START, START + 20_000 + 199_000_000).folds == ()


def test_few_changes_are_not_folded():
    axis = fold_axis(np.array([START + 10, START + 5_000_000]), START, START + 5_000_010)
    assert axis.folds == ()


def test_an_axis_of_no_length():
    axis = fold_axis(np.array([START] * 30), START, START)
    assert float(axis.place(START)) == 0.0


def test_a_fold_at_either_end():
    busy = np.arange(20) * 1000 + 5_000_000 + START
    axis = fold_axis(busy, START, START + 9_000_000)
    assert len(axis.folds) == 2
    assert float(axis.place(START)) == 0.0
    assert float(axis.place(START + 9_000_000)) == 1.0
    assert 0 < float(axis.place(START + 5_000_000)) < 0.05
