"""The allocator model: every rule on a program of a few requests, and whole recordings against torch."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from gpumem_magic.allocator.addresses import BumpDown, BumpUp, Driver, Scattered
from gpumem_magic.allocator.foreign import Foreign, find_foreign
from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.model import Model
from gpumem_magic.allocator.program import Op, Program
from gpumem_magic.allocator.settings_model import MIB, AllocatorSettings
from gpumem_magic.trace.convert import from_snapshot
from gpumem_magic.trace.model import Events

GIB = 2**30
DEFAULT = ((0, 0), 0)


def program(*steps, groups=(DEFAULT,), group_of=None, failed=()):
    """Build a program of named steps; ("alloc", size) numbers the lifetimes, most others take such a number."""
    codes = {
        "alloc": Op.ALLOC,
        "free": Op.FREE,
        "later": Op.FREE_LATER,
        "complete": Op.COMPLETE,
        "empty": Op.EMPTY_CACHE,
        "fail": Op.FAIL,
        "capture": Op.BEGIN_CAPTURE,
        "end capture": Op.END_CAPTURE,
    }
    requested: list[int] = []
    rows: list[tuple[int, int]] = []
    for name, *value in steps:
        if name == "alloc":
            rows.append((codes[name], len(requested)))
            requested.append(value[0])
        else:
            rows.append((codes[name], value[0] if value else 0))
    return Program(
        codes=np.array([code for code, _ in rows], dtype=np.uint8),
        arguments=np.array([value for _, value in rows], dtype=np.int32),
        events=np.arange(len(rows), dtype=np.int32),
        requested=np.array(requested, dtype=np.int64),
        group=np.array(group_of or [0] * len(requested), dtype=np.int32),
        groups=groups,
        failed=tuple(failed),
    )


def run(what, *, limit=None, survives=None, addresses=None, **settings):
    model = Model(
        what, AllocatorSettings(**settings), addresses or BumpUp(), limit=limit, survives=survives, traced=True
    )
    model.run()
    return model


def actions(model):
    return [(step.action.removeprefix("segment_"), step.size // MIB) for step in model.steps]


def test_segment_sizes():
    model = run(program(("alloc", 1), ("alloc", MIB + 1), ("alloc", 10 * MIB), ("alloc", 11 * MIB + 1)))
    # 1 MiB + 1 is large; 10 MiB does not fit behind it and gets its own.
    assert actions(model) == [("alloc", 2), ("alloc", 20), ("alloc", 12)]


def test_best_fit_takes_the_smallest_that_holds_and_its_front():
    steps = [("alloc", 30 * MIB), ("alloc", 24 * MIB), ("free", 0), ("free", 1), ("alloc", 23 * MIB)]
    model = run(program(*steps))
    assert model.reserved_peak == 54 * MIB
    assert model.address[2] == model.address[1]


def test_ties_go_to_the_lowest_address():
    steps = [("alloc", 30 * MIB), ("alloc", 30 * MIB), ("free", 1), ("free", 0), ("alloc", 30 * MIB)]
    up, down = run(program(*steps), addresses=BumpUp()), run(program(*steps), addresses=BumpDown())
    assert (up.address[2], down.address[2]) == (up.address[0], down.address[1])
    # Both are whole segments of one size: whichever is taken, nothing differs.
    assert not up.has_ties


def test_a_tie_between_a_whole_segment_and_a_part_of_one_matters():
    steps = [("alloc", 20 * MIB), ("alloc", 10 * MIB), ("alloc", 20 * MIB), ("free", 0), ("free", 2)]
    # A 40 MiB segment whose front 20 MiB is free, and a whole 20 MiB one.
    steps = [("alloc", 40 * MIB), ("free", 0), ("alloc", 20 * MIB), ("alloc", 20 * MIB), ("alloc", 20 * MIB)]
    steps += [("free", 1), ("free", 3), ("alloc", 20 * MIB)]
    assert run(program(*steps)).has_ties
    assert not run(program(*steps), expandable_segments=True).has_ties


def test_splitting():
    # Half a MiB is not split off a large block, so a small request behind it needs a segment; 1.5 MiB is.
    assert run(program(("alloc", 19 * MIB + MIB // 2), ("alloc", MIB + 1))).reserved == 40 * MIB
    model = run(program(("alloc", 9 * MIB), ("alloc", 9 * MIB + MIB // 2), ("alloc", MIB + 1)))
    assert model.reserved == 20 * MIB
    assert run(program(("alloc", 100), ("alloc", 100))).address == [2**45, 2**45 + 512]


def test_streams_and_pools_do_not_share():
    groups = (DEFAULT, ((0, 0), 7), ((1, 0), 0))
    what = program(
        ("alloc", 4 * MIB), ("free", 0), ("alloc", 4 * MIB), ("alloc", 4 * MIB), groups=groups, group_of=[0, 1, 2]
    )
    assert run(what).reserved == 60 * MIB


def test_freed_neighbours_merge_within_a_segment():
    steps = [("alloc", 6 * MIB), ("alloc", 6 * MIB), ("alloc", 6 * MIB), ("free", 0), ("free", 2), ("free", 1)]
    model = run(program(*steps, ("alloc", 18 * MIB)))
    assert model.reserved == 20 * MIB


def test_a_pending_free_cannot_be_used_yet():
    steps = [("alloc", 20 * MIB), ("later", 0), ("alloc", 20 * MIB), ("complete", 0), ("alloc", 20 * MIB)]
    assert run(program(*steps)).reserved == 40 * MIB
    # Emptying the cache waits for it.
    model = run(program(("alloc", 20 * MIB), ("later", 0), ("empty",), ("complete", 0)))
    assert actions(model) == [("alloc", 20), ("free", 20)]


def test_max_split_size():
    options = {"max_split_size": 32 * MIB}
    # A block at or above the limit does not serve smaller requests, and is not split for larger ones.
    steps = [("alloc", 40 * MIB), ("free", 0), ("alloc", 12 * MIB)]
    assert run(program(*steps), **options).reserved == 52 * MIB
    steps = [("alloc", 50 * MIB), ("free", 0), ("alloc", 33 * MIB)]
    model = run(program(*steps), **options)
    assert model.reserved == 50 * MIB
    # It wastes at most 20 MiB.
    steps = [("alloc", 60 * MIB), ("free", 0), ("alloc", 40 * MIB)]
    assert run(program(*steps), **options).reserved == 100 * MIB
    assert run(program(*steps), **options, max_non_split_rounding=21 * MIB).reserved == 60 * MIB


def test_rounding_to_divisions_of_a_power_of_two():
    steps = [("alloc", 33 * MIB), ("free", 0), ("alloc", 39 * MIB)]
    assert run(program(*steps)).reserved == 34 * MIB + 40 * MIB
    assert run(program(*steps), roundup_power2_divisions=(4,) * 16).reserved == 40 * MIB


def test_expandable_segments_grow_by_pages_behind_what_is_free():
    steps = [("alloc", 15 * MIB), ("alloc", 30 * MIB), ("free", 1), ("alloc", 50 * MIB)]
    model = run(program(*steps), expandable_segments=True)
    assert actions(model) == [("map", 20), ("map", 40), ("map", 20)]
    assert model.address[2] == model.address[1]
    assert model.reserved == 80 * MIB
    assert actions(run(program(("alloc", 1)), expandable_segments=True)) == [("map", 2)]


def test_expandable_segments_give_back_whole_pages_inside_a_free_block():
    steps = [("alloc", 10 * MIB), ("alloc", 60 * MIB), ("free", 1), ("empty",), ("alloc", 60 * MIB)]
    model = run(program(*steps), expandable_segments=True)
    # 10 MiB of the first page are in use, the other three go, and three come back.
    assert actions(model) == [("map", 20), ("map", 60), ("unmap", 60), ("map", 60)]


def test_expandable_segments_prefer_the_block_that_grows_least():
    # Free: 10 MiB in the middle, and 10 MiB at the end that could grow: the middle one is taken.
    steps = [("alloc", 10 * MIB), ("alloc", 10 * MIB), ("alloc", 10 * MIB), ("free", 0), ("alloc", 10 * MIB)]
    model = run(program(*steps), expandable_segments=True)
    assert model.address[3] == model.address[0]


def test_a_limit_counts_the_whole_segment():
    model = run(program(("alloc", 2 * MIB)), limit=20 * MIB)
    assert (model.failures, model.reserved) == ([], 20 * MIB)
    model = run(program(("alloc", 2 * MIB)), limit=20 * MIB - 1)
    assert [(failure.lifetime, failure.size) for failure in model.failures] == [(0, 2 * MIB)]
    # One retry was made before giving up; also for expandable segments, which would map less.
    assert model.retries == 1
    assert run(program(("alloc", 2 * MIB)), limit=20 * MIB - 1, expandable_segments=True).failures


def test_the_cache_is_freed_and_the_request_repeated():
    steps = [("alloc", 30 * MIB), ("alloc", 30 * MIB), ("free", 0), ("alloc", 40 * MIB)]
    model = run(program(*steps), limit=80 * MIB)
    assert actions(model) == [("alloc", 30), ("alloc", 30), ("free", 30), ("alloc", 40)]
    assert (model.retries, model.failures) == (1, [])


def test_a_request_in_a_capture_frees_nothing():
    steps = [("alloc", 30 * MIB), ("free", 0), ("capture",), ("alloc", 40 * MIB), ("end capture",)]
    model = run(program(*steps), limit=60 * MIB)
    assert (model.retries, len(model.failures)) == (0, 1)


def test_oversize_blocks_go_before_the_whole_cache():
    steps = [("alloc", 64 * MIB), ("alloc", 20 * MIB), ("free", 0), ("free", 1), ("alloc", 90 * MIB)]
    model = run(program(*steps), limit=120 * MIB, max_split_size=32 * MIB)
    # One oversize block of 64 MiB is not enough for 90 MiB, so the rest goes too.
    assert actions(model) == [("alloc", 64), ("alloc", 20), ("free", 64), ("free", 20), ("alloc", 90)]
    steps = [("alloc", 100 * MIB), ("alloc", 20 * MIB), ("free", 0), ("free", 1), ("alloc", 70 * MIB)]
    model = run(program(*steps), limit=130 * MIB, max_split_size=32 * MIB)
    assert actions(model) == [("alloc", 100), ("alloc", 20), ("free", 100), ("alloc", 70)]
    assert model.retries == 0


def test_garbage_collection_frees_what_went_unused_longest():
    steps = [("alloc", 40 * MIB), ("alloc", 30 * MIB), ("free", 0), ("alloc", 44 * MIB), ("free", 1)]
    steps += [("alloc", 50 * MIB), ("alloc", 52 * MIB)]
    model = run(program(*steps), limit=200 * MIB, garbage_collection_threshold=0.65)
    # 164 MiB are above 130 MiB: the 40 MiB block has waited for three searches, the 30 MiB one for two.
    assert ("free", 40) in actions(model)
    assert ("free", 30) not in actions(model)
    assert model.retries == 0


def test_a_survived_failure_goes_on():
    steps = [("alloc", 50 * MIB), ("free", 0), ("alloc", 20 * MIB)]
    model = run(program(*steps), limit=30 * MIB, survives=lambda number: number == 0)
    assert [failure.is_survived for failure in model.failures] == [True]
    assert model.address[1] >= 0


def test_what_failed_in_the_recording_is_asked_for_again():
    steps = [("alloc", 30 * MIB), ("fail", 0), ("free", 0), ("alloc", 20 * MIB), ("fail", 0)]
    what = program(*steps, failed=[(40 * MIB, 0)])
    model = run(what, limit=50 * MIB)
    # Caught the first time, because something was asked for afterwards.
    assert [failure.is_survived for failure in model.failures] == [True, False]
    assert run(what).failures == []


def test_driver_places_segments_as_it_was_seen_to():
    driver = Driver()
    hole = driver.take(20 * MIB, 0)
    first = driver.take(20 * MIB, 0)
    second = driver.take(24 * MIB, 0)
    # Holes of the context first, then new chunks of 32 MiB downwards, then the hole of the newest chunk that has one.
    assert hole > first == second + 32 * MIB
    assert driver.take(8 * MIB, 0) == second + 24 * MIB
    assert driver.take(12 * MIB, 0) == first + 20 * MIB
    third = driver.take(30 * MIB, 0)
    assert third == second - 32 * MIB
    # A chunk that is wholly free goes back, and its gap is used only for what is strictly smaller.
    driver.give_back(third, 30 * MIB)
    assert driver.take(30 * MIB, 0) == third
    low = driver.take(60 * MIB, 0)
    driver.give_back(third, 30 * MIB)
    assert driver.take(32 * MIB, 0) == low - 32 * MIB


def test_driver_fills_what_others_leave_from_its_time_on():
    driver = Driver(foreign=[Foreign(10, 96 * MIB)])
    usual = [driver.take(40 * MIB, 9) for _ in range(2)]
    inside = [driver.take(40 * MIB, 10) for _ in range(3)]
    # Two fit, from its lowest address on; the third is placed as usual.
    assert inside[0] > max(usual)
    assert inside[1] == inside[0] + 40 * MIB
    assert inside[2] == min(usual) - 64 * MIB
    driver.give_back(inside[0], 40 * MIB)
    assert driver.take(16 * MIB, 11) == inside[2] + 40 * MIB
    assert driver.take(30 * MIB, 11) == inside[0]


@pytest.mark.parametrize("create", [Driver, lambda: Driver(3), BumpDown, BumpUp, lambda: Scattered(5)])
def test_no_address_model_overlaps(create):
    model = create()
    generator = np.random.default_rng(7)
    held: dict[int, int] = {}
    for _ in range(400):
        if held and generator.random() < 0.4:
            at = list(held)[generator.integers(len(held))]
            model.give_back(at, held.pop(at))
        else:
            size = int(generator.choice([2, 20, 20, 24, 34, 130])) * MIB
            at = model.take(size, 0)
            assert all(at + size <= other or other + length <= at for other, length in held.items())
            held[at] = size


def test_holes_of_programs_with_streams_are_found(load):
    assert [hole.size // MIB for hole in find_foreign(load("fuzz7.c0").devices[0])] == [416]
    assert find_foreign(load("fuzz3.c0").devices[0]) == ()
    assert find_foreign(load("fuzz3.c1").devices[0]) == ()


def test_recordings_are_repeated_to_every_address(recording, load):
    trace = load(recording)
    for device in trace.devices:
        lab = Lab(trace, device)
        assert lab.first_deviation is None
        assert lab.exact
        assert lab.warnings == ()


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_recordings_that_begin_late_are_repeated_too(recording, share, load):
    trace = load(recording)
    device = trace.devices[0]
    first = int(len(device.events) * share)
    columns = {field.name: getattr(device.events, field.name)[first:] for field in fields(Events)}
    lab = Lab(trace, replace(device, events=Events(**columns)))
    # Where a block's size had to be assumed, the model may part from the recording, and says so.
    assert lab.first_deviation is None or not lab.history.exact
    assert lab.exact == (lab.history.exact and lab.first_deviation is None)


def test_a_private_pool_that_nobody_holds_goes_with_the_cache():
    # As torch 2.12 records it: with the pool of every event.
    def event(action, addr, size, pool, **more):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1, "pool_id": pool, **more}

    base, graph, default = 1 << 40, (3, 0), (0, 0)
    events = [
        event("segment_alloc", base, 20 * MIB, graph),
        event("alloc", base, 5 * MIB, graph),
        event("segment_alloc", base + 20 * MIB, 20 * MIB, default),
        event("alloc", base + 20 * MIB, 5 * MIB, default),
    ]
    for at, pool in ((base, graph), (base + 20 * MIB, default)):
        events += [event("free_requested", at, 5 * MIB, pool), event("free_completed", at, 5 * MIB, pool)]
    # The graph was deleted before the cache was emptied: the default pool goes first.
    events += [event("segment_free", base + 20 * MIB, 20 * MIB, default), event("segment_free", base, 20 * MIB, graph)]
    trace = from_snapshot({"segments": [], "device_traces": [events], "allocator_settings": {}})
    lab = Lab(trace, trace.devices[0])
    assert lab.exact, lab.first_deviation
    # Blocks of the two pools never served each other, under any setting.
    assert lab.predict(AllocatorSettings(expandable_segments=True)).expected == 40 * MIB


def test_giving_back_a_segment_waits_for_frees_of_other_streams():
    # The garbage collector gives 40 MiB back for a request of 50, while 44 MiB still wait.
    steps = ((Op.ALLOC, 0), (Op.ALLOC, 1), (Op.FREE, 0), (Op.FREE_LATER, 1), (Op.ALLOC, 2), (Op.ALLOC, 3))
    program = Program(
        codes=np.array([code for code, _ in steps], dtype=np.uint8),
        arguments=np.array([number for _, number in steps], dtype=np.int32),
        events=np.arange(len(steps), dtype=np.int32),
        requested=np.array([40, 44, 50, 44], dtype=np.int64) * MIB,
        group=np.zeros(4, dtype=np.int32),
        groups=(((0, 0), 0),),
    )
    settings = AllocatorSettings(garbage_collection_threshold=0.05)

    def peak(*, waits):
        model = Model(program, settings, Driver(), limit=1 << 30, waits=waits)
        model.run()
        return model.reserved_peak // MIB, model.address[3] == model.address[1]

    assert peak(waits=False) == (138, False)
    assert peak(waits=True) == (94, True)
