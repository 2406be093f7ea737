"""Allocations without a stack: named by what stands on both sides of them, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from story import Story  # type: ignore[import-not-found]

from gpumem_magic.analysis import analyse_trace
from gpumem_magic.analysis.stackless import infer_frames
from gpumem_magic.trace.model import Frame, StackTable
from gpumem_magic.trace.reader import read_trace

DATA = Path(__file__).parents[2] / "data" / "recordings"
LIBRARY = "/usr/lib/python3.12/site-packages/torch/_tensor.py"
FRAMES = (
    Frame("/home/me/train.py", 90, "<module>"),  # 0
    Frame("/home/me/train.py", 9, "step"),  # 1: loss.backward()
    Frame(LIBRARY, 631, "backward"),  # 2
    Frame(LIBRARY, 40, "_make_grads"),  # 3
    Frame("/home/me/train.py", 8, "step"),  # 4: another line of the same function
    Frame(LIBRARY, 77, "unpack_hook"),  # 5: the backward thread's own root
)
# 1: before the backward pass, 2: after it, both inside backward(); 3: the line before; 4: the thread's own.
STACKS = StackTable(FRAMES, ((), (3, 2, 1, 0), (2, 1, 0), (4, 0), (5,), (1, 0)))


def frames_of(*stories):
    devices = [(story.device().events, story.history()) for story in stories]
    return infer_frames(devices[0][0], devices, STACKS)


def around(before, after, *, between=()):
    """An allocation, the stackless one, and a free with its own stack."""
    story = Story()
    first = story.at(1).alloc(512, stack=before)
    for number, stack in enumerate(between):
        story.at(2 + number).alloc(512, stack=stack)
    story.at(10).alloc(4096)
    wanted = len(story.events) - 1
    story.at(20).free(first)
    story.events[-2] = (*story.events[-2][:-1], after)
    return story, wanted


def test_both_sides_inside_one_call_name_its_line():
    story, wanted = around(1, 2)
    assert FRAMES[frames_of(story)[wanted]].line == 9


def test_a_line_before_and_a_line_after_say_nothing():
    story, wanted = around(3, 2)
    assert frames_of(story)[wanted] == -1


def test_the_users_own_line_on_both_sides_is_not_inside_a_library():
    story, wanted = around(5, 2)
    assert frames_of(story)[wanted] == -1


def test_the_threads_own_stacks_are_no_witnesses():
    story, wanted = around(1, 2, between=[4, 4])
    assert FRAMES[frames_of(story)[wanted]].line == 9


def test_frees_that_repeat_the_allocations_stack_are_no_witnesses():
    story, wanted = around(1, 1)
    assert frames_of(story)[wanted] == -1


def test_another_device_may_be_the_witness():
    story = Story()
    story.at(10).alloc(4096)
    other, _ = around(1, 2)
    assert FRAMES[frames_of(story, other)[0]].line == 9
    # In the same microsecond the order between devices is unknown.
    early = Story()
    early.at(1).alloc(4096)
    assert frames_of(early, other)[0] == -1


def test_frames_of_compiled_code_are_looked_past():
    """With C++ frames the backward thread has a stack, of nothing else, and the program's are mixed with them."""
    native = len(FRAMES)
    frames = (*FRAMES, Frame("??", 0, "__clone"), Frame("CUDACachingAllocator.cpp", 0, "malloc"))
    stacks = StackTable(
        frames, ((), (native + 1, 3, native, 2, 1, 0), (2, native, 1, 0), (native + 1, native), (1, native, 0))
    )
    story, wanted = around(1, 2)
    story.events[wanted] = (*story.events[wanted][:-1], 3)
    devices = [(story.device().events, story.history())]
    assert frames[infer_frames(devices[0][0], devices, stacks)[wanted]].line == 9


def test_what_has_a_stack_or_no_neighbours_is_left_alone():
    story, wanted = around(1, 2)
    found = frames_of(story)
    assert [index for index, frame in enumerate(found.tolist()) if frame >= 0] == [wanted]
    alone = Story()
    alone.alloc(512)
    assert frames_of(alone).tolist() == [-1]
    assert frames_of(Story()).tolist() == []


@pytest.mark.parametrize(
    "name",
    [
        "mlp_train.c0",
        "mlp_train.cppstacks",
        "kv_cache.c0",
        "lm_growing.c1",
        "leak_losses.c0",
        "convnet_varres.c0",
        "multi_gpu",
        "streams.c0",
    ],
)
def test_no_byte_of_a_complete_recording_is_without_an_owner(name):
    for device in analyse_trace(read_trace(DATA / f"{name}.pickle.xz")).devices:
        unknown = [group.label for group in device.groups if group.kind == "unknown"]
        assert unknown == []
        assert device.headline.allocated_peak == sum(row.bytes for row in device.peak)
