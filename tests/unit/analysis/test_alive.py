from __future__ import annotations

from gpumem_magic.allocator.replay import history
from gpumem_magic.analysis.alive import alive_at, peak_event
from gpumem_magic.trace.convert import from_snapshot

MIB = 2**20


def stack(*lines):
    return {"frames": [{"filename": name, "line": line, "name": "f"} for name, line in lines]}


def event(action, addr, size, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1, **more}


LIBRARY = ("/x/site-packages/torch/nn/linear.py", 5)
ALLOC_A = stack(LIBRARY, ("/home/u/a.py", 3), ("/home/u/main.py", 9))
ALLOC_A_DEEPER = stack(("/x/site-packages/torch/optim/adam.py", 8), ("/home/u/a.py", 3), ("/home/u/main.py", 9))
ALLOC_B = stack(("/home/u/b.py", 7))


def trace():
    before = {"address": 0, "size": 512, "requested_size": 5, "state": "active_allocated"}
    rest = {"address": 512, "size": 2 * MIB - 512, "requested_size": 0, "state": "inactive"}
    segment = {"device": 0, "address": 0, "total_size": 2 * MIB, "blocks": [before, rest]}
    events = [
        event("alloc", 512, 100, **ALLOC_A),
        event("alloc", 1024, 600, **ALLOC_A_DEEPER),
        event("alloc", 2048, 1000, **ALLOC_B),
        event("alloc", 3072, 1),
        event("free_requested", 2048, 1000),
        event("free_completed", 512, 100),
    ]
    return from_snapshot({"segments": [segment], "device_traces": [events]})


def rows(alive):
    return [(group.file, group.line, group.requested, group.size, group.blocks, group.reason) for group in alive.groups]


def test_groups_by_the_users_innermost_line():
    data = trace()
    replayed = history(data.devices[0], data.settings)
    assert peak_event(replayed) == 3
    alive = alive_at(replayed, data.stacks, 3)
    assert rows(alive) == [
        ("/home/u/b.py", 7, 1000, 1024, 1, None),
        ("/home/u/a.py", 3, 700, 1536, 2, None),
        (None, None, 5, 512, 1, "allocated before the recording began"),
        (None, None, 1, 512, 1, "no Python stack: autograd's thread or C++ code"),
    ]
    assert (alive.allocated, alive.requested, alive.rounding) == (3584, 1706, 3584 - 1706)
    # The largest stack of a group comes first.
    assert data.stacks.resolve(alive.groups[1].stacks[0])[0].filename.endswith("adam.py")


def test_what_waits_for_its_free_is_not_allocated():
    data = trace()
    replayed = history(data.devices[0], data.settings)
    assert [row[0] for row in rows(alive_at(replayed, data.stacks, 4))] == ["/home/u/a.py", None, None]
    assert alive_at(replayed, data.stacks, 5).allocated == int(replayed.allocated[-1])


def test_before_the_first_event():
    data = trace()
    replayed = history(data.devices[0], data.settings)
    alive = alive_at(replayed, data.stacks, -1)
    assert rows(alive) == [(None, None, 5, 512, 1, "allocated before the recording began")]


def test_another_choice_of_frame():
    data = trace()
    replayed = history(data.devices[0], data.settings)
    alive = alive_at(replayed, data.stacks, 3, choose=lambda frames: frames[-1])
    assert ("/home/u/main.py", 9, 700, 1536, 2, None) in rows(alive)


def test_a_recording_without_stacks_says_so():
    events = [event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 10)]
    data = from_snapshot({"device_traces": [events]})
    alive = alive_at(history(data.devices[0], {}), data.stacks, 1)
    assert [group.reason for group in alive.groups] == ["recorded without stacks"]


def test_every_moment_adds_up():
    data = trace()
    replayed = history(data.devices[0], data.settings)
    for moment in range(-1, 6):
        alive = alive_at(replayed, data.stacks, moment)
        assert alive.allocated == int(replayed.allocated[moment + 1])
        assert sum(group.size for group in alive.groups) == alive.allocated
