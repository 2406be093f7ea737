"""Random programs that a real GPU played, replayed; and programs that the model played, read back."""

from __future__ import annotations

import lzma
import pickle
import sys
from pathlib import Path

import pytest

from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.trace.convert import from_snapshot

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "gpu"))

from fuzz import judge, programs, synth  # noqa: E402 - the path comes first

DATA = TESTS / "data" / "fuzz"


def read(name):
    with lzma.open(DATA / name) as file:
        return pickle.load(file)  # noqa: S301 - our own


TRACES = read("traces.pickle.xz")


@pytest.mark.parametrize("setting", programs.SETTINGS)
def test_every_address_and_segment_event_of_a_gpu_is_repeated(setting):
    mine = [trace for trace in TRACES if trace["setting"] == setting and not trace["changes"]]
    assert len(mine) >= 3
    for trace in mine:
        judged = judge.judge(trace, programs.SETTINGS[setting])
        assert judged["deviation"] is None, trace["number"]
        assert judged["settings"] is None
        # How often the cache was freed in vain leaves no event when other streams were waited for.
        assert [wrong for wrong in judged["wrong"] if wrong[0] != "num_alloc_retries"] == []


def test_settings_changed_on_the_way():
    mine = [trace for trace in TRACES if trace["changes"]]
    assert len(mine) >= 8
    assert {True, False} == {"expandable_segments:True" in text for trace in mine for _, text in trace["changes"]}
    for trace in mine:
        judged = judge.judge(trace, programs.SETTINGS[trace["setting"]])
        assert judged["deviation"] is None, trace["number"]
        # Without knowing of the change it could not be repeated, unless the change never mattered.
    blind = [judge.judge({**trace, "changes": []}, programs.SETTINGS[trace["setting"]]) for trace in mine]
    assert any(judged["deviation"] for judged in blind)


@pytest.mark.parametrize("seed", [3, 4, 6, 8, 12])
def test_other_settings_as_fresh_processes_had_them(seed):
    data = read("fresh.pickle.xz")
    trace = from_snapshot(data["recordings"][seed])
    labs: dict[object, Lab] = {}
    rows = [row for row in data["rows"] if row["seed"] == seed]
    assert len(rows) == len(programs.fresh_variants(seed))
    for row in rows:
        limit = None if row["cap_gib"] is None else round(row["cap_gib"] * 2**30)
        lab = labs.setdefault(limit, Lab(trace, trace.devices[0], limit=limit))
        prediction = lab.predict(parse_settings(row["conf"]))
        where = (row["conf"], limit)
        assert prediction.expected == row["reserved_peak"], where
        assert prediction.low <= row["reserved_peak"] <= prediction.high, where
        assert prediction.retries == row["num_alloc_retries"], where
        died = prediction.dies_at.lifetime if prediction.dies_at else None
        assert died == row["failed_alloc"], where
        assert (prediction.verdict == "fits") == (died is None), where


@pytest.mark.parametrize("number", range(0, 480, 8))
def test_what_the_model_does_is_read_back_as_the_program_that_it_played(number):
    # Eight numbers share a setting; this takes one of each, several times over.
    name, program = programs.round_of(number + number // 8 % 8, changes=False)
    judged = judge.judge(synth.play(program, programs.SETTINGS[name]), programs.SETTINGS[name])
    assert judged["deviation"] is None
    assert judged["settings"] is None


def test_a_program_is_the_same_every_time():
    first, second = programs.round_of(5)[1], programs.round_of(5)[1]
    assert first.ops == second.ops
    assert first.limit == second.limit
    assert programs.round_of(6)[1].ops != first.ops
